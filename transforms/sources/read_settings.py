"""How a group of splits is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from beam_lateness.transforms.times import Duration

BLOCK_BYTES: Final = 8 << 20
LIVE_FUTURE_SKEW_MS: Final = 300_000


@dataclass(frozen=True)
class ReadSettings:
    """How a group is read.

    Args:
        block_bytes: About how much is read before the watermark is reported.
        max_future_skew_ms: Records further ahead of the clock are invalid, and move no watermark;
            None for no limit; "live" for 5 minutes where the input is followed and no limit where
            it is replayed.
        replay_speed: Event time released per wall time (2 is twice as fast as it happened); None
            for full speed.
        clock: Gives the time in seconds since the epoch.
        poll_interval: How long to wait after a live input had nothing new; None for 0.2 s.
    """

    block_bytes: int = BLOCK_BYTES
    max_future_skew_ms: int | Literal["live"] | None = "live"
    replay_speed: float | None = None
    clock: Callable[[], float] = time.time
    poll_interval: Duration | None = None

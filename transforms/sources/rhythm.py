"""How the calls of the source follow each other, which engines take differently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import Duration, duration_ms

LEAST_PAUSE_S: Final = 1.1
"""Flink's runner cuts a delay to whole seconds after it has taken off what has passed meanwhile: a
delay of 1.0 s becomes 0, and then no watermark leaves the source until its end."""

_CALL_S: Final = 1.0


@dataclass(frozen=True)
class Rhythm:
    """How long a call reads on, and how long the engine waits before the next.

    Args:
        call_s: A call reads polls for about so long, in seconds, while there is more; 0: one poll.
        pause_s: The least time between two calls, in seconds.
        idle_s: The least time after a call that found nothing more, in seconds.
        closing_calls: Calls between the last poll of a finite input and the one that ends it. Prism
            (2.77) may run a call before it has noted the watermark of the one before; if that call
            ends the source, the watermark noted late stands in for the end of time, and the job is
            stuck (seen in 1 of 200 sources). Each call that reports the same watermark again makes
            the engine look at it once more.
    """

    call_s: float = 0.0
    pause_s: float = 0.0
    idle_s: float = 0.0
    closing_calls: int = 3

    def polls(self, reader: Any) -> Iterator[Poll]:
        """Reads polls as long as a call lasts."""
        end = time.monotonic() + self.call_s
        while True:
            poll: Poll = reader.poll()
            yield poll
            if poll.finished or poll.wait_s > 0 or time.monotonic() >= end:
                return

    def delay_s(self, poll: Poll) -> float:
        """Gives how long to wait after a call whose last poll is given."""
        return max(poll.wait_s, self.idle_s if poll.wait_s > 0 else self.pause_s)


PROMPT: Final = Rhythm()
"""Of engines that note a watermark after each call, such as Prism."""


def rhythm_of(runner: Any, poll_interval: Duration | None) -> Rhythm:
    """Gives the rhythm that an engine needs.

    Args:
        runner: Beam's runner.
        poll_interval: How long to wait after a call that found nothing more; None for the least.

    Raises:
        ValueError: If that is less than what the engine can.
    """
    coarse = isinstance(runner, PortableRunner) and not isinstance(runner, PrismRunner)
    least_s = LEAST_PAUSE_S if coarse else 0.0
    idle_s = least_s
    if poll_interval is not None:
        idle_s = duration_ms(poll_interval, name="poll_interval (--poll_interval)") / 1000
    if idle_s < least_s:
        msg = (
            f"poll_interval (--poll_interval) must be at least {LEAST_PAUSE_S:g}s on this engine, "
            f"got {idle_s:g}s: with less, no watermark would leave the source"
        )
        raise ValueError(msg)
    if not coarse:
        return Rhythm(idle_s=idle_s)
    return Rhythm(_CALL_S, least_s, idle_s, closing_calls=0)

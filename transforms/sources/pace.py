"""The pace of a replay: event times are released as the clock comes to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from beam_lateness.transforms.sources.split import Split
from beam_lateness.transforms.times import NO_WATERMARK_MS

_LONGEST_WAIT_S: Final = 1.0  # between polls of a paced replay


class Pace:
    """Paces a replay.

    Args:
        speed: Event time released per wall time.
        clock: Gives the time in seconds since the epoch.
    """

    def __init__(self, speed: float, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._clock = clock
        self._epoch: tuple[float, int] | None = None  # wall and event time where it began

    def horizon(self, splits: Sequence[Split]) -> int:
        """Gives the event time that the replay has come to, in ms."""
        now = self._clock()
        if self._epoch is None:
            first = [int(split.latest[split.cursor]) for split in splits if not split.drained]
            if not first:
                return NO_WATERMARK_MS
            self._epoch = (now, min(first))
        began, first_ms = self._epoch
        return first_ms + int((now - began) * 1000 * self._speed)

    def wait(self, splits: Sequence[Split], horizon: int) -> float:
        """Gives how long it is until the next of some splits' records is due, in seconds."""
        due = [int(split.latest[split.cursor]) for split in splits if not split.drained]
        wait = (min(due, default=horizon) - horizon) / 1000 / self._speed
        return min(max(wait, 0.001), _LONGEST_WAIT_S)

"""Fixed windows and their allowed lateness, as arithmetic on milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from beam_lateness.transforms.times import Duration, duration_ms, format_duration

SLACK_MS: Final = 60_000
"""Event time for which a window's state outlives its allowed lateness: an accepted record must
find it even on engines where late records do not hold the watermark back."""

_Ms = TypeVar("_Ms", int, npt.NDArray[np.int64])


@dataclass(frozen=True)
class Windows:
    """Fixed windows `[start, end)` that stay open for late records.

    Args:
        size: Length of a window.
        allowed_lateness: How far the watermark may be past a window's end for a record of it to be
            accepted still. A record is too late when `watermark >= end + allowed_lateness`.
        offset: Where windows start, counted from the epoch; less than `size`.

    Raises:
        ValueError: If a duration is out of range, or `offset` is not less than `size`.

    Example:
        >>> windows = Windows("1m", allowed_lateness="2m")
        >>> windows.start_of(90_000), windows.end_of(90_000), windows.closed_at(90_000)
        (60000, 120000, 240000)
    """

    size: Duration
    allowed_lateness: Duration = 0
    offset: Duration = 0
    size_ms: int = field(init=False, repr=False)
    allowed_lateness_ms: int = field(init=False, repr=False)
    offset_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size_ms = duration_ms(self.size, name="size (--window)", minimum_ms=1)
        lateness_ms = duration_ms(
            self.allowed_lateness, name="allowed_lateness (--allowed_lateness)"
        )
        offset_ms = duration_ms(self.offset, name="offset (--window_offset)")
        if offset_ms >= size_ms:
            msg = (
                f"offset (--window_offset) must be less than the window size "
                f"({format_duration(size_ms)}), got {format_duration(offset_ms)}"
            )
            raise ValueError(msg)
        object.__setattr__(self, "size_ms", size_ms)
        object.__setattr__(self, "allowed_lateness_ms", lateness_ms)
        object.__setattr__(self, "offset_ms", offset_ms)

    def start_of(self, event_time_ms: _Ms) -> _Ms:
        """Gives the start, in ms, of the window that an event time (or each of many) lies in."""
        return event_time_ms - (event_time_ms - self.offset_ms) % self.size_ms

    def end_of(self, event_time_ms: _Ms) -> _Ms:
        """Gives the end, in ms, of that window: it fires on time when the watermark is there."""
        return self.start_of(event_time_ms) + self.size_ms

    def closed_at(self, event_time_ms: _Ms) -> _Ms:
        """Gives the watermark, in ms, from which a record of that window is too late."""
        return self.end_of(event_time_ms) + self.allowed_lateness_ms

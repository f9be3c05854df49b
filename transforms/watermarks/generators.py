"""Running watermark generators, in Flink's terms.

Watermarks here are inclusive (`T`: no record with event time <= T is to come), in ms, and never go
back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from beam_lateness.transforms.times import NO_WATERMARK_MS, Flags, Millis


class WatermarkOutput(Protocol):
    """Where a generator emits its watermarks."""

    def emit_watermark(self, watermark_ms: int) -> None:
        """Takes an inclusive watermark in ms; one below an earlier one has no effect."""


class HighestWatermark:
    """A `WatermarkOutput` that keeps the highest watermark emitted: it never goes back."""

    def __init__(self) -> None:
        self.watermark_ms = NO_WATERMARK_MS

    def emit_watermark(self, watermark_ms: int) -> None:
        """Takes an inclusive watermark in ms."""
        self.watermark_ms = max(self.watermark_ms, watermark_ms)


class WatermarkGenerator(ABC):
    """Turns the records of one split into its watermark (Flink's `WatermarkGenerator`).

    The two callbacks define what a generator does; `on_events` is the same for a whole block, and
    is what the sources call. The state is one number, so that a checkpoint is small and exact.
    """

    @property
    @abstractmethod
    def state(self) -> int | None:
        """What a checkpoint holds, in ms; None before the first record."""

    @property
    @abstractmethod
    def watermark_ms(self) -> int:
        """The inclusive watermark now, in ms."""

    @abstractmethod
    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Sees one record with its event time in ms; may emit a watermark."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Is called from time to time; may emit a watermark."""

    @abstractmethod
    def on_events(self, event_times_ms: Millis, markers: Flags) -> Millis:
        """Sees a block of records.

        Args:
            event_times_ms: Event time of each record, in ms, in order of arrival.
            markers: Whether each record is a marker (always False without a marker field).

        Returns:
            The inclusive watermark in ms **after** each record.
        """


class BoundedOutOfOrdernessGenerator(WatermarkGenerator):
    """`T = largest event time so far - bound - 1 ms`.

    The millisecond is the inclusive reading of Flink's `BoundedOutOfOrdernessWatermarks`: a record
    with event time exactly `largest - bound` may still come.
    """

    def __init__(self, bound_ms: int, state: int | None = None) -> None:
        self._bound_ms = bound_ms
        self._largest = state

    @property
    def state(self) -> int | None:
        """The largest event time so far, in ms."""
        return self._largest

    @property
    def watermark_ms(self) -> int:
        """Largest event time - bound - 1 ms."""
        return NO_WATERMARK_MS if self._largest is None else self._largest - self._bound_ms - 1

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers the largest event time."""
        if self._largest is None or event_time_ms > self._largest:
            self._largest = event_time_ms

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits the watermark, once there was a record."""
        if self._largest is not None:
            output.emit_watermark(self.watermark_ms)

    def on_events(self, event_times_ms: Millis, markers: Flags) -> Millis:
        """Gives the watermark after each record, as if emitted after each."""
        if not len(event_times_ms):
            return event_times_ms
        largest = np.maximum.accumulate(event_times_ms)
        if self._largest is not None:
            np.maximum(largest, self._largest, out=largest)
        self._largest = int(largest[-1])
        largest -= self._bound_ms + 1
        return largest


class PunctuatedGenerator(WatermarkGenerator):
    """The watermark is the time of the last marker: a marker at T completes all up to and with T.

    Records that are not markers leave it where it is.
    """

    def __init__(self, marker_field: str, state: int | None = None) -> None:
        self._marker_field = marker_field
        self._last = state

    @property
    def state(self) -> int | None:
        """The highest marker so far, in ms."""
        return self._last

    @property
    def watermark_ms(self) -> int:
        """The highest marker so far, in ms."""
        return NO_WATERMARK_MS if self._last is None else self._last

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits the marker's time, if the record is one."""
        if record.get(self._marker_field) is True:
            self._last = event_time_ms if self._last is None else max(self._last, event_time_ms)
            output.emit_watermark(self._last)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing: only markers move this watermark."""

    def on_events(self, event_times_ms: Millis, markers: Flags) -> Millis:
        """Gives the watermark after each record."""
        if not len(event_times_ms):
            return event_times_ms
        after = np.maximum.accumulate(np.where(markers, event_times_ms, NO_WATERMARK_MS))
        if self._last is not None:
            np.maximum(after, self._last, out=after)
        if after[-1] > NO_WATERMARK_MS:
            self._last = int(after[-1])
        return after


class NoWatermarksGenerator(WatermarkGenerator):
    """Never emits a watermark: nothing is late, and windows fire at the end of the input."""

    @property
    def state(self) -> int | None:
        """Nothing to keep."""
        return None

    @property
    def watermark_ms(self) -> int:
        """None yet, ever."""
        return NO_WATERMARK_MS

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Does nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Does nothing."""

    def on_events(self, event_times_ms: Millis, markers: Flags) -> Millis:
        """Gives "no watermark yet" after each record."""
        return np.full(len(event_times_ms), NO_WATERMARK_MS, dtype=np.int64)

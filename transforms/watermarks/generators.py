"""Running watermark generators, in Flink's terms.

Watermarks here are inclusive (`T`: no record with event time <= T is to come), in ms, and never go
back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, NO_WATERMARK_MS, Flags, Millis


class WatermarkOutput(Protocol):
    """Where a generator emits its watermarks."""

    def emit_watermark(self, watermark_ms: int) -> None:
        """Takes an inclusive watermark in ms; one below an earlier one has no effect."""


class NotAWatermarkError(TypeError):
    """What was emitted is no watermark: no record is at fault, but the generator."""


class HighestWatermark:
    """A `WatermarkOutput` that keeps the highest watermark emitted: it never goes back.

    It never reaches the end of time either: that would close every window for good.
    """

    def __init__(self, watermark_ms: int = NO_WATERMARK_MS) -> None:
        self.watermark_ms = watermark_ms

    def emit_watermark(self, watermark_ms: int) -> None:
        """Takes an inclusive watermark in ms.

        Raises:
            NotAWatermarkError: If it is no integer.
        """
        if isinstance(watermark_ms, bool) or not isinstance(watermark_ms, (int, np.integer)):
            msg = f"emit_watermark takes whole ms since the epoch, got {watermark_ms!r}"
            raise NotAWatermarkError(msg)
        self.watermark_ms = max(self.watermark_ms, min(int(watermark_ms), MAX_EVENT_TIME_MS))


class WatermarkGenerator(ABC):
    """Turns the records of one split into its watermark: Flink's two callbacks.

    Write one for a watermark of your own, and give its class, or any function without arguments
    that makes one, to `WatermarkStrategy.for_generator`. What it must remember belongs into
    `state`: a dataclass of numbers, text, and lists or dictionaries of them, made in `__init__`.
    Checkpoints hold that and nothing else, and the object itself is made anew from block to block:
    a generator that changes another attribute is refused. The callbacks must depend on what they
    are given, the state and `clock` only.

    Args:
        state: What a checkpoint holds; None for a generator that remembers nothing.
        clock: Gives the time in seconds since the epoch; the source sets it. In a replay it stands
            at the largest event time of the split so far.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Newest:
        ...     event_time_ms: int = NO_WATERMARK_MS
        >>> class TwoSecondsBehind(WatermarkGenerator):
        ...     def __init__(self) -> None:
        ...         self.state = Newest()
        ...
        ...     def on_event(self, record, event_time_ms, output):
        ...         self.state.event_time_ms = max(self.state.event_time_ms, event_time_ms)
        ...
        ...     def on_periodic_emit(self, output):
        ...         output.emit_watermark(self.state.event_time_ms - 2_000 - 1)
    """

    state: Any = None
    clock: Callable[[], float] = staticmethod(time.time)

    @abstractmethod
    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Sees one record with its event time in ms; may emit a watermark (punctuated).

        Args:
            record: The record's fields, as they were read.
            event_time_ms: Its event time in ms.
            output: Where to emit.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """May emit a watermark (periodic); is called on a tick.

        A tick comes every emit interval of the clock (200 ms) while a live split is not idle. In
        a replay it follows each record, so that verdicts depend on the input alone.
        """


class BoundChange(NamedTuple):
    """A change of a self-adjusting bound, in ms."""

    event_time_ms: int
    before_ms: int
    after_ms: int


class BlockGenerator(WatermarkGenerator):
    """A generator as the source runs it: by whole blocks of records.

    The built-in ones do the same by record (the two callbacks) and by block (`on_events`), where
    they emit after each record. Their state is small and JSON.
    """

    needs_records = False
    failures: Mapping[int, str] = MappingProxyType({})  # only per-record ones may fail

    @property
    @abstractmethod
    def watermark_ms(self) -> int:
        """The inclusive watermark now, in ms."""

    @property
    def bound_ms(self) -> int | None:
        """The bound now, in ms; None where there is none."""
        return None

    @abstractmethod
    def on_events(
        self,
        event_times_ms: Millis,
        markers: Flags,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> Millis:
        """Sees a block of records.

        Args:
            event_times_ms: Event time of each record, in ms, in order of arrival.
            markers: Whether each record is a marker (always False without a marker field).
            records: The fields of each; only a custom generator looks at them.

        Returns:
            The inclusive watermark in ms **after** each record.
        """

    def on_tick(self) -> None:
        """Is called every emit interval; the built-in generators have emitted already."""

    def take_changes(self) -> list[BoundChange]:
        """Gives the changes of the bound since the last call."""
        return []


class BoundedOutOfOrdernessGenerator(BlockGenerator):
    """`T = largest event time so far - bound - 1 ms`.

    The millisecond is the inclusive reading of Flink's `BoundedOutOfOrdernessWatermarks`: a record
    with event time exactly `largest - bound` may still come.
    """

    def __init__(self, bound_ms: int, state: int | None = None) -> None:
        self._bound_ms = bound_ms
        self._largest = state

    @property
    def state(self) -> int | None:
        """The largest event time so far, in ms; None before the first record."""
        return self._largest

    @property
    def watermark_ms(self) -> int:
        """Largest event time - bound - 1 ms."""
        return NO_WATERMARK_MS if self._largest is None else self._largest - self._bound_ms - 1

    @property
    def bound_ms(self) -> int:
        """The bound, in ms."""
        return self._bound_ms

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

    def on_events(
        self,
        event_times_ms: Millis,
        markers: Flags,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> Millis:
        """Gives the watermark after each record, as if emitted after each."""
        if not len(event_times_ms):
            return event_times_ms
        largest = np.maximum.accumulate(event_times_ms)
        if self._largest is not None:
            np.maximum(largest, self._largest, out=largest)
        self._largest = int(largest[-1])
        largest -= self._bound_ms + 1
        return largest


class PunctuatedGenerator(BlockGenerator):
    """The watermark is the time of the last marker: a marker at T completes all up to and with T.

    Records that are not markers leave it where it is.
    """

    def __init__(self, marker_field: str, state: int | None = None) -> None:
        self._marker_field = marker_field
        self._last = state

    @property
    def state(self) -> int | None:
        """The highest marker so far, in ms; None before the first."""
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

    def on_events(
        self,
        event_times_ms: Millis,
        markers: Flags,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> Millis:
        """Gives the watermark after each record."""
        if not len(event_times_ms):
            return event_times_ms
        after = np.maximum.accumulate(np.where(markers, event_times_ms, NO_WATERMARK_MS))
        if self._last is not None:
            np.maximum(after, self._last, out=after)
        if after[-1] > NO_WATERMARK_MS:
            self._last = int(after[-1])
        return after


class NoWatermarksGenerator(BlockGenerator):
    """Never emits a watermark: nothing is late, and windows fire at the end of the input."""

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

    def on_events(
        self,
        event_times_ms: Millis,
        markers: Flags,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> Millis:
        """Gives "no watermark yet" after each record."""
        return np.full(len(event_times_ms), NO_WATERMARK_MS, dtype=np.int64)

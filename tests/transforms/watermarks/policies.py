"""Watermark policies of other systems, as a user would write them, and a clock to move by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    WatermarkGenerator,
    WatermarkOutput,
)


@dataclass
class Clock:
    """A clock that stands still unless it is told to move."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def see(
    generator: BlockGenerator,
    times: Sequence[int],
    records: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """Gives the inclusive watermark after each record; none is a marker."""
    flags = np.zeros(len(times), dtype=np.bool_)
    rows = [{} for _ in times] if records is None else records
    after: list[int] = generator.on_events(np.array(times, dtype=np.int64), flags, rows).tolist()
    return after


class Punctuated(WatermarkGenerator):
    """Flink's tests: every record is a marker."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits the record's time."""
        output.emit_watermark(event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing."""


class PunctuatedOdd(Punctuated):
    """Flink's tests: every record at an odd time is a marker."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits an odd time."""
        if event_time_ms % 2:
            output.emit_watermark(event_time_ms)


class MaxTimestamp(Punctuated):
    """Beam's Kinesis arrival time policy: another record of the largest time may come."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits all before the record."""
        output.emit_watermark(event_time_ms - 1)


class ProcessingTime(WatermarkGenerator):
    """Beam's Kinesis processing time policy: the watermark is the clock."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits all before now."""
        output.emit_watermark(round(self.clock() * 1000) - 1)


@dataclass
class Largest:
    """The largest event time so far."""

    event_time_ms: int = NO_WATERMARK_MS


class LimitedDelay(WatermarkGenerator):
    """Beam's Kafka policy: the largest event time, but at most the clock, less the delay."""

    def __init__(self, max_delay_ms: int) -> None:
        self.state = Largest()
        self._max_delay_ms = max_delay_ms

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers the largest event time."""
        self.state.event_time_ms = max(self.state.event_time_ms, event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits all before the delay."""
        now_ms = round(self.clock() * 1000)
        output.emit_watermark(min(self.state.event_time_ms, now_ms) - self._max_delay_ms - 1)


@dataclass
class Forwarded:
    """An exclusive watermark, and where the clock stood then."""

    watermark_ms: int = NO_WATERMARK_MS
    at_ms: int = 0


class BoundedWallForwarded(WatermarkGenerator):
    """Bytewax's event clock: bounded, and moving on with the clock while no record moves it."""

    def __init__(self, bound_ms: int) -> None:
        self.state = Forwarded()
        self._bound_ms = bound_ms

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Takes the record's claim, or what the clock has made of the last one."""
        now_ms, state = round(self.clock() * 1000), self.state
        forwarded_ms = state.watermark_ms + now_ms - state.at_ms
        if event_time_ms - self._bound_ms > forwarded_ms:
            forwarded_ms = event_time_ms - self._bound_ms
            self.state = Forwarded(forwarded_ms, now_ms)
        output.emit_watermark(forwarded_ms - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing: bytewax looks at the clock with each record."""

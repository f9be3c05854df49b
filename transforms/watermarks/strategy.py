"""Watermark strategies: frozen, picklable configuration from which generators are made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from beam_lateness.transforms.times import Duration, duration_ms
from beam_lateness.transforms.watermarks.generators import (
    BoundedOutOfOrdernessGenerator,
    NoWatermarksGenerator,
    PunctuatedGenerator,
    WatermarkGenerator,
)
from beam_lateness.transforms.watermarks.timestamps import FieldTime, TimestampAssigner


def _default_time() -> FieldTime:
    return FieldTime("event_time")


@dataclass(frozen=True)
class WatermarkStrategy:
    """How a source finds event times and tells how complete they are (Flink's `WatermarkStrategy`).

    Make one with a `for_…` method; each split of a source gets a generator of its own.

    Watermark: largest event time - bound (exclusive, Beam's reading), per split; the source
    reports the minimum over its splits.

    Example:
        >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness("15m")
        >>> strategy.with_timestamp_assigner("departed_at").timestamps
        FieldTime(field='departed_at', unit='auto')
    """

    bound_ms: int | None = None
    marker_field: str | None = None
    timestamps: TimestampAssigner = field(default_factory=_default_time)

    @staticmethod
    def for_bounded_out_of_orderness(bound: Duration) -> WatermarkStrategy:
        """Expects records at most `bound` behind the largest event time seen.

        Raises:
            ValueError: If the bound is no duration, or negative.
        """
        return WatermarkStrategy(bound_ms=duration_ms(bound, name="bound (--bound)"))

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Expects event times in ascending order: a bound of 0."""
        return WatermarkStrategy(bound_ms=0)

    @staticmethod
    def for_markers(marker_field: str) -> WatermarkStrategy:
        """Moves the watermark by markers in the stream only (a punctuated strategy).

        A record whose `marker_field` is true, at event time T, completes everything up to and
        including T. It needs no other field and is no record: never counted, never routed.

        Raises:
            ValueError: If the name is empty.
        """
        if not marker_field:
            msg = "marker_field (--marker_field) must name the field that marks a marker, got ''"
            raise ValueError(msg)
        return WatermarkStrategy(marker_field=marker_field)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Reports no watermark: nothing is late, and windows fire when the input ends."""
        return WatermarkStrategy()

    def with_timestamp_assigner(self, assigner: str | TimestampAssigner) -> WatermarkStrategy:
        """Takes the event time from a field (name or `FieldTime`) or a function of the record.

        The default is the field `event_time`, its unit detected.
        """
        return replace(
            self, timestamps=FieldTime(assigner) if isinstance(assigner, str) else assigner
        )

    def create_generator(self, state: int | None = None) -> WatermarkGenerator:
        """Makes the generator of one split.

        Args:
            state: The `state` of an earlier generator of this split, to go on from it.
        """
        if self.bound_ms is not None:
            return BoundedOutOfOrdernessGenerator(self.bound_ms, state)
        if self.marker_field is not None:
            return PunctuatedGenerator(self.marker_field, state)
        return NoWatermarksGenerator()

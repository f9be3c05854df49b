"""Watermark strategies: frozen, picklable configuration from which generators are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from beam_lateness.transforms.times import Duration, duration_ms
from beam_lateness.transforms.watermarks.adjusting import AdjustingBound, SelfAdjustingGenerator
from beam_lateness.transforms.watermarks.alignment import WatermarkAlignment
from beam_lateness.transforms.watermarks.custom import (
    GeneratorFactory,
    PerRecordGenerator,
    check_factory,
)
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    BoundedOutOfOrdernessGenerator,
    NoWatermarksGenerator,
    PunctuatedGenerator,
)
from beam_lateness.transforms.watermarks.timestamps import FieldTime, TimestampAssigner

HOLD, ADVANCE = "hold", "advance"
ON_ALL_IDLE: Final = (HOLD, ADVANCE)

_EMIT_INTERVAL_MS: Final = 200  # Flink's pipeline.auto-watermark-interval

_MERGED_AND_ALIGNED: Final = (
    "merged splits (--split_watermarks=merged) have one watermark, and nothing to align "
    "(--max_drift); leave one of the two out"
)


def _default_time() -> FieldTime:
    return FieldTime("event_time")


def _check_marker_field(marker_field: str) -> None:
    if not marker_field:
        msg = "marker_field (--marker_field) must name the field that marks a marker, got ''"
        raise ValueError(msg)


@dataclass(frozen=True)
class WatermarkStrategy:
    """How a source finds event times and tells how complete they are (Flink's `WatermarkStrategy`).

    Make one with a `for_…` method; the `with_…` methods give changed copies. Each split of a
    source gets a generator of its own.

    Watermark: what the generators say, exclusive as Beam means it; the source reports the minimum
    over its active splits.

    Example:
        >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness("15m").with_idleness("1m")
        >>> strategy.with_timestamp_assigner("departed_at").timestamps
        FieldTime(field='departed_at', unit='auto')
    """

    bound_ms: int | None = None
    marker_field: str | None = None
    timestamps: TimestampAssigner = field(default_factory=_default_time)
    adjusting: AdjustingBound | None = None
    generator: GeneratorFactory | None = None
    emit_interval_ms: int = _EMIT_INTERVAL_MS
    merged: bool = False
    idle_timeout_ms: int | None = None
    on_all_idle: str = HOLD
    alignment: WatermarkAlignment | None = None

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
        _check_marker_field(marker_field)
        return WatermarkStrategy(marker_field=marker_field)

    @staticmethod
    def for_self_adjusting_bound(
        floor: Duration, ceiling: Duration, quantile: float = 0.99, period: Duration = "10m"
    ) -> WatermarkStrategy:
        """Measures how late records are, and sets the bound to a quantile of it.

        The bound starts at the ceiling, is set by the first measure (an eighth of the period),
        widens at once when records come later, and narrows by at most a tenth an eighth.

        Args:
            floor: The bound is never below this.
            ceiling: It is never above this.
            quantile: The share of records that the bound is to cover, such as 0.99.
            period: The sliding period of event time in which lateness is measured.

        Raises:
            ValueError: If a duration is none, the floor is above the ceiling, or the quantile is
                not between 0 and 1.
        """
        floor_ms = duration_ms(floor, name="floor (--bound_floor)")
        ceiling_ms = duration_ms(ceiling, name="ceiling (--bound_ceiling)")
        if floor_ms > ceiling_ms:
            msg = (
                f"floor (--bound_floor) must not be above the ceiling (--bound_ceiling), got "
                f"{floor!r} and {ceiling!r}"
            )
            raise ValueError(msg)
        if not 0 < quantile <= 0.9999:
            msg = (
                "quantile (--bound_quantile) must be above 0 and at most 0.9999 (one record in "
                f"10,000 is left out), got {quantile!r}"
            )
            raise ValueError(msg)
        period_ms = duration_ms(period, name="period (--bound_period)", minimum_ms=1_000)
        return WatermarkStrategy(
            adjusting=AdjustingBound(floor_ms, ceiling_ms, quantile, period_ms)
        )

    @staticmethod
    def for_generator(
        generator: GeneratorFactory,
        marker_field: str | None = None,
        emit_interval: Duration = "200ms",
    ) -> WatermarkStrategy:
        """Runs a `WatermarkGenerator` of your own, a record at a time.

        Args:
            generator: Its class, or a function without arguments that makes one; it must be
                importable where the workers run.
            marker_field: Field that, when true, makes a line a marker: the generator sees it, and
                it is no record. None where every line is a record.
            emit_interval: How often a live source calls `on_periodic_emit`; in a replay that
                follows each record.

        Raises:
            ValueError: If it makes no generator, its state is none that a checkpoint can hold, or
                the interval is no duration of at least 1 ms.
        """
        check_factory(generator)
        if marker_field is not None:
            _check_marker_field(marker_field)
        interval_ms = duration_ms(
            emit_interval, name="emit_interval (--emit_interval)", minimum_ms=1
        )
        return WatermarkStrategy(
            marker_field=marker_field, generator=generator, emit_interval_ms=interval_ms
        )

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

    def with_merged_splits(self) -> WatermarkStrategy:
        """Sees all splits as one: one generator, fed by each record as it is read.

        This is what assigning watermarks after the source does in Flink. A replay reads one split
        after the other, in the order of their names: all that lies behind what another split
        reached is late. Leave it out unless you need just that.

        Raises:
            ValueError: If the splits are aligned: one watermark has nothing to align.
        """
        if self.alignment is not None:
            raise ValueError(_MERGED_AND_ALIGNED)
        return replace(self, merged=True)

    def with_idleness(self, timeout: Duration, on_all_idle: str = HOLD) -> WatermarkStrategy:
        """Takes a split of a live source out of the minimum while it has nothing to give.

        A split is idle when polls have found nothing there for longer than the timeout; a split
        that was not polled (back-pressure, a pause) is not. It counts again with its next record.
        A replay has no idle splits.

        Args:
            timeout: How long polls must have found nothing.
            on_all_idle: What the watermark does when all splits are idle: `hold` keeps it at the
                highest they reached; `advance` lets it follow the clock, `bound` behind, so that
                the last windows fire.

        Raises:
            ValueError: If the timeout is no duration of at least 1 ms, or `advance` is asked of a
                strategy without a bound.
        """
        timeout_ms = duration_ms(timeout, name="timeout (--idle_timeout)", minimum_ms=1)
        if on_all_idle not in ON_ALL_IDLE:
            msg = f"on_all_idle (--on_all_idle) must be hold or advance, got {on_all_idle!r}"
            raise ValueError(msg)
        if on_all_idle == ADVANCE and self.bound_ms is None and self.adjusting is None:
            msg = (
                "on_all_idle=advance (--on_all_idle) follows the clock a bound behind, and this "
                "strategy has no bound; use hold"
            )
            raise ValueError(msg)
        return replace(self, idle_timeout_ms=timeout_ms, on_all_idle=on_all_idle)

    def with_watermark_alignment(
        self, group: str, max_drift: Duration, update_interval: Duration = "1s"
    ) -> WatermarkStrategy:
        """Pauses the splits of a live source that are too far ahead of the group's lowest.

        Inside one reader that is exact, at every poll, to a block of records: what is read stays
        within the drift of the lowest split, and so does the state of the windows it opens. Sources
        that name the same group are aligned with each other while they run in one process, as of
        their last update; across processes nothing is promised. Idle and finished splits, and those
        that have no watermark yet, hold nobody. A replay reads the lowest split first anyway.

        Args:
            group: The group's name.
            max_drift: How far a split's watermark may be ahead of the group's lowest.
            update_interval: How often sources of the group tell each other where they stand.

        Raises:
            ValueError: If the group has no name, a duration is none, or the splits are merged.
        """
        if not group:
            msg = f"group must be a name, got {group!r}"
            raise ValueError(msg)
        if self.merged:
            raise ValueError(_MERGED_AND_ALIGNED)
        alignment = WatermarkAlignment(
            group,
            duration_ms(max_drift, name="max_drift (--max_drift)", minimum_ms=1),
            duration_ms(update_interval, name="update_interval", minimum_ms=1),
        )
        return replace(self, alignment=alignment)

    @property
    def reports_nothing(self) -> bool:
        """Whether it is `no_watermarks()`."""
        makers = (self.generator, self.adjusting, self.bound_ms, self.marker_field)
        return all(maker is None for maker in makers)

    def create_generator(
        self,
        state: Any = None,
        clock: Callable[[], float] = time.time,
        *,
        emit_each: bool = True,
    ) -> BlockGenerator:
        """Makes the generator of one split.

        Args:
            state: The `state` of an earlier generator of this split, to go on from it.
            clock: Gives the time in seconds since the epoch, to a custom generator.
            emit_each: Whether a custom generator's tick follows each record, as in a replay.
        """
        if self.generator is not None:
            return PerRecordGenerator(self.generator, clock, emit_each=emit_each, state=state)
        if self.adjusting is not None:
            return SelfAdjustingGenerator(self.adjusting, state)
        if self.bound_ms is not None:
            return BoundedOutOfOrdernessGenerator(self.bound_ms, state)
        if self.marker_field is not None:
            return PunctuatedGenerator(self.marker_field, state)
        return NoWatermarksGenerator()

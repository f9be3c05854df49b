"""Watermark strategies: configuration that makes generators."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.adjusting import AdjustingBound, SelfAdjustingGenerator
from beam_lateness.transforms.watermarks.alignment import WatermarkAlignment
from beam_lateness.transforms.watermarks.custom import PerRecordGenerator
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    BoundedOutOfOrdernessGenerator,
    NoWatermarksGenerator,
    PunctuatedGenerator,
)
from beam_lateness.transforms.watermarks.strategy import ADVANCE, HOLD, WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.transforms.watermarks.policies import (
    Clock,
    LimitedDelay,
    MaxTimestamp,
    ProcessingTime,
    see,
)

BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness("15m")
STRATEGIES = [
    (BOUNDED, BoundedOutOfOrdernessGenerator),
    (WatermarkStrategy.for_monotonous_timestamps(), BoundedOutOfOrdernessGenerator),
    (WatermarkStrategy.for_markers("end"), PunctuatedGenerator),
    (WatermarkStrategy.no_watermarks(), NoWatermarksGenerator),
    (WatermarkStrategy.for_self_adjusting_bound("1s", "1m"), SelfAdjustingGenerator),
    (WatermarkStrategy.for_generator(MaxTimestamp), PerRecordGenerator),
    (WatermarkStrategy.for_generator(partial(LimitedDelay, 5), "end"), PerRecordGenerator),
]
UNBOUNDED = [
    WatermarkStrategy.for_markers("end"),
    WatermarkStrategy.no_watermarks(),
    WatermarkStrategy.for_generator(MaxTimestamp),
]
NO_DURATION: list[Any] = ["-1s", -1, "soon", None, True, float("nan")]


def assign(record: Mapping[str, Any]) -> int:
    """Gives a record's event time."""
    return int(record["at"])


def unlike(strategy: WatermarkStrategy, other: WatermarkStrategy) -> set[str]:
    """The fields in which two strategies differ."""
    names = [field.name for field in fields(WatermarkStrategy)]
    return {name for name in names if getattr(strategy, name) != getattr(other, name)}


@pytest.mark.parametrize(("strategy", "kind"), STRATEGIES)
def test_a_strategy_makes_its_generator(
    strategy: WatermarkStrategy, kind: type[BlockGenerator]
) -> None:
    """One for each split, each without a watermark yet."""
    first, second = strategy.create_generator(), strategy.create_generator()
    assert type(first) is type(second) is kind
    assert first is not second
    assert first.watermark_ms == NO_WATERMARK_MS


@pytest.mark.parametrize(("strategy", "kind"), STRATEGIES)
def test_a_strategy_makes_a_generator_that_goes_on(
    strategy: WatermarkStrategy, kind: type[BlockGenerator]
) -> None:
    """From the state of an earlier one."""
    first = strategy.create_generator()
    see(first, [50_000, 70_000])
    second = strategy.create_generator(first.state)
    assert type(second) is kind
    assert second.watermark_ms == first.watermark_ms
    assert see(second, [60_000, 900_000]) == see(first, [60_000, 900_000])


@pytest.mark.parametrize(("strategy", "kind"), STRATEGIES)
def test_a_strategy_survives_pickling(strategy: WatermarkStrategy, kind: type) -> None:
    """It travels to the workers, whatever was changed about it."""
    for changed in (
        strategy,
        strategy.with_merged_splits().with_timestamp_assigner(assign),
        strategy.with_idleness("1m").with_watermark_alignment("group", "30s"),
    ):
        copy: WatermarkStrategy = pickle.loads(pickle.dumps(changed))
        # Partials of one function compare as different objects.
        assert unlike(copy, changed) <= {"generator"}
        assert type(copy.create_generator()) is kind


def test_a_strategy_cannot_be_changed() -> None:
    """It is shared by all splits."""
    strategy: Any = BOUNDED
    with pytest.raises(FrozenInstanceError):
        strategy.bound_ms = 0


def test_monotonous_is_bounded_by_zero() -> None:
    """The two are one strategy."""
    assert WatermarkStrategy.for_monotonous_timestamps() == (
        WatermarkStrategy.for_bounded_out_of_orderness(0)
    )


@pytest.mark.parametrize("bound", NO_DURATION)
def test_a_bound_that_is_no_duration_is_refused_by_its_flag(bound: Any) -> None:
    """The error names the parameter and the flag."""
    with pytest.raises(ValueError, match=r"^bound \(--bound\)"):
        WatermarkStrategy.for_bounded_out_of_orderness(bound)


def test_a_marker_field_needs_a_name() -> None:
    """An empty name is refused by its flag."""
    with pytest.raises(ValueError, match=r"^marker_field \(--marker_field\)"):
        WatermarkStrategy.for_markers("")


def test_the_event_time_is_found_by_name_by_rule_or_by_function() -> None:
    """A name means a field with its unit detected; the rest of the strategy stays."""
    assert BOUNDED.timestamps == FieldTime("event_time", "auto")
    named = BOUNDED.with_timestamp_assigner("at")
    assert named.timestamps == FieldTime("at", "auto")
    assert unlike(named, BOUNDED) == {"timestamps"}
    rule = FieldTime("at", "s")
    assert BOUNDED.with_timestamp_assigner(rule).timestamps is rule
    assert BOUNDED.with_timestamp_assigner(assign).timestamps is assign


def test_a_self_adjusting_bound_has_floor_ceiling_quantile_and_period() -> None:
    """All durations as elsewhere; the defaults are the 99th percentile of ten minutes."""
    default = WatermarkStrategy.for_self_adjusting_bound("200ms", timedelta(minutes=1))
    assert default.adjusting == AdjustingBound(200, 60_000, 0.99, 600_000)
    own = WatermarkStrategy.for_self_adjusting_bound(1, 2, quantile=0.5, period="1h")
    assert own.adjusting == AdjustingBound(1_000, 2_000, 0.5, 3_600_000)
    assert own.bound_ms is None


@pytest.mark.parametrize("wrong", NO_DURATION)
@pytest.mark.parametrize("name", ["floor", "ceiling", "period"])
def test_a_duration_of_a_self_adjusting_bound_is_refused_by_its_flag(name: str, wrong: Any) -> None:
    """The error names the parameter and the flag."""
    arguments = {"floor": "1s", "ceiling": "1m", "period": "10m", name: wrong}
    with pytest.raises(ValueError, match=rf"^{name} \(--bound_{name}\)"):
        WatermarkStrategy.for_self_adjusting_bound(**arguments)


def test_a_floor_above_the_ceiling_is_refused() -> None:
    """Both flags, and both values."""
    message = r"floor \(--bound_floor\) .* above the ceiling \(--bound_ceiling\), got '2m' and 60"
    with pytest.raises(ValueError, match=message):
        WatermarkStrategy.for_self_adjusting_bound("2m", 60)
    WatermarkStrategy.for_self_adjusting_bound("1m", 60)  # the same one is a fixed bound


@pytest.mark.parametrize("quantile", [0, -0.5, 1, 0.99999, 99, float("nan")])
def test_a_quantile_is_a_share_below_one(quantile: float) -> None:
    """99 is no 99th percentile, and all records is no quantile."""
    message = rf"^quantile \(--bound_quantile\) must be above 0 and at most 0\.9999.*{quantile}"
    with pytest.raises(ValueError, match=message):
        WatermarkStrategy.for_self_adjusting_bound("1s", "1m", quantile)


def test_a_period_is_a_second_at_least() -> None:
    """An eighth of it must be some milliseconds."""
    with pytest.raises(ValueError, match=r"^period \(--bound_period\) .* 1s and"):
        WatermarkStrategy.for_self_adjusting_bound("1s", "1m", period="999ms")
    WatermarkStrategy.for_self_adjusting_bound("1s", "1m", period="1s")


def test_a_custom_generator_ticks_each_200_ms_unless_told_otherwise() -> None:
    """As Flink does; the interval and the marker field are the strategy's."""
    strategy = WatermarkStrategy.for_generator(MaxTimestamp)
    assert (strategy.emit_interval_ms, strategy.marker_field) == (200, None)
    assert strategy.generator is MaxTimestamp
    own = WatermarkStrategy.for_generator(MaxTimestamp, "end", emit_interval="1s")
    assert unlike(own, strategy) == {"emit_interval_ms", "marker_field"}
    assert (own.emit_interval_ms, own.marker_field) == (1_000, "end")


def test_a_custom_generator_gets_the_clock_and_the_pace_of_its_source() -> None:
    """In a replay a tick follows each record, and the clock stands at the largest event time."""
    strategy, clock = WatermarkStrategy.for_generator(ProcessingTime), Clock(7)
    replayed = strategy.create_generator(clock=clock)
    live = strategy.create_generator(clock=clock, emit_each=False)
    assert see(replayed, [20_000, 30_000, 10_000]) == [19_999, 29_999, 29_999]
    assert see(strategy.create_generator(replayed.state), [15_000]) == [29_999]
    assert see(live, [0]) == [NO_WATERMARK_MS]
    live.on_tick()
    assert live.watermark_ms == 6_999


def test_merged_splits_change_nothing_else() -> None:
    """It is one more word about the same strategy."""
    merged = BOUNDED.with_merged_splits()
    assert merged.merged
    assert unlike(merged, BOUNDED) == {"merged"}


def test_idleness_holds_the_watermark_where_all_are_idle_unless_told_otherwise() -> None:
    """Advance is for those who can live with what it makes late."""
    held = BOUNDED.with_idleness("1m")
    assert (held.idle_timeout_ms, held.on_all_idle) == (60_000, HOLD)
    assert unlike(held, BOUNDED) == {"idle_timeout_ms"}
    advancing = BOUNDED.with_idleness(0.5, on_all_idle="advance")
    assert (advancing.idle_timeout_ms, advancing.on_all_idle) == (500, ADVANCE)


@pytest.mark.parametrize("timeout", [0, *NO_DURATION])
def test_an_idle_timeout_is_a_duration_of_at_least_a_millisecond(timeout: Any) -> None:
    """The error names the parameter and the flag."""
    with pytest.raises(ValueError, match=r"^timeout \(--idle_timeout\)"):
        BOUNDED.with_idleness(timeout)


def test_all_idle_is_held_or_advanced() -> None:
    """There is no third way, and the error names both and the flag."""
    message = r"^on_all_idle \(--on_all_idle\) must be hold or advance, got 'wait'$"
    with pytest.raises(ValueError, match=message):
        BOUNDED.with_idleness("1m", on_all_idle="wait")


@pytest.mark.parametrize("strategy", UNBOUNDED)
def test_only_a_strategy_with_a_bound_advances(strategy: WatermarkStrategy) -> None:
    """The clock is followed a bound behind; the error says what to do without one."""
    with pytest.raises(ValueError, match=r"\(--on_all_idle\) .*no bound; use hold"):
        strategy.with_idleness("1m", on_all_idle=ADVANCE)
    assert strategy.with_idleness("1m").idle_timeout_ms == 60_000


@pytest.mark.parametrize(
    "strategy",
    [
        BOUNDED,
        WatermarkStrategy.for_monotonous_timestamps(),
        WatermarkStrategy.for_self_adjusting_bound("1s", "1m"),
    ],
)
def test_every_strategy_with_a_bound_advances(strategy: WatermarkStrategy) -> None:
    """A bound of 0 is one, and one that adjusts itself too."""
    assert strategy.with_idleness("1m", on_all_idle=ADVANCE).on_all_idle == ADVANCE


def test_alignment_is_a_group_a_drift_and_an_interval() -> None:
    """Sources tell each other each second unless told otherwise."""
    aligned = BOUNDED.with_watermark_alignment("payments", "30s")
    assert aligned.alignment == WatermarkAlignment("payments", 30_000, 1_000)
    assert unlike(aligned, BOUNDED) == {"alignment"}
    often = BOUNDED.with_watermark_alignment("payments", 30, update_interval="200ms")
    assert often.alignment == WatermarkAlignment("payments", 30_000, 200)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((("g", wrong)), r"^max_drift \(--max_drift\)") for wrong in [0, *NO_DURATION]),
        *(((("g", "1s", wrong)), "^update_interval ") for wrong in [0, *NO_DURATION]),
        (("", "30s"), "^group must be a name, got ''"),
    ],
)
def test_an_alignment_that_makes_no_sense_is_refused_by_name(
    arguments: tuple[Any, ...], message: str
) -> None:
    """The error names the parameter, and the flag where there is one."""
    with pytest.raises(ValueError, match=message):
        BOUNDED.with_watermark_alignment(*arguments)


def test_merged_splits_and_alignment_exclude_each_other() -> None:
    """In either order: one watermark has nothing to align. The error names both flags."""
    message = r"^merged splits \(--split_watermarks=merged\) .* to align \(--max_drift\); leave one"
    with pytest.raises(ValueError, match=message):
        BOUNDED.with_merged_splits().with_watermark_alignment("g", "30s")
    with pytest.raises(ValueError, match=message):
        BOUNDED.with_watermark_alignment("g", "30s").with_merged_splits()

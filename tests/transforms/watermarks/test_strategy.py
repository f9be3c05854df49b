"""Watermark strategies: configuration that makes generators."""

from __future__ import annotations

import pickle

import pytest

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    BoundedOutOfOrdernessGenerator,
    NoWatermarksGenerator,
    PunctuatedGenerator,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime

STRATEGIES = [
    WatermarkStrategy.for_bounded_out_of_orderness("15m"),
    WatermarkStrategy.for_monotonous_timestamps(),
    WatermarkStrategy.for_markers("end"),
    WatermarkStrategy.no_watermarks(),
]


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        (STRATEGIES[0], BoundedOutOfOrdernessGenerator),
        (STRATEGIES[1], BoundedOutOfOrdernessGenerator),
        (STRATEGIES[2], PunctuatedGenerator),
        (STRATEGIES[3], NoWatermarksGenerator),
    ],
)
def test_a_strategy_makes_its_generator(
    strategy: WatermarkStrategy, kind: type[BlockGenerator]
) -> None:
    """One for each split, each without a watermark yet."""
    first, second = strategy.create_generator(), strategy.create_generator()
    assert type(first) is type(second) is kind
    assert first is not second
    assert first.watermark_ms == NO_WATERMARK_MS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_survives_pickling(strategy: WatermarkStrategy) -> None:
    """It travels to the workers."""
    assert pickle.loads(pickle.dumps(strategy)) == strategy


def test_monotonous_is_bounded_by_zero() -> None:
    """The two are one strategy."""
    assert WatermarkStrategy.for_monotonous_timestamps() == (
        WatermarkStrategy.for_bounded_out_of_orderness(0)
    )


@pytest.mark.parametrize("bound", ["-1s", -1, "soon"])
def test_a_bound_that_is_no_duration_is_refused_by_its_flag(bound: str | int) -> None:
    """The error names the parameter and the flag."""
    with pytest.raises(ValueError, match=r"bound \(--bound\)"):
        WatermarkStrategy.for_bounded_out_of_orderness(bound)


def test_a_marker_field_needs_a_name() -> None:
    """An empty name is refused by its flag."""
    with pytest.raises(ValueError, match=r"marker_field \(--marker_field\)"):
        WatermarkStrategy.for_markers("")


def test_the_event_time_is_found_by_name_by_rule_or_by_function() -> None:
    """A name means a field with its unit detected; the rest of the strategy stays."""
    strategy = STRATEGIES[0]
    assert strategy.timestamps == FieldTime("event_time", "auto")
    named = strategy.with_timestamp_assigner("at")
    assert named.timestamps == FieldTime("at", "auto")
    assert named.bound_ms == strategy.bound_ms
    rule = FieldTime("at", "s")
    assert strategy.with_timestamp_assigner(rule).timestamps is rule
    assert strategy.with_timestamp_assigner(len).timestamps is len

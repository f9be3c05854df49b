"""The public cases that concern one watermark: C21, C23 and C39."""

from __future__ import annotations

from functools import partial

import pytest

from beam_lateness.transforms.beam_time import to_ms
from beam_lateness.transforms.watermarks.estimator import (
    GroupState,
    GroupStateCoder,
    GroupWatermarkEstimator,
    exclusive,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.transforms.watermarks.policies import Clock, LimitedDelay, MaxTimestamp, see

STRATEGIES = [
    WatermarkStrategy.for_monotonous_timestamps(),
    WatermarkStrategy.for_generator(MaxTimestamp),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_monotonic_watermark_survives_a_late_record(strategy: WatermarkStrategy) -> None:
    """C21: 10, 5, 12 give 10, 10, 12, and no exception; built in or custom."""
    after = see(strategy.create_generator(), [10_000, 5_000, 12_000])
    assert [exclusive(each) for each in after] == [10_000, 10_000, 12_000]


def test_a_future_stamp_moves_the_kafka_policy_no_further_than_the_clock() -> None:
    """C23: bound 60, now 1000, a record of 5000: 940, and never 4940."""
    strategy = WatermarkStrategy.for_generator(partial(LimitedDelay, 60_000))
    generator = strategy.create_generator(clock=Clock(1_000), emit_each=False)
    see(generator, [5_000_000])
    generator.on_tick()
    assert exclusive(generator.watermark_ms) == 940_000


def test_the_kafka_policy_follows_the_clock_up_to_the_future_stamp() -> None:
    """C23, later: it is the clock less the bound until the clock gets there."""
    clock = Clock(1_000)
    strategy = WatermarkStrategy.for_generator(partial(LimitedDelay, 60_000))
    generator = strategy.create_generator(clock=clock, emit_each=False)
    see(generator, [5_000_000])
    seen = []
    for clock.seconds in (2_000, 5_000, 9_000):
        generator.on_tick()
        seen.append(exclusive(generator.watermark_ms))
    assert seen == [1_940_000, 4_940_000, 4_940_000]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_watermark_restored_is_in_whole_ms_and_gives_the_same_verdicts(
    strategy: WatermarkStrategy,
) -> None:
    """C39: after a record at 1.0000015 s, down to the first record that is behind."""
    event_time_ms = FieldTime("at", "s").to_ms(1.0000015)
    generator = strategy.create_generator()
    see(generator, [event_time_ms])
    state = GroupState(generator.watermark_ms)
    reported = GroupWatermarkEstimator(state).current_watermark()
    coder = GroupStateCoder()
    restored = GroupWatermarkEstimator(coder.decode(coder.encode(state))).current_watermark()
    assert restored.micros % 1000 == 0
    assert restored >= reported
    assert to_ms(restored) == event_time_ms == 1_000
    for end_ms in (999, 1_000, 1_001):  # of a window that a record may come to
        assert (to_ms(restored) >= end_ms) == (to_ms(reported) >= end_ms) == (end_ms <= 1_000)

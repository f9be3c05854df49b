"""The self-adjusting bound, record by record: blocks, checkpoints and runs make no difference."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import NO_WATERMARK_MS, Millis
from beam_lateness.transforms.watermarks.adjusting import AdjustingBound, SelfAdjustingGenerator
from beam_lateness.transforms.watermarks.generators import BoundChange, HighestWatermark
from tests.transforms.watermarks.policies import see

FEW = settings(max_examples=25, deadline=None)


def adjusting(config: AdjustingBound) -> SelfAdjustingGenerator:
    """A new generator."""
    return SelfAdjustingGenerator(config)


def run(generator: SelfAdjustingGenerator, times: Millis) -> list[int]:
    """The watermark after each record; a block is left as it was."""
    times.flags.writeable = False
    after: list[int] = generator.on_events(times, np.zeros(len(times), dtype=np.bool_)).tolist()
    return after


# Small eighths and jumps of lateness, so that a short stream sees every kind of change.
@st.composite
def cases(draw: st.DrawFn) -> tuple[AdjustingBound, Millis]:
    """A configuration, and a stream of up to 1,500 records that gives it something to do."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    eighth_ms = draw(st.sampled_from([30, 300, 3_000]))
    config = AdjustingBound(
        draw(st.sampled_from([0, 5])),
        draw(st.sampled_from([5, 2_000])),
        draw(st.sampled_from([0.5, 0.9, 0.99])),
        eighth_ms * 8,
    )
    scales = rng.choice([0.1, 3, 50, 900], size=4)
    delays = np.concatenate([rng.exponential(scale, draw(st.integers(1, 375))) for scale in scales])
    steps = rng.choice([0, 1, 2, eighth_ms * 3], size=len(delays), p=[0.3, 0.5, 0.19, 0.01])
    times: Millis = 1_700_000_000_000 + np.cumsum(steps) - delays.astype(np.int64)
    return config, times.astype(np.int64)


@FEW
@given(cases(), st.data())
def test_block_sizes_do_not_matter(
    case: tuple[AdjustingBound, Millis], data: st.DataObject
) -> None:
    """The same stamps, changes and state, whatever the blocks."""
    config, times = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=6)))
    whole, part = adjusting(config), adjusting(config)
    after = [run(part, times[low:high]) for low, high in pairwise([0, *cuts, len(times)])]
    assert [each for block in after for each in block] == run(whole, times)
    assert part.take_changes() == whole.take_changes()
    assert part.state == whole.state


@FEW
@given(cases(), st.data())
def test_a_generator_goes_on_from_its_state_at_any_record(
    case: tuple[AdjustingBound, Millis], data: st.DataObject
) -> None:
    """Through JSON, the sketch as it was: the future is the same one."""
    config, times = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), min_size=1, max_size=4)))
    whole, part = adjusting(config), adjusting(config)
    after, changes = list[int](), list[BoundChange]()
    for low, high in pairwise([0, *cuts, len(times)]):
        state = json.loads(json.dumps(part.state))
        changes += part.take_changes()  # they are told, and not a part of the state
        part = SelfAdjustingGenerator(config, state)
        assert part.state == state
        after += run(part, times[low:high])
    assert after == run(whole, times)
    assert changes + part.take_changes() == whole.take_changes()
    assert (part.watermark_ms, part.bound_ms) == (whole.watermark_ms, whole.bound_ms)
    assert part.state == whole.state


@FEW
@given(cases())
def test_one_record_at_a_time_gives_what_a_block_gives(
    case: tuple[AdjustingBound, Millis],
) -> None:
    """By Flink's two callbacks."""
    config, times = case
    whole, single, output, after = adjusting(config), adjusting(config), HighestWatermark(), []
    for event_time_ms in times.tolist():
        single.on_event({}, event_time_ms, output)
        single.on_periodic_emit(output)
        after.append(output.watermark_ms)
    assert after == run(whole, times)
    assert single.state == whole.state
    assert single.take_changes() == whole.take_changes()


@FEW
@given(cases())
def test_two_runs_are_equal(case: tuple[AdjustingBound, Millis]) -> None:
    """It draws no random numbers and looks at no clock."""
    config, times = case
    first, second = adjusting(config), adjusting(config)
    assert run(first, times) == run(second, times)
    assert first.state == second.state


@FEW
@given(cases())
def test_the_watermark_is_the_largest_less_the_bound_and_never_goes_back(
    case: tuple[AdjustingBound, Millis],
) -> None:
    """The bound that holds after each record, within its limits."""
    config, times = case
    generator, watermark_ms, largest = adjusting(config), NO_WATERMARK_MS, int(times[0])
    for event_time_ms in times.tolist():
        bound_ms = generator.bound_ms
        (after,) = see(generator, [event_time_ms])
        largest = max(largest, event_time_ms)
        assert config.floor_ms <= generator.bound_ms <= config.ceiling_ms
        # A narrower bound shows at once; a wider one cannot take back what was emitted.
        now = largest - min(bound_ms, generator.bound_ms) - 1
        watermark_ms = max(watermark_ms, now)
        assert after == generator.watermark_ms == watermark_ms


def test_what_was_measured_longer_ago_than_the_period_is_forgotten() -> None:
    """However few records there are since: by age, and by a tenth for each eighth that went by."""
    config = AdjustingBound(0, 60_000, 0.5, 80_000)
    generator = adjusting(config)
    busy = np.arange(0, 40_000, 100)
    busy[1::2] -= 30_000  # every second record is 30 s late
    run(generator, busy)
    assert generator.bound_ms > 20_000
    hours = 3_600_000 * np.arange(1, 5)
    run(generator, 40_000 + hours)  # four in time: two are enough to measure a median
    assert generator.bound_ms == 0

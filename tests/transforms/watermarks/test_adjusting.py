"""The self-adjusting bound: it follows the lateness that it measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import pytest

from beam_lateness.transforms.times import NO_WATERMARK_MS, Millis
from beam_lateness.transforms.watermarks.adjusting import AdjustingBound, SelfAdjustingGenerator
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    BoundChange,
    HighestWatermark,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND

FLOOR_MS: Final = 200
CEILING_MS: Final = MINUTE
PERIOD_MS: Final = 8 * MINUTE  # so that an eighth is a minute
EIGHTH_MS: Final = MINUTE
STEP_MS: Final = 50  # between records: 1,200 an eighth

CONFIG: Final = AdjustingBound(FLOOR_MS, CEILING_MS, 0.99, PERIOD_MS)
ERROR: Final = 0.02  # of the sketch at P99, as the module states it

Draw: TypeAlias = Callable[[np.random.Generator, int], Millis]


def exponential(p99_ms: float) -> Draw:
    """Delays whose 99th percentile is known: the mean of an exponential times ln 100."""
    return lambda rng, n: rng.exponential(p99_ms / np.log(100), n).astype(np.int64)


def stream(*phases: tuple[int, Draw], seed: int = 0, step_ms: int = STEP_MS) -> Millis:
    """Event times in order of arrival: one record each step, some of them behind.

    Args:
        phases: How long each takes (ms), and how late its records are.
        seed: Of the delays.
        step_ms: Between records.
    """
    rng = np.random.default_rng(seed)
    delays = np.concatenate([draw(rng, length // step_ms) for length, draw in phases])
    delays[:: SECOND // step_ms] = 0  # one a second is in time, so that eighths end on the minute
    times: Millis = np.arange(len(delays), dtype=np.int64) * step_ms - delays
    return times


def lateness(times: Millis) -> Millis:
    """How far each record is behind the largest before it."""
    largest = np.maximum.accumulate(times)
    before = np.append(largest[0], largest[:-1])
    late: Millis = np.maximum(before - times, 0)
    return late


def run(generator: BlockGenerator, times: Millis) -> list[int]:
    """The watermark after each record."""
    after: list[int] = generator.on_events(times, np.zeros(len(times), dtype=np.bool_)).tolist()
    return after


def adjusting(config: AdjustingBound = CONFIG) -> SelfAdjustingGenerator:
    """A new generator."""
    return SelfAdjustingGenerator(config)


def bound_at(changes: list[BoundChange], event_time_ms: int) -> int:
    """The bound that held at an event time."""
    bound_ms = CEILING_MS
    for change in changes:
        if change.event_time_ms <= event_time_ms:
            bound_ms = change.after_ms
    return bound_ms


NOON: Final = 30 * MINUTE
RECOVERY: Final = NOON + 20 * MINUTE
END: Final = RECOVERY + 60 * MINUTE


@pytest.fixture(scope="module")
def noon() -> tuple[Millis, list[BoundChange], int]:
    """W12: a stream whose 99th percentile goes from 1 s to 20 s at noon, and back; its changes."""
    times = stream(
        (NOON, exponential(SECOND)),
        (RECOVERY - NOON, exponential(20 * SECOND)),
        (END - RECOVERY, exponential(SECOND)),
    )
    generator = adjusting()
    run(generator, times)
    return times, generator.take_changes(), generator.bound_ms


def test_the_bound_follows_when_the_source_becomes_later(
    noon: tuple[Millis, list[BoundChange], int],
) -> None:
    """W12: within one sliding period of noon it covers the new lateness; before, the old one."""
    times, changes, _ = noon
    assert SECOND // 2 < bound_at(changes, NOON) < 2 * SECOND
    # In fact much sooner: it is compared every 256 records, and at the end of each eighth.
    soon = next(c.event_time_ms for c in changes if c.after_ms > 10 * SECOND)
    assert NOON < soon <= NOON + EIGHTH_MS + 256 * STEP_MS
    after_noon = lateness(times)[NOON // STEP_MS : RECOVERY // STEP_MS]
    needed = float(np.quantile(after_noon, 0.99))
    for minute in range(NOON + PERIOD_MS, RECOVERY + 1, MINUTE):
        assert needed * (1 - ERROR) <= bound_at(changes, minute) <= CEILING_MS


def test_the_bound_narrows_slowly_when_the_source_recovers(
    noon: tuple[Millis, list[BoundChange], int],
) -> None:
    """W12: not while the bad time is in its period, and then by at most a tenth an eighth."""
    _, changes, final_ms = noon
    at_recovery = bound_at(changes, RECOVERY)
    # Seven eighths later one eighth of the bad time is still among the eight.
    assert bound_at(changes, RECOVERY + PERIOD_MS - EIGHTH_MS) > at_recovery // 2
    assert final_ms < 2 * SECOND
    narrowing = [change for change in changes[1:] if change.after_ms < change.before_ms]
    for change in narrowing:
        assert change.after_ms >= change.before_ms * 9 // 10
    for earlier, later in pairwise(narrowing):
        assert later.event_time_ms - earlier.event_time_ms >= EIGHTH_MS
    # From 20 s to 2 s takes as long as a tenth off each time takes.
    steps = np.log(at_recovery / (2 * SECOND)) / np.log(10 / 9)
    reached = next(c for c in changes if c.event_time_ms > RECOVERY and c.after_ms < 2 * SECOND)
    assert reached.event_time_ms >= RECOVERY + steps * EIGHTH_MS


def test_every_change_comes_when_the_rule_says() -> None:
    """W12, with two kinds of records only, so that each eighth measures exactly what is late."""

    def two_in_a_hundred(late_ms: int) -> Draw:
        return lambda rng, n: np.where(np.arange(n) % 50 == 1, late_ms + STEP_MS, 0)

    times = stream(
        (NOON, two_in_a_hundred(SECOND)),
        (RECOVERY - NOON, two_in_a_hundred(20 * SECOND)),
        (END - RECOVERY, two_in_a_hundred(SECOND)),
    )
    generator = adjusting()
    run(generator, times)
    # The first eighth sets it, and the 256th record after noon widens it: at once, not at an end.
    expected = [
        BoundChange(EIGHTH_MS, CEILING_MS, SECOND),
        BoundChange(NOON + 256 * STEP_MS, SECOND, 20 * SECOND),
    ]
    at_ms, bound_ms = RECOVERY + PERIOD_MS, 20 * SECOND  # the bad time has left the period
    while bound_ms > SECOND:
        narrower = max(bound_ms * 9 // 10, SECOND)
        expected.append(BoundChange(at_ms, bound_ms, narrower))
        at_ms, bound_ms = at_ms + EIGHTH_MS, narrower
    assert generator.take_changes() == expected


def test_every_change_is_told_once_and_they_chain(
    noon: tuple[Millis, list[BoundChange], int],
) -> None:
    """W12: from the ceiling to the bound that holds now, without a gap, within the limits."""
    _, changes, final_ms = noon
    assert changes[0].before_ms == CEILING_MS
    assert changes[-1].after_ms == final_ms
    for earlier, later in pairwise(changes):
        assert earlier.after_ms == later.before_ms
        assert earlier.event_time_ms <= later.event_time_ms
    for change in changes:
        assert change.before_ms != change.after_ms
        assert FLOOR_MS <= change.after_ms <= CEILING_MS


def test_changes_that_were_taken_are_not_told_again() -> None:
    """However often they are asked for: what the parts tell is what the whole tells."""
    times = stream((NOON, exponential(SECOND)), (NOON, exponential(20 * SECOND)))
    whole, part, told = adjusting(), adjusting(), list[BoundChange]()
    run(whole, times)
    for block in np.array_split(times, 50):
        run(part, block)
        told += part.take_changes()
        assert part.take_changes() == []
    assert told == whole.take_changes()
    assert len(told) > 5


def test_the_bound_starts_at_the_ceiling_and_is_set_by_the_first_eighth() -> None:
    """Nothing is known before that, and waiting loses nothing."""
    times = stream((EIGHTH_MS + SECOND, exponential(SECOND)))
    last = int(np.flatnonzero(times >= EIGHTH_MS)[0])  # the record that ends the eighth
    generator = adjusting()
    after = run(generator, times[:last])
    largest = np.maximum.accumulate(times[:last])
    assert after == (largest - CEILING_MS - 1).tolist()
    assert (generator.bound_ms, generator.take_changes()) == (CEILING_MS, [])
    (with_it,) = run(generator, times[last : last + 1])
    (change,) = generator.take_changes()
    assert change == BoundChange(EIGHTH_MS, CEILING_MS, generator.bound_ms)
    assert with_it == EIGHTH_MS - generator.bound_ms - 1
    measured = np.quantile(lateness(times[: last + 1]), 0.99)
    assert generator.bound_ms == pytest.approx(measured, rel=ERROR)


@pytest.mark.parametrize("quantile", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "draw",
    [
        exponential(5 * SECOND),
        lambda rng, n: rng.lognormal(6, 1, n).astype(np.int64),
        lambda rng, n: rng.integers(0, 8 * SECOND, n),
        lambda rng, n: np.where(rng.random(n) < 0.02, 9 * SECOND, rng.integers(0, 500, n)),
    ],
    ids=["exponential", "lognormal", "uniform", "two kinds"],
)
def test_the_bound_covers_its_quantile_of_the_last_period(
    draw: Draw, seed: int, quantile: float
) -> None:
    """At the end of each eighth of a steady source: as numpy counts those that it leaves out."""
    generator = adjusting(replace(CONFIG, quantile=quantile))
    times = stream((3 * PERIOD_MS + SECOND, draw), seed=seed)
    late, a_period = lateness(times), PERIOD_MS // STEP_MS
    cuts = range(a_period + 1, len(times), EIGHTH_MS // STEP_MS)  # with the record that ends it
    for low, high in pairwise([0, *cuts]):
        run(generator, times[low:high])
        period = late[high - a_period : high]
        left_out = float(np.mean(period > generator.bound_ms))
        assert left_out <= (1 - quantile) * (1 + ERROR)
    assert len(cuts) > 16


def test_the_bound_is_no_wider_than_the_worst_that_it_has_measured() -> None:
    """A ceiling would cover everything: an eighth is measured every 256 records, and at its end."""
    times = stream((4 * PERIOD_MS + STEP_MS, exponential(5 * SECOND)))
    generator = adjusting()
    run(generator, times)
    eighths = lateness(times)[1:].reshape(-1, EIGHTH_MS // STEP_MS)
    measured = [eighths[:, :count] for count in (*range(256, eighths.shape[1], 256), None)]
    worst = max(float(np.quantile(part, 0.99, axis=1).max()) for part in measured)
    assert generator.bound_ms <= worst * (1 + ERROR)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99, 0.9999])
def test_too_few_records_never_change_the_bound(quantile: float) -> None:
    """A quantile of fewer records than it leaves one out of means nothing."""
    config = replace(CONFIG, quantile=quantile)
    assert config.evidence == {0.5: 2, 0.9: 10, 0.99: 100, 0.9999: 10_000}[quantile]
    generator = adjusting(config)
    times = np.arange(config.evidence - 1) * EIGHTH_MS * 2  # each ends an eighth
    run(generator, times)
    assert (generator.bound_ms, generator.take_changes()) == (CEILING_MS, [])
    run(generator, times[-1:] + EIGHTH_MS)  # the one that was missing: all were in time
    assert generator.bound_ms == FLOOR_MS


def test_a_short_burst_of_late_records_below_the_quantile_does_not_move_it() -> None:
    """One record in 200, an hour behind, is what the 99th percentile leaves out."""
    times = stream((2 * PERIOD_MS, exponential(SECOND)))
    times[101::200] -= 60 * MINUTE
    generator = adjusting()
    run(generator, times)
    assert generator.bound_ms < 3 * SECOND


@pytest.mark.parametrize(
    ("p99_ms", "expected"), [(1, FLOOR_MS), (10 * MINUTE, CEILING_MS)], ids=["floor", "ceiling"]
)
def test_the_bound_stays_within_floor_and_ceiling(p99_ms: int, expected: int) -> None:
    """However early or late the records are."""
    generator = adjusting()
    run(generator, stream((PERIOD_MS, exponential(p99_ms))))
    assert generator.bound_ms == expected


def test_a_floor_that_is_the_ceiling_is_a_fixed_bound() -> None:
    """It measures, and has nothing to decide."""
    times = stream((PERIOD_MS, exponential(20 * SECOND)))
    generator = WatermarkStrategy.for_self_adjusting_bound("5s", "5s").create_generator()
    fixed = WatermarkStrategy.for_bounded_out_of_orderness("5s").create_generator()
    assert run(generator, times) == run(fixed, times)
    assert generator.take_changes() == []


def test_there_is_no_watermark_before_the_first_record() -> None:
    """Nor a state; an empty block and a tick change nothing."""
    generator, output = adjusting(), HighestWatermark()
    assert run(generator, np.empty(0, dtype=np.int64)) == []
    generator.on_periodic_emit(output)
    generator.on_tick()
    assert generator.watermark_ms == output.watermark_ms == NO_WATERMARK_MS
    assert generator.state is None
    assert generator.bound_ms == CEILING_MS

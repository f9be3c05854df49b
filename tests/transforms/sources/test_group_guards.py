"""What keeps a watermark from running away: the guard against the future, the bound, the end."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from apache_beam.utils.timestamp import MAX_TIMESTAMP

from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS
from beam_lateness.transforms.watermarks.estimator import GroupState, GroupWatermarkEstimator
from beam_lateness.transforms.watermarks.generators import WatermarkGenerator, WatermarkOutput
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.model import Event
from tests.transforms.sources.memory import (
    Clock,
    Live,
    MemoryInput,
    at,
    drain,
    stamped,
    too_late,
    written,
)

ZERO = WatermarkStrategy.for_monotonous_timestamps()
MINUTE = WatermarkStrategy.for_bounded_out_of_orderness("1m")
START_S = 1_357_035_300.0
MINUTE_MS = 60_000


def honest_and_fast(max_future_skew_ms: Any) -> list[Poll]:
    """C22: rows as they happen, each read at once, and one of a clock that is a day ahead."""
    clock = Clock(START_S)
    source = MemoryInput({"a": b""}, follows=True)
    how = ReadSettings(max_future_skew_ms=max_future_skew_ms, clock=clock)
    reader = source.reader(MINUTE, how)
    polls = []
    for second in (0, 120, *range(180, 721, 60)):
        clock.now_s = START_S + second
        source.write("a", Event("k", 1, round(clock.now_s * 1_000), str(second)))
        if second == 120:
            source.write("a", Event("k", 1, round((clock.now_s + 86_400) * 1_000), "fast"))
        polls.append(reader.poll())
    return polls


@pytest.mark.parametrize("guard", ["live", 300_000])
def test_a_row_from_the_future_is_set_aside_and_the_honest_ones_are_in_time(guard: Any) -> None:
    """C22 on a live input, where the guard is on by itself."""
    polls = honest_and_fast(guard)
    assert [(r.reason, r.record_id) for p in polls for r in p.invalid] == [
        ("future_event_time", "fast")
    ]
    records = stamped(polls)
    assert len(records) == 12
    assert too_late(records, MINUTE_MS, 0) == set()


def test_without_the_guard_one_row_from_the_future_makes_all_others_too_late() -> None:
    """C22 with the guard off: ten of ten."""
    polls = honest_and_fast(None)
    assert not any(poll.invalid for poll in polls)
    assert too_late(stamped(polls), MINUTE_MS, 0) == {str(s) for s in range(180, 721, 60)}


@pytest.mark.parametrize(("ahead_ms", "invalid"), [(300_000, 0), (300_001, 1)])
def test_by_default_a_live_record_may_be_five_minutes_ahead_of_the_clock(
    ahead_ms: int, invalid: int
) -> None:
    """To the millisecond, and by the injected clock."""
    source = written({"a": [Event("k", 1, 5_000 + ahead_ms, "x")]}, follows=True)
    poll = source.reader(ZERO, ReadSettings(clock=Clock(5))).poll()
    assert (len(poll.invalid), len(stamped([poll]))) == (invalid, 1 - invalid)


def test_by_default_a_replay_knows_no_future() -> None:
    """Recorded data may come from a clock that is not ours."""
    source = written({"a": [Event("k", 1, MAX_EVENT_TIME_MS, "x")]})
    polls = drain(source.reader(ZERO, ReadSettings(clock=Clock(5))))
    assert [record.name for record in stamped(polls)] == ["x"]


def test_the_guard_of_a_live_input_follows_the_clock() -> None:
    """It is asked anew for every block."""
    clock = Clock()
    source = MemoryInput({"a": b""}, follows=True)
    reader = source.reader(ZERO, ReadSettings(max_future_skew_ms=1_000, clock=clock))
    given = []
    for now in (0, 50, 100):
        clock.now_s = now
        source.write("a", at("a", 51))
        given.append(len(stamped([reader.poll()])))
    assert given == [0, 1, 1]


@pytest.mark.parametrize(
    "strategy",
    [ZERO, ZERO.with_idleness("1s"), ZERO.with_idleness("1s", "advance")],
    ids=["no idleness", "hold", "advance"],
)
def test_a_live_watermark_stays_below_the_end_of_time(strategy: WatermarkStrategy) -> None:
    """C34: five polls of nothing between two records close no window for good."""
    live, estimator = Live(strategy, "a"), GroupWatermarkEstimator(GroupState())
    reported = []
    for now in range(20):
        poll = live.poll(100 + 10 * now, a=[100 + 10 * now] if now % 6 == 0 else [])
        assert not poll.finished
        estimator.advance(poll.state)
        reported.append(estimator.current_watermark())
    assert max(reported) < MAX_TIMESTAMP
    assert reported == sorted(reported)
    assert len(set(reported)) > 2


def test_a_replays_watermark_stays_below_the_end_of_time_until_it_is_finished() -> None:
    """C34: that nothing follows is said by the end, never by the watermark."""
    streams = {"a": [at("a", s) for s in range(9)], "b": [], "c": [at("c", s) for s in range(3)]}
    polls = drain(written(streams).reader(ZERO, ReadSettings(block_bytes=1)))
    estimator = GroupWatermarkEstimator(GroupState())
    for poll in polls:
        estimator.advance(poll.state)
        assert estimator.current_watermark() < MAX_TIMESTAMP
    assert [poll.finished for poll in polls[:-1]] == [False] * (len(polls) - 1)


class Huge(WatermarkGenerator):
    """Emits one number."""

    def __init__(self, number: Any, periodic: bool) -> None:
        self._number, self._periodic = number, periodic

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits it here."""
        if not self._periodic:
            output.emit_watermark(self._number)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Or here."""
        if self._periodic:
            output.emit_watermark(self._number)


@pytest.mark.parametrize("follows", [False, True], ids=["replay", "live"])
@pytest.mark.parametrize("periodic", [False, True], ids=["on_event", "on_periodic_emit"])
@pytest.mark.parametrize("number", [MAX_EVENT_TIME_MS + 1, np.int64(2**63 - 1), 10**30])
def test_no_number_that_a_generator_emits_is_the_end_of_time(
    follows: bool, periodic: bool, number: Any
) -> None:
    """That would close every window for good, and the source could never take it back."""
    strategy = WatermarkStrategy.for_generator(functools.partial(Huge, number, periodic))
    source = written({"a": [at("a", 1), at("a", 2)]}, follows)
    poll = source.reader(strategy, ReadSettings(clock=Clock(10))).poll()
    assert not poll.invalid
    assert len(stamped([poll])) == 2
    estimator = GroupWatermarkEstimator(GroupState())
    estimator.advance(poll.state)
    assert poll.state.watermark_ms == MAX_EVENT_TIME_MS
    assert estimator.current_watermark() < MAX_TIMESTAMP


def shuffled_within(seconds: float) -> list[Event]:
    """C38: 1,000 records whose arrival is up to some time behind their event time."""
    draw = random.Random(38)
    arrivals = sorted((n / 2 + draw.uniform(0, seconds), n) for n in range(1_000))
    events = [Event("k", 1, 500 * n, str(n)) for _, n in arrivals]
    highest = accumulate((event.ts for event in events), max)
    lateness = max(top - event.ts for top, event in zip(highest, events, strict=True))
    assert 5_000 < lateness <= 10_000
    return events


@pytest.mark.parametrize("size", [1_000, 1 << 20])
def test_a_bound_as_long_as_the_disorder_loses_nothing(size: int) -> None:
    """C38: none is behind the watermark at all, so none comes when its window has fired."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10s")
    polls = drain(
        written({"a": shuffled_within(10)}).reader(strategy, ReadSettings(block_bytes=size))
    )
    records = stamped(polls)
    assert len(records) == 1_000
    assert all(record.stamp <= record.ts for record in records)
    assert too_late(records, MINUTE_MS, 0) == set()


def test_a_bound_shorter_than_the_disorder_loses_some() -> None:
    """C38 with 5 s: some come when the window of a minute has fired."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5s")
    records = stamped(drain(written({"a": shuffled_within(10)}).reader(strategy)))
    lost = too_late(records, MINUTE_MS, 0)
    assert 0 < len(lost) < 100
    assert all(record.stamp > record.ts for record in records if record.name in lost)

"""Alignment: a live split that is too far ahead is paused until the others have come closer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.sources.status import ACTIVE, IDLE, PAUSED
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.transforms.sources.memory import (
    Clock,
    Live,
    Stamped,
    at,
    by_split,
    drain,
    expected,
    line_of,
    stamped,
    states_of,
    watermark_of,
    written,
)

Rounds: TypeAlias = list[tuple[float, dict[str, list[float]]]]

ZERO = WatermarkStrategy.for_monotonous_timestamps()
LINE = 1  # a block is a line
GROUPS = (f"group {number}" for number in count())  # no test meets the readers of another


def aligned(max_drift: str, group: str | None = None) -> WatermarkStrategy:
    """A strategy whose splits are aligned, in a group of their own unless it is named."""
    return ZERO.with_watermark_alignment(group or next(GROUPS), max_drift)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes the readers that a test has opened."""
    with ExitStack() as opened:
        yield opened


def largest(polls: list[Poll]) -> dict[str, int]:
    """The largest event time of each split."""
    return {split: max(r.ts for r in each) for split, each in by_split(stamped(polls)).items()}


@pytest.mark.parametrize("drift_s", [30, 90])
def test_a_fast_split_runs_ahead_by_no_more_than_the_drift_and_a_block(drift_s: int) -> None:
    """W13: it has 100 times more data a poll; when the slow one catches up nothing is lost."""
    fast = [at("fast", tenth / 10) for tenth in range(3_001)]
    live = Live(aligned(f"{drift_s}s"), ("fast", "slow"), block_bytes=100 * len(line_of(fast[-1])))
    live.source.write("fast", *fast)
    block_ms = 12_000  # lines at the start are shorter
    polls: list[Poll] = []
    ahead: list[int] = []
    reached: dict[str, int] = {}
    with closing(live.reader):
        for now in range(301):
            polls.append(live.poll(now, slow=[now]))
            reached |= largest(polls[-1:])
            ahead.append(reached["fast"] - reached["slow"])
    names = [record.name for record in stamped(polls)]
    assert max(ahead) <= drift_s * 1_000 + block_ms
    assert max(ahead) > drift_s * 1_000, "up to the drift it is read as fast as it comes"
    assert any(states_of(poll) == {"fast": PAUSED, "slow": ACTIVE} for poll in polls)
    assert len(names) == len(set(names)) == 3_001 + 301
    assert reached == {"fast": 300_000, "slow": 300_000}


def test_without_alignment_a_fast_split_runs_away() -> None:
    """W13 without the remedy."""
    fast = [at("fast", tenth / 10) for tenth in range(3_001)]
    live = Live(ZERO, ("fast", "slow"), block_bytes=100 * len(line_of(fast[-1])))
    live.source.write("fast", *fast)
    assert largest([live.poll(now, slow=[now]) for now in range(31)])["fast"] == 300_000


def test_a_split_at_the_drift_itself_is_read_on() -> None:
    """Only one that is further ahead is paused."""
    live = Live(aligned("30s"), "ab")
    with closing(live.reader):
        live.poll(0, a=[10], b=[40])
        assert states_of(live.poll(1, b=[40.001])) == {"a": ACTIVE, "b": ACTIVE}
        poll = live.poll(2, b=[41])
        assert states_of(poll) == {"a": ACTIVE, "b": PAUSED}
        assert stamped([poll]) == []
        assert [record.name for record in stamped([live.poll(3, a=[10.001])])] == [
            "a@10.001",
            "b@41",
        ]


def test_an_idle_split_holds_nobody_until_its_next_record() -> None:
    """C30: the lowest falls silent and the paused one goes on; it resumes with its first record."""
    live = Live(aligned("60s").with_idleness("10s"), "ab", block_bytes=LINE)
    with closing(live.reader):
        live.poll(0, a=[0, 70, 140, 210, 280, 350], b=[0])
        states = {now: states_of(live.poll(now)) for now in (1, 2, 6, 11)}
        held = {"a": PAUSED, "b": ACTIVE}
        assert states == {1: {"a": ACTIVE, "b": ACTIVE}, 2: held, 6: held, 11: held}
        freed = live.poll(12)
        assert states_of(freed) == {"a": PAUSED, "b": IDLE}, "no deadlock: from the next poll on"
        polls = [live.poll(now) for now in (13, 14)]
        assert [record.name for record in stamped(polls)] == ["a@140", "a@210"]

        resumed = live.poll(15, b=[100])
        assert Stamped("b", "b@100", 100_000, 210_000) in stamped([resumed])
        again = live.poll(16)
        assert states_of(again) == {"a": PAUSED, "b": ACTIVE}
        assert stamped([again]) == []
        assert [record.name for record in stamped([live.poll(17, b=[300])])] == ["b@300", "a@280"]


@pytest.mark.parametrize("idleness", [False, True])
def test_a_split_without_a_record_holds_nobody(idleness: bool) -> None:
    """C30: there is nothing to drift from; its first record does hold."""
    strategy = aligned("60s")
    live = Live(strategy.with_idleness("10s") if idleness else strategy, "ab", block_bytes=LINE)
    with closing(live.reader):
        live.poll(0, a=[0, 100, 200, 300, 400])
        polls = [live.poll(now) for now in (1, 2)]
        assert [record.name for record in stamped(polls)] == ["a@100", "a@200"]
        live.poll(3, b=[50])
        poll = live.poll(4)
        assert states_of(poll) == {"a": PAUSED, "b": ACTIVE}
        assert stamped([poll]) == []


def test_a_reader_without_splits_holds_nobody(stack: ExitStack) -> None:
    """C30: it has nothing that could drift."""
    strategy, clock = aligned("60s"), Clock()
    splitless, other = Live(strategy, clock=clock), Live(strategy, "a", clock=clock)
    stack.enter_context(closing(splitless.reader))
    stack.enter_context(closing(other.reader))
    for now in range(0, 1_000, 100):
        splitless.poll(now)
        assert [record.name for record in stamped([other.poll(now, a=[now])])] == [f"a@{now}"]


def test_a_paused_split_is_not_idle_however_long_it_is_paused() -> None:
    """Nobody looks whether there is anything to read."""
    live = Live(aligned("60s").with_idleness("10s"), "ab")
    with closing(live.reader):
        live.poll(0, a=[1_000], b=[0])
        for hour in range(1, 11):
            poll = live.poll(3_600 * hour, b=[hour])
            assert states_of(poll) == {"a": PAUSED, "b": ACTIVE}
            assert watermark_of(poll) == hour * 1_000


def test_a_split_counts_its_silence_anew_after_a_pause() -> None:
    """What it was silent before says nothing of the time when nobody asked."""
    live = Live(aligned("60s").with_idleness("10s"), "ab")
    with closing(live.reader):
        live.poll(0, a=[1_000])
        assert states_of(live.poll(5)) == {"a": ACTIVE, "b": ACTIVE}
        live.poll(6, b=[0])
        assert states_of(live.poll(7, b=[1])) == {"a": PAUSED, "b": ACTIVE}
        states = {now: states_of(live.poll(now, b=[now + 980]))["a"] for now in (20, 30, 31)}
        assert states == {20: ACTIVE, 30: ACTIVE, 31: IDLE}


def two_readers(stack: ExitStack) -> tuple[Live, Live]:
    """A reader at 0 and one at 100 in a group with a drift of 30 s and an update each second."""
    clock, strategy = Clock(), aligned("30s").with_idleness("10s")
    slow, fast = Live(strategy, "a", clock=clock), Live(strategy, "b", clock=clock)
    stack.enter_context(closing(slow.reader))
    stack.enter_context(closing(fast.reader))
    slow.poll(0, a=[0])
    fast.poll(0, b=[100])
    slow.poll(1)
    assert states_of(fast.poll(1, b=[101])) == {"b": PAUSED}
    return slow, fast


def test_readers_of_one_group_see_each_other_as_of_their_last_update(stack: ExitStack) -> None:
    """While they live in one process: a second old at most, by default."""
    slow, fast = two_readers(stack)
    slow.poll(1.5, a=[200])
    assert states_of(fast.poll(1.5)) == {"b": PAUSED}
    slow.poll(2)
    assert [record.name for record in stamped([fast.poll(2)])] == ["b@101"]


def test_readers_of_other_groups_are_not_aligned(stack: ExitStack) -> None:
    """A name is what they share."""
    clock = Clock()
    slow, fast = Live(aligned("30s"), "a", clock=clock), Live(aligned("30s"), "b", clock=clock)
    stack.enter_context(closing(slow.reader))
    stack.enter_context(closing(fast.reader))
    for now in range(5):
        slow.poll(now, a=[0])
        assert [record.name for record in stamped([fast.poll(now, b=[100 * now])])]


def test_a_closed_reader_holds_nobody(stack: ExitStack) -> None:
    """From the next update on."""
    slow, fast = two_readers(stack)
    slow.reader.close()
    assert states_of(fast.poll(1.5)) == {"b": PAUSED}
    assert [record.name for record in stamped([fast.poll(2)])] == ["b@101"]


def test_a_reader_that_was_dropped_without_a_word_holds_nobody() -> None:
    """Engines do not always tear down what they have opened."""
    clock, strategy = Clock(), aligned("30s")
    slow, fast = Live(strategy, "a", clock=clock), Live(strategy, "b", clock=clock)
    with closing(fast.reader):
        for now in (0, 1):
            slow.poll(now, a=[now])
            poll = fast.poll(now, b=[100 + now])
        assert states_of(poll) == {"b": PAUSED}
        del slow
        gc.collect()
        assert [record.name for record in stamped([fast.poll(2)])] == ["b@101"]


def test_a_reader_whose_splits_are_all_idle_holds_nobody(stack: ExitStack) -> None:
    """C30 between readers: or the others would wait for it for ever."""
    slow, fast = two_readers(stack)
    for now in range(2, 13):
        poll = slow.poll(now)
        fast.poll(now)
    assert states_of(poll) == {"a": IDLE}
    slow.poll(14)
    fast.poll(14)
    assert states_of(fast.poll(15)) == {"b": ACTIVE}
    assert fast.reader.positions["b"].offset == len(fast.source.texts["b"])


def test_a_replay_is_not_aligned() -> None:
    """It reads the lowest split first anyway."""
    streams = {"a": [at("a", 100 * s) for s in range(20)], "b": [at("b", s) for s in range(20)]}
    polls = drain(written(streams).reader(aligned("1s"), ReadSettings(block_bytes=100)))
    assert by_split(stamped(polls)) == expected(streams, 0)
    assert not any(poll.status.count(PAUSED) for poll in polls)


SOME: st.SearchStrategy[list[float]] = st.lists(st.integers(0, 60).map(float), max_size=4)
ROUNDS: st.SearchStrategy[Rounds] = st.lists(
    st.tuples(
        st.sampled_from([0.25, 1.0, 2.5]),
        st.fixed_dictionaries({"a": SOME, "b": st.just([]) | SOME}, optional={"c": SOME}),
    ),
    min_size=3,
    max_size=10,
)
LOWEST = float("-inf")


class Alignment:
    """Who may be read at a poll: the lowest first, and each within the drift of the lowest then."""

    def __init__(self, drift_ms: int) -> None:
        self.drift_ms = drift_ms
        self.own: dict[str, float] = {}
        self.idle: set[str] = set()

    def paused(self, records: dict[str, list[Stamped]]) -> set[str]:
        """Takes what a poll gave; says who was to be paused in it."""
        paused = set()
        for split in sorted(self.own, key=lambda split: (self.own[split], split)):
            known = [ms for name, ms in self.own.items() if name not in self.idle and ms > LOWEST]
            ahead = known and self.own[split] > min(known) + self.drift_ms
            if ahead and split not in self.idle:
                paused.add(split)
            elif given := records.get(split):
                self.idle.discard(split)
                self.own[split] = max(self.own[split], *(record.ts for record in given))
        return paused


@settings(max_examples=50, deadline=None)
@given(ROUNDS, st.sampled_from([1, 5, 20]), st.sampled_from([LINE, 100, 1 << 20]))
def test_whoever_is_too_far_ahead_is_paused_and_all_records_come_once(
    rounds: Rounds, drift_s: int, size: int
) -> None:
    """Exact at every poll; with idleness nobody waits for ever."""
    live = Live(aligned(f"{drift_s}s").with_idleness("2s"), block_bytes=size)
    alignment, names, now = Alignment(drift_s * 1_000), list[str](), 0.0
    with closing(live.reader):
        for step, appended in [*rounds, *[(1.0, dict[str, list[float]]())] * 400]:
            now += step
            poll = live.poll(now, **appended)
            for split in live.source.texts:
                alignment.own.setdefault(split, LOWEST)
            records = by_split(stamped([poll]))
            paused = alignment.paused(records)
            assert not paused & records.keys()
            assert {name for name, state in states_of(poll).items() if state == PAUSED} == paused
            alignment.idle = {name for name, state in states_of(poll).items() if state == IDLE}
            names += [record.name for each in records.values() for record in each]
            if not appended and len(alignment.idle) == len(alignment.own):
                break
    written_ = [f"{s}@{t:g}" for _, added in rounds for s, times in added.items() for t in times]
    assert sorted(names) == sorted(written_)

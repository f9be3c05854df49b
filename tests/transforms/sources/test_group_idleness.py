"""Idleness: a live split that has nothing to give leaves the minimum; one that is slow does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import Block, SplitPosition
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.sources.status import ACTIVE, IDLE
from beam_lateness.transforms.watermarks.strategy import ADVANCE, HOLD, WatermarkStrategy
from tests.transforms.sources.memory import (
    BEAM_MINIMUM,
    Clock,
    Live,
    MemoryInput,
    MemorySplit,
    Stamped,
    at,
    by_split,
    drain,
    expected,
    stamped,
    states_of,
    too_late,
    watermark_of,
    written,
)

Rounds: TypeAlias = list[tuple[float, dict[str, list[float]]]]

ZERO = WatermarkStrategy.for_monotonous_timestamps()
MINUTE_MS = 60_000


def test_a_split_that_falls_silent_leaves_the_minimum_after_the_timeout() -> None:
    """C25: p1 has one record at 10; [60, 120) is complete when p0 comes to its end."""
    live = Live(ZERO.with_idleness("30s"), ("p0", "p1"))
    live.poll(0, p0=[0], p1=[10])
    reached = {now: watermark_of(live.poll(now, p0=[now])) for now in range(10, 131, 10)}
    held = dict.fromkeys((10, 20, 30, 40), 10_000)  # nothing was found there since 10
    assert reached == held | {now: now * 1_000 for now in range(50, 131, 10)}


def test_a_split_that_never_had_a_record_leaves_the_minimum_too() -> None:
    """C24: it counts from the first poll that found nothing."""
    live = Live(ZERO.with_idleness("30s"), ("p0", "p1"))
    reached = {now: watermark_of(live.poll(now, p0=[now])) for now in range(0, 61, 10)}
    held = dict.fromkeys((0, 10, 20, 30), BEAM_MINIMUM)
    assert reached == held | {now: now * 1_000 for now in (40, 50, 60)}


def test_without_idleness_a_silent_split_holds_the_others_for_ever() -> None:
    """C24 and C25 without the remedy."""
    live = Live(ZERO, ("p0", "p1"))
    live.poll(0, p0=[0], p1=[10])
    assert {watermark_of(live.poll(now, p0=[now])) for now in range(10, 9_000, 900)} == {10_000}


@pytest.mark.parametrize(("silent_s", "state"), [(30.0, ACTIVE), (30.125, IDLE)])
def test_a_split_is_idle_when_the_silence_is_longer_than_the_timeout(
    silent_s: float, state: str
) -> None:
    """As in Flink: at the timeout itself it is not."""
    live = Live(ZERO.with_idleness("30s"), ("p0", "p1"))
    live.poll(4, p0=[0], p1=[0])
    live.poll(5, p0=[1])
    poll = live.poll(5 + silent_s, p0=[2])
    assert states_of(poll) == {"p0": ACTIVE, "p1": state}
    assert watermark_of(poll) == (0 if state == ACTIVE else 2_000)


@dataclass
class BlockingInput(MemoryInput):
    """An input whose reads may take long."""

    clock: Clock = field(default_factory=Clock)
    seconds: dict[str, float] = field(default_factory=dict)  # how long the next read takes

    def open(self, split: str, position: SplitPosition) -> MemorySplit:
        """Opens a split at a position."""
        return BlockingSplit(self, split, position.offset)


class BlockingSplit(MemorySplit):
    """Gives what was there when it was asked, some time later."""

    def __init__(self, owner: BlockingInput, split: str, offset: int) -> None:
        super().__init__(owner, split, offset)
        self._blocking = owner

    def read(self, size: int) -> Block:
        """Gives the next lines."""
        block = super().read(size)
        self._blocking.clock.sleep(self._blocking.seconds.pop(self._split, 0))
        return block


def blocking(timeout: str) -> Live:
    """Two splits, of which p1 was quiet already when the reads begin to block."""
    clock = Clock()
    source = BlockingInput({"p0": b"", "p1": b""}, follows=True, clock=clock)
    live = Live(ZERO.with_idleness(timeout), source=source, clock=clock)
    live.poll(0, p0=[10], p1=[10])
    assert watermark_of(live.poll(1, p0=[15])) == 10_000
    return live


BACKLOG = [20, 30, 40, 50, 60, 70]


@pytest.mark.parametrize("blocked", ["p0", "p1", "the engine"])
def test_a_split_with_a_backlog_is_not_idle_however_long_it_is_not_read(blocked: str) -> None:
    """C26: a read that blocks for a minute, its own or another's, or nobody who asks."""
    live = blocking("10s")
    source: Any = live.source
    source.seconds = {blocked: 60}
    poll = live.poll(62 if blocked == "the engine" else 2, p0=[500], p1=BACKLOG)
    assert live.clock.now_s == 62
    assert states_of(poll) == {"p0": ACTIVE, "p1": ACTIVE}
    records = by_split(stamped([poll]))
    assert [record.stamp for record in records["p1"]] == [10_000, *[15_000] * 5], "p0 was at 15"
    assert too_late(stamped([poll]), 10_000, 0) == set()
    assert watermark_of(poll) == 70_000


def test_a_read_that_blocks_and_gives_nothing_is_no_silence() -> None:
    """C26: the backlog that comes with the next poll is not too late."""
    live = blocking("10s")
    source: Any = live.source
    source.seconds = {"p1": 60}
    poll = live.poll(2, p0=[500])
    assert live.clock.now_s == 62
    assert states_of(poll) == {"p0": ACTIVE, "p1": ACTIVE}
    assert watermark_of(poll) == 10_000
    poll = live.poll(62, p0=[510], p1=BACKLOG)
    assert too_late(stamped([poll]), 10_000, 0) == set()


@pytest.mark.parametrize("polls_a_second", [1, 4])
def test_a_steady_split_is_never_idle(polls_a_second: int) -> None:
    """C27: a record each second for a minute, and a timeout of 5 s."""
    live = Live(ZERO.with_idleness("5s"), ("p0",))
    for tick in range(60 * polls_a_second):
        now, rest = divmod(tick, polls_a_second)
        poll = live.poll(now + rest / polls_a_second, p0=[now] if rest == 0 else [])
        assert states_of(poll) == {"p0": ACTIVE}
        assert watermark_of(poll) == now * 1_000


def silence(on_all_idle: str) -> tuple[Live, dict[int, int]]:
    """Data to 100 s, a bound of 5 s, then silence; the watermark by the clock."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5s")
    live = Live(strategy.with_idleness("10s", on_all_idle), ("p0", "p1"))
    live.poll(100, p0=range(0, 101, 10), p1=range(0, 71, 10))
    return live, {now: watermark_of(live.poll(now)) for now in range(105, 181, 5)}


def test_when_all_are_idle_the_watermark_holds_at_the_highest_they_reached() -> None:
    """C29 with `hold`: [60, 120) stays open."""
    live, reached = silence(HOLD)
    held = dict.fromkeys((105, 110, 115), 65_000)
    assert reached == held | dict.fromkeys(range(120, 181, 5), 95_000)
    assert states_of(live.poll(185)) == {"p0": IDLE, "p1": IDLE}


def test_when_all_are_idle_the_watermark_may_follow_the_clock() -> None:
    """C29 with `advance`: [60, 120) fires once the clock, less the bound, has come to 120."""
    live, reached = silence(ADVANCE)
    held = dict.fromkeys((105, 110, 115), 65_000)
    assert reached == held | {now: (now - 5) * 1_000 for now in range(120, 181, 5)}
    assert min(now for now, watermark in reached.items() if watermark >= 120_000) == 125
    late = live.poll(181, p0=[118, 300])
    assert [record.stamp for record in stamped([late])] == [175_000, 175_000]
    assert watermark_of(late) == 295_000


def test_an_idle_split_that_speaks_again_counts_again() -> None:
    """W8: its old records are judged by the group's watermark, which never goes back."""
    live = Live(ZERO.with_idleness("1m"), ("a", "b"))
    for now in range(0, 21, 10):
        live.poll(now, a=[now], b=[now])
    reached = {now: watermark_of(live.poll(now, a=[now])) for now in range(30, 181, 10)}
    held = dict.fromkeys(range(30, 91, 10), 20_000)  # [0, 60) is open
    assert reached == held | {now: now * 1_000 for now in range(100, 181, 10)}

    spoken = live.poll(190, a=[190], b=[110, 185])
    assert states_of(spoken) == {"a": ACTIVE, "b": ACTIVE}
    assert too_late(stamped([spoken]), MINUTE_MS, 0) == {"b@110"}
    assert watermark_of(spoken) == 185_000
    assert watermark_of(live.poll(200, a=[200])) == 185_000, "it holds the others again"
    assert watermark_of(live.poll(210, a=[210], b=[205])) == 205_000


def test_a_split_that_speaks_again_does_not_pull_back_what_others_reached_in_the_same_poll() -> (
    None
):
    """a@12 was judged by 50 when b was idle: the group is at 50 for those that come after it."""
    live = Live(ZERO.with_idleness("2s"), ("a", "b"))
    live.poll(0, a=[10], b=[30])
    for now in range(1, 6):
        poll = live.poll(now, a=[10])
    assert (states_of(poll)["b"], watermark_of(poll)) == (IDLE, 10_000)
    polls = [live.poll(6, a=[50, 12], b=[20]), live.poll(7, a=[13], b=[21])]
    stamps = {record.name: record.stamp for record in stamped(polls)}
    assert stamps == {
        "a@50": 10_000,
        "a@12": 50_000,
        "b@20": 50_000,
        "a@13": 50_000,
        "b@21": 50_000,
    }
    assert [watermark_of(poll) for poll in polls] == [50_000, 50_000]


@pytest.mark.parametrize("line", [b"{oops", b'{"k":"a"}', b"  "])
def test_a_poll_of_nothing_but_rubbish_proves_no_silence(line: bytes) -> None:
    """There may be records behind it: only a poll that finds nothing tells of silence."""
    live = Live(ZERO.with_idleness("15s"), ("p0", "p1"))
    live.poll(0, p0=[0], p1=[0])
    for now in range(10, 101, 10):
        live.source.write("p1", line)
        poll = live.poll(now, p0=[now])
        assert states_of(poll) == {"p0": ACTIVE, "p1": ACTIVE}
        assert len(poll.invalid) + poll.blank == 1
        assert watermark_of(poll) == 0


@pytest.mark.parametrize("line", [b"{oops", b'{"k":"a"}', b"  "])
def test_rubbish_between_polls_of_nothing_is_no_sign_of_life(line: bytes) -> None:
    """It moves no watermark, so it may hold none, and it wakes no idle split."""
    live = Live(ZERO.with_idleness("15s"), ("p0", "p1"))
    live.poll(0, p0=[0], p1=[0])
    live.poll(10, p0=[10])
    live.source.write("p1", line)
    assert states_of(live.poll(20, p0=[20])) == {"p0": ACTIVE, "p1": ACTIVE}
    assert states_of(live.poll(30, p0=[30])) == {"p0": ACTIVE, "p1": IDLE}
    live.source.write("p1", line)
    assert states_of(live.poll(40, p0=[40])) == {"p0": ACTIVE, "p1": IDLE}
    assert states_of(live.poll(50, p0=[50], p1=[50])) == {"p0": ACTIVE, "p1": ACTIVE}


def test_a_replay_has_no_idle_splits() -> None:
    """However long it takes: nothing of it is silent, it was only not read yet."""
    streams = {"a": [at("a", 5 * s) for s in range(40)], "b": [at("b", s) for s in range(90, 99)]}
    clock = Clock()
    source = written(streams)
    reader = source.reader(ZERO.with_idleness("1s"), ReadSettings(block_bytes=100, clock=clock))
    polls: list[Poll] = []
    while not polls or not polls[-1].finished:
        polls.append(reader.poll())
        assert polls[-1].status.count(IDLE) == 0
        assert not any(split.idle for split in polls[-1].state.splits.values())
        clock.now_s += 3_600
    assert len(polls) > 5
    assert by_split(stamped(polls)) == expected(streams, 0)


def test_a_replay_that_goes_on_from_a_followed_input_has_no_idle_splits() -> None:
    """What was silent there has its end here."""
    live = Live(ZERO.with_idleness("2s"), ("a", "b"))
    for now in range(5):
        poll = live.poll(now, a=[now])
    assert poll.status.count(IDLE) == 1
    rest = MemoryInput(live.source.texts)
    rest.write("b", at("b", 3))
    reader = rest.reader(ZERO.with_idleness("2s"), None, poll.positions, poll.state)
    assert reader.status.count(IDLE) == 0
    assert [record.name for record in stamped(drain(reader))] == ["b@3"]


class Model:
    """The minimum over the active splits at each arrival, never back (all in ms, exclusive)."""

    def __init__(self, bound: int, timeout: int, on_all_idle: str) -> None:
        self.bound, self.timeout, self.on_all_idle = bound, timeout, on_all_idle
        self.own: dict[str, int] = {}
        self.quiet: dict[str, int | None] = {}
        self.idle: set[str] = set()
        self.group = BEAM_MINIMUM

    def settle(self) -> None:
        """Moves the group on."""
        active = [own for split, own in self.own.items() if split not in self.idle]
        lowest = min(active) if active else max(self.own.values(), default=BEAM_MINIMUM)
        self.group = max(self.group, lowest)

    def know(self, splits: list[str]) -> None:
        """New splits count at once."""
        for split in splits:
            self.own.setdefault(split, BEAM_MINIMUM)
            self.quiet.setdefault(split, None)

    def take(self, record: Stamped) -> int:
        """Gives the watermark at a record's arrival, and moves it on."""
        self.idle.discard(record.split)
        before = self.group
        self.own[record.split] = max(self.own[record.split], record.ts - self.bound)
        self.settle()
        return before

    def end_poll(self, heard: set[str], now: int) -> None:
        """Takes who had nothing to give."""
        for split, since in self.quiet.items():
            if split in heard:
                self.quiet[split] = None
            elif since is None:
                self.quiet[split] = now
            elif now - since > self.timeout:
                self.idle.add(split)
        self.settle()
        if self.on_all_idle == ADVANCE and self.own and self.idle == self.own.keys():
            self.group = max(self.group, now - self.bound)


SOME: st.SearchStrategy[list[float]] = st.lists(st.integers(0, 60).map(float), max_size=3)
# How long after the one before each poll is, and what is appended to each split before it.
ROUNDS: st.SearchStrategy[Rounds] = st.lists(
    st.tuples(
        st.sampled_from([0.25, 1.0, 2.5]),
        st.fixed_dictionaries({"a": SOME, "b": st.just([]) | SOME}, optional={"c": SOME}),
    ),
    min_size=4,
    max_size=12,
)
MODES = st.sampled_from([HOLD, ADVANCE])
SIZES = st.sampled_from([40, 1 << 20])


def idling(bound_s: int, on_all_idle: str) -> WatermarkStrategy:
    """A strategy of small numbers."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound_s)
    return strategy.with_idleness("2s", on_all_idle)


@settings(max_examples=120, deadline=None)
@given(ROUNDS, st.sampled_from([0, 3]), MODES, SIZES)
def test_stamps_are_the_minimum_over_the_splits_that_are_active_at_arrival(
    rounds: Rounds, bound_s: int, on_all_idle: str, size: int
) -> None:
    """Record by record, with the states of the splits and the silence they count."""
    live = Live(idling(bound_s, on_all_idle), block_bytes=size)
    model = Model(bound_s * 1_000, 2_000, on_all_idle)
    now = 40.0
    for step, appended in rounds:
        now += step
        poll = live.poll(now, **appended)
        model.know(sorted(live.source.texts))
        records = stamped([poll])
        assert [record.stamp for record in records] == [model.take(record) for record in records]
        model.end_poll({record.split for record in records}, int(now * 1_000))
        assert watermark_of(poll) == model.group
        assert {name for name, state in states_of(poll).items() if state == IDLE} == model.idle
        since = {name: state.quiet_since_ms for name, state in poll.state.splits.items()}
        assert since == model.quiet


def seen(poll: Poll) -> dict[str, Any]:
    """What a poll gave and where the group stands, but for what counts from the opening on."""
    status = poll.status
    return {
        "records": stamped([poll]),
        "state": poll.state,
        "positions": poll.positions,
        "splits": [(each.split, each.state, each.watermark_ms) for each in status.splits],
        "group": (status.watermark_ms, status.held_by, status.lag_ms, status.bound_ms),
    }


@settings(max_examples=60, deadline=None)
@given(ROUNDS, st.sampled_from([0, 3]), MODES, SIZES)
def test_a_restart_at_every_poll_changes_nothing(
    rounds: Rounds, bound_s: int, on_all_idle: str, size: int
) -> None:
    """Idle splits stay idle, silence goes on counting, and the watermark stands where it stood."""
    steady = Live(idling(bound_s, on_all_idle), block_bytes=size)
    restarted = Live(idling(bound_s, on_all_idle), block_bytes=size)
    now = 40.0
    for step, appended in rounds:
        now += step
        assert seen(restarted.poll(now, **appended)) == seen(steady.poll(now, **appended))
        restarted.restart()
        assert (restarted.reader.positions, restarted.reader.state) == (
            steady.reader.positions,
            steady.reader.state,
        )

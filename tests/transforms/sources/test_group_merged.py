"""Merged splits: one watermark, fed by each record as it is read, whatever its split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.group import MERGED
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.sources.status import ACTIVE, IDLE
from beam_lateness.transforms.watermarks.estimator import GroupStateCoder
from beam_lateness.transforms.watermarks.strategy import ADVANCE, HOLD, WatermarkStrategy
from tests import model
from tests.model import Event, Marker
from tests.transforms.sources.memory import (
    BEAM_MINIMUM,
    Live,
    Stamped,
    at,
    drain,
    stamped,
    states_of,
    too_late,
    watermark_of,
    written,
)

Steps: TypeAlias = list[Event | Marker]

FEW = settings(max_examples=50, deadline=None)
SIZES = st.sampled_from([1, 40, 90, 200, 1_000, 1 << 20])
ZERO = WatermarkStrategy.for_monotonous_timestamps()
MARKERS = WatermarkStrategy.for_markers("end")
MINUTE_MS = 60_000

BACKLOG: dict[str, Steps] = {
    split: [at(split, second) for second in range(0, 1_001, 10)] for split in ("p0", "p1")
}


def model_of(streams: Mapping[str, Steps], bound: int | None) -> list[tuple[str, int]]:
    """What the sequential model says of all splits as one, in the order of their names."""
    steps: Iterable[Event | Marker] = [step for name in sorted(streams) for step in streams[name]]
    judged = (
        model.punctuated(steps)
        if bound is None
        else model.bounded((step for step in steps if isinstance(step, Event)), bound)
    )
    return [(event.name, max(watermark, BEAM_MINIMUM)) for event, watermark in judged]


def named(records: Iterable[Stamped]) -> list[tuple[str, int]]:
    """Names and stamps, in order."""
    return [(record.name, record.stamp) for record in records]


@pytest.mark.parametrize("size", [100, 1_000, 1 << 20])
def test_merged_splits_make_a_backlog_late_that_is_in_time_split_by_split(size: int) -> None:
    """C32 and W11: the reason why watermarks are per split, record for record as the model says."""
    how = ReadSettings(block_bytes=size)
    per_split = stamped(drain(written(BACKLOG).reader(ZERO, how)))
    assert too_late(per_split, MINUTE_MS, 0) == set()
    merged = stamped(drain(written(BACKLOG).reader(ZERO.with_merged_splits(), how)))
    judged = model.Windowed(MINUTE_MS, 0)
    for event, watermark in model.bounded(
        [step for steps in BACKLOG.values() for step in steps if isinstance(step, Event)], 0
    ):
        judged.watermark = watermark
        judged.record(event)
    lost = too_late(merged, MINUTE_MS, 0)
    assert lost == {event.name for event in judged.too_late}
    assert lost == {f"p1@{second}" for second in range(0, 960, 10)}, "96 of the 101 of p1"


@st.composite
def streams_of(draw: st.DrawFn, markers: bool) -> dict[str, Steps]:
    """Streams of up to four splits, each record with a name of its own."""
    streams: dict[str, Steps] = {}
    for split in draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]:
        steps: Steps = []
        for ts in draw(st.lists(st.integers(0, 60), max_size=15)):
            is_marker = markers and draw(st.booleans())
            steps.append(Marker(ts) if is_marker else Event("k", 1, ts, f"{split}{len(steps)}"))
        streams[split] = steps
    return streams


@FEW
@given(streams_of(markers=False), st.sampled_from([0, 7, 1_000]), SIZES)
def test_merged_stamps_are_those_of_the_splits_one_after_the_other(
    streams: dict[str, Steps], bound: int, size: int
) -> None:
    """In the order of their names, whatever the block size."""
    strategy = WatermarkStrategy(bound_ms=bound).with_merged_splits()
    polls = drain(written(streams).reader(strategy, ReadSettings(block_bytes=size)))
    assert named(stamped(polls)) == model_of(streams, bound)


@FEW
@given(streams_of(markers=True), SIZES)
def test_a_marker_of_one_merged_split_speaks_for_all(streams: dict[str, Steps], size: int) -> None:
    """There is one watermark."""
    strategy = MARKERS.with_merged_splits()
    polls = drain(written(streams).reader(strategy, ReadSettings(block_bytes=size)))
    assert named(stamped(polls)) == model_of(streams, None)


@FEW
@given(streams_of(markers=True), st.booleans(), SIZES, SIZES, st.integers(1, 6))
def test_a_merged_replay_goes_on_from_any_poll(
    streams: dict[str, Steps], by_markers: bool, size: int, other_size: int, cut: int
) -> None:
    """A checkpoint holds one state, for all splits."""
    strategy = (MARKERS if by_markers else WatermarkStrategy(bound_ms=7)).with_merged_splits()
    source, coder = written(streams), GroupStateCoder()
    reader = source.reader(strategy, ReadSettings(block_bytes=size))
    polls: list[Poll] = []
    while len(polls) < cut and not (polls and polls[-1].finished):
        polls.append(reader.poll())
    assert list(polls[-1].state.splits) == [MERGED]
    positions = {name: SplitPosition(*p) for name, p in polls[-1].positions.items()}
    state = coder.decode(coder.encode(polls[-1].state))
    polls += drain(source.reader(strategy, ReadSettings(block_bytes=other_size), positions, state))
    assert named(stamped(polls)) == model_of(streams, None if by_markers else 7)


ROUNDS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 60), max_size=5), max_size=3),
    min_size=1,
    max_size=6,
)


@FEW
@given(ROUNDS, st.integers(0, 3), st.integers(0, 6), st.sampled_from([40, 1 << 20]))
def test_merged_live_stamps_are_those_of_one_split_in_the_order_of_arrival(
    rounds: list[dict[str, list[float]]], bound: int, restart: int, size: int
) -> None:
    """One generator sees each record as it comes; a restart changes nothing."""
    strategy = WatermarkStrategy(bound_ms=bound * 1_000).with_merged_splits()
    live = Live(strategy, "ab", block_bytes=size)
    records: list[Stamped] = []
    for number, appended in enumerate(rounds):
        if number == restart:
            live.restart()
        poll = live.poll(number, **appended)
        records += stamped([poll])
        assert list(poll.state.splits) == [MERGED]
        highest = max((r.ts - bound * 1_000 for r in records), default=BEAM_MINIMUM)
        assert watermark_of(poll) == highest
    events = [Event("k", 1, record.ts, record.name) for record in records]
    judged = [max(watermark, BEAM_MINIMUM) for _, watermark in model.bounded(events, bound * 1_000)]
    assert [record.stamp for record in records] == judged


def test_merged_splits_are_idle_only_when_all_of_them_are_silent() -> None:
    """One that speaks keeps all of them active."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5s").with_merged_splits()
    live = Live(strategy.with_idleness("10s", ADVANCE), ("p0", "p1"))
    live.poll(100, p0=[100], p1=[100])
    for now in range(110, 201, 10):
        poll = live.poll(now, p1=[now])
        assert states_of(poll) == {"p0": ACTIVE, "p1": ACTIVE}
        assert watermark_of(poll) == (now - 5) * 1_000
    silent = {now: live.poll(now) for now in (210, 220, 221, 300)}
    assert {now: states_of(poll)["p0"] for now, poll in silent.items()} == {
        210: ACTIVE,  # nothing was found there for the first time
        220: ACTIVE,
        221: IDLE,
        300: IDLE,
    }
    assert states_of(silent[300]) == {"p0": IDLE, "p1": IDLE}
    assert [watermark_of(silent[now]) for now in (220, 221, 300)] == [195_000, 216_000, 295_000]
    assert states_of(live.poll(301, p0=[250])) == {"p0": ACTIVE, "p1": ACTIVE}


@pytest.mark.parametrize("on_all_idle", [HOLD, ADVANCE])
def test_the_silence_of_merged_splits_goes_on_over_a_restart(on_all_idle: str) -> None:
    """As that of a split alone does."""
    strategy = ZERO.with_merged_splits().with_idleness("10s", on_all_idle)
    live = Live(strategy, ("p0", "p1"))
    live.poll(100, p0=[100], p1=[90])
    reached = []
    for now in (101, 106, 111, 112, 120):
        live.restart()
        poll = live.poll(now)
        reached.append((now, states_of(poll)["p1"], watermark_of(poll)))
    follows = on_all_idle == ADVANCE
    assert reached == [
        (101, ACTIVE, 100_000),
        (106, ACTIVE, 100_000),
        (111, ACTIVE, 100_000),
        (112, IDLE, 112_000 if follows else 100_000),
        (120, IDLE, 120_000 if follows else 100_000),
    ]


def test_none_of_the_merged_splits_holds_the_watermark() -> None:
    """They move it together."""
    live = Live(ZERO.with_merged_splits(), ("p0", "p1"))
    status = live.poll(0, p0=[100], p1=[50]).status
    assert status.held_by is None
    assert [(each.split, each.watermark_ms) for each in status.splits] == [
        ("p0", 100_000),
        ("p1", 100_000),
    ]

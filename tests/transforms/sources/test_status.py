"""Where a group stands, for people: who holds its watermark, for how long, and how far behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.status import (
    ACTIVE,
    FINISHED,
    IDLE,
    PAUSED,
    GroupStatus,
    SplitStatus,
    holder_of,
    publish,
    published,
    unpublish,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.model import Event, Marker
from tests.transforms.sources.memory import Clock, Live, MemoryInput, at, drain, written

ZERO = WatermarkStrategy.for_monotonous_timestamps()
BOUND = WatermarkStrategy.for_bounded_out_of_orderness("5s")


def split(name: str, state: str, watermark_ms: int | None) -> SplitStatus:
    """A split of which nothing else counts."""
    return SplitStatus(name, state, 0, None, None, watermark_ms)


@pytest.mark.parametrize(
    ("splits", "holder"),
    [
        ([], None),
        ([("a", ACTIVE, 9), ("b", ACTIVE, 5), ("c", ACTIVE, 7)], "b"),
        ([("a", ACTIVE, 9), ("b", ACTIVE, None)], "b"),
        ([("a", ACTIVE, 0), ("b", ACTIVE, -5)], "b"),
        ([("a", ACTIVE, 9), ("b", IDLE, 5), ("c", FINISHED, 1)], "a"),
        ([("a", ACTIVE, 9), ("b", PAUSED, 5)], "b"),
        ([("a", IDLE, 9), ("b", FINISHED, 5)], None),
        ([("b", ACTIVE, 5), ("a", ACTIVE, 5)], "b"),
    ],
)
def test_the_holder_is_the_lowest_split_that_may_hold_the_watermark(
    splits: list[tuple[str, str, int | None]], holder: str | None
) -> None:
    """One without a watermark is lower than all; idle and finished ones hold nobody."""
    assert holder_of(tuple(split(*each) for each in splits), finished=False) == holder


def test_when_all_are_finished_the_holder_is_the_one_that_was_lowest() -> None:
    """It was the one that a reader waits for."""
    splits = (split("a", FINISHED, 9), split("b", FINISHED, 5))
    assert holder_of(splits, finished=True) == "b"


def test_splits_in_a_state_are_counted() -> None:
    """Each state by itself."""
    states = (ACTIVE, IDLE, IDLE, PAUSED, PAUSED, PAUSED)
    status = GroupStatus(splits=tuple(split(str(n), state, 1) for n, state in enumerate(states)))
    assert [status.count(state) for state in (ACTIVE, IDLE, PAUSED, FINISHED)] == [1, 2, 3, 0]


def test_before_the_first_record_there_is_no_watermark_and_no_lag() -> None:
    """The first split without one holds it."""
    status = Live(BOUND, "ba").poll(50).status
    none = (0, None, None, None)
    assert status == GroupStatus(
        None,
        (SplitStatus("a", ACTIVE, *none), SplitStatus("b", ACTIVE, *none)),
        "a",
        50,
        None,
        5_000,
    )


def test_the_status_names_the_holder_and_what_was_read_of_each_split() -> None:
    """In the order of their names."""
    status = Live(BOUND, "ba").poll(100, b=[30, 20, 40], a=[90]).status
    assert status.splits == (
        SplitStatus("a", ACTIVE, 1, 90_000, 90_000, 85_000),
        SplitStatus("b", ACTIVE, 3, 20_000, 40_000, 35_000),
    )
    assert (status.watermark_ms, status.held_by) == (35_000, "b")
    assert status.lag_ms == 65_000, "behind the clock"
    assert status.bound_ms == 5_000


def test_what_was_read_is_counted_from_the_opening_on() -> None:
    """Over all polls; a restart begins anew."""
    live = Live(ZERO, "a")
    live.poll(0, a=[5, 3])
    (each,) = live.poll(1, a=[4]).status.splits
    assert each[2:5] == (3, 3_000, 5_000)
    live.restart()
    (each,) = live.poll(2, a=[4]).status.splits
    assert each == SplitStatus("a", ACTIVE, 1, 4_000, 4_000, 5_000)


def test_markers_are_counted_as_times_but_not_as_records() -> None:
    """And invalid lines not at all."""
    source = MemoryInput({})
    source.write("a", Marker(9), Event("k", 1, 20, "x"), b"{oops", Marker(5))
    poll = drain(source.reader(WatermarkStrategy.for_markers("end")))[-1]
    (each,) = poll.status.splits
    assert each == SplitStatus("a", FINISHED, 1, 5, 20, 10)
    assert poll.status.bound_ms is None


def test_the_status_tells_how_long_the_watermark_has_stood() -> None:
    """By the injected clock; from zero again when it moves, and not when records come alone."""
    live = Live(BOUND, "ab")
    standing = {
        now: live.poll(now, a=a, b=b).status.standing_s
        for now, a, b in ((10, [1], [1]), (25, [9], []), (40, [], [1]), (41, [], [2]), (50, [], []))
    }
    assert standing == {10: 0, 25: 15, 40: 30, 41: 0, 50: 9}


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    """Wall clocks are."""
    live = Live(BOUND, "a")
    live.poll(100, a=[50])
    assert live.poll(90).status.standing_s == 0


def test_idle_and_paused_splits_are_shown_as_such() -> None:
    """And none of the idle ones holds the watermark."""
    strategy = ZERO.with_idleness("5s").with_watermark_alignment("status", "30s")
    live = Live(strategy, "abc")
    with closing(live.reader):
        for now in range(8):
            status = live.poll(now, a=[100] if now == 0 else [], b=[now]).status
    assert [(each.split, each.state) for each in status.splits] == [
        ("a", PAUSED),
        ("b", ACTIVE),
        ("c", IDLE),
    ]
    assert (status.held_by, status.watermark_ms) == ("b", 7_000)


def test_none_holds_the_watermark_when_all_are_idle() -> None:
    """It stands at the highest."""
    live = Live(ZERO.with_idleness("5s"), "ab")
    live.poll(0, a=[3], b=[9])
    status = [live.poll(now).status for now in (1, 7)][-1]
    assert (status.held_by, status.watermark_ms, status.count(IDLE)) == (None, 9_000, 2)


def test_the_bound_shown_is_the_widest_of_the_splits() -> None:
    """Where it adjusts itself each has its own."""
    strategy = WatermarkStrategy.for_self_adjusting_bound("0s", "10s", 0.5, "8s")
    live = Live(strategy, "ab")
    steady = [tenth / 10 for tenth in range(30)]
    assert live.poll(0, a=steady).status.bound_ms == 10_000, "that of b, which was not measured"
    assert live.poll(1, b=steady).status.bound_ms == 0


def test_at_the_end_of_a_replay_all_splits_are_finished_and_the_lowest_is_named() -> None:
    """The group's watermark is the highest then."""
    source = written({"a": [at("a", 9)], "b": [at("b", 5)], "c": [at("c", 7)]})
    polls = drain(source.reader(ZERO, ReadSettings(clock=Clock(20))))
    status = polls[-1].status
    assert [each.state for each in status.splits] == [FINISHED] * 3
    assert (status.watermark_ms, status.held_by, status.lag_ms) == (9_000, "b", 11_000)


def test_in_a_replay_a_finished_split_holds_nobody() -> None:
    """The others are read on."""
    source = written({"long": [at("long", s) for s in range(5, 30)], "short": [at("short", 1)]})
    reader = source.reader(ZERO, ReadSettings(block_bytes=100))
    while (status := reader.poll().status).count(FINISHED) == 0:
        assert status.held_by is not None
    assert [(each.split, each.state) for each in status.splits] == [
        ("long", ACTIVE),
        ("short", FINISHED),
    ]
    assert status.held_by == "long"


@pytest.fixture
def nothing_published() -> Iterator[None]:
    """Other tests of this process run jobs."""
    unpublish()
    yield
    unpublish()


@pytest.mark.usefixtures("nothing_published")
def test_the_status_published_last_is_shown_until_it_is_forgotten() -> None:
    """To who looks on in this process."""
    assert published() is None
    first, second = GroupStatus(1), GroupStatus(2)
    publish(first)
    publish(second)
    assert published() is second
    unpublish()
    assert published() is None

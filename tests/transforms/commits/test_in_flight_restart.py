"""The next run: what was settled is left out, what was not is counted anew, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.commits.checkpoints import Checkpoint
from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.commits.tally import Position
from beam_lateness.transforms.times import MIN_EVENT_TIME_MS
from tests.transforms.commits.flights import LOG, QUEUE, WINDOWS, Flight, Kept, Rec

CLOSED = WINDOWS.closed_at(0)
END = WINDOWS.end_of(0)
LATENESS = WINDOWS.allowed_lateness_ms
FEW = settings(max_examples=100, deadline=None)


def positions_of(rows: list[dict[str, Position]]) -> list[Position]:
    """Names the rows."""
    return [row["position"] for row in rows]


def test_where_the_source_begins_is_kept_before_anything_is_read() -> None:
    """So that a start at `latest` is the same start after a crash."""
    kept = Kept()
    Flight(kept).core.begin({"other": 7})
    assert {name: split.resume for name, split in kept.last.splits.items()} == {LOG: 0, "other": 7}


def test_a_run_that_goes_on_keeps_the_first_ones_name_and_the_settled_watermark() -> None:
    """From run to run; the new one is not clean until it ends."""
    kept = Kept()
    first = Flight(kept)
    first.admit(watermark=99)
    first.commit(clean=True)
    assert kept.last.clean
    for run in ("run-2", "run-3"):
        assert Flight(kept, run=run).core.watermark_ms == 99
        assert (kept.last.runs[0], kept.last.run, kept.last.clean) == ("run-1", run, False)


@FEW
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1), st.integers(0, 60))
def test_a_log_that_is_read_again_gives_what_was_not_settled(
    records: list[tuple[int, bool]], watermark: int
) -> None:
    """All records of open windows, none of settled ones; a dead letter that was not written."""
    kept = Kept()
    flight = Flight(kept)
    read = [Rec(offset, ts) for offset, (ts, _) in enumerate(records)]
    flight.admit(*read, watermark=watermark)
    stored = {WINDOWS.end_of(ts) for ts, is_stored in records if is_stored}
    for end in stored:
        flight.store(end, sum(WINDOWS.end_of(rec.ts) == end for rec in read))
    resume = flight.commit().resume
    floor = kept.last.watermark_ms
    later = Flight(kept, run="run-2")
    again = [rec._replace(stamp=floor) for rec in read[resume:]]
    rows = later.admit(*again, watermark=floor)
    wanted = [rec.position for rec in read if WINDOWS.closed_at(rec.ts) > floor]
    assert positions_of(rows) == wanted
    assert later.core.count() == len(wanted)


@pytest.mark.parametrize("buried", [False, True])
def test_a_dead_letter_comes_again_unless_it_was_written(buried: bool) -> None:
    """Too late, or no record at all: of an offset the checkpoint tells which."""
    kept = Kept()
    flight = Flight(kept)
    flight.admit(Rec(0, 3), Rec(1, 33), watermark=CLOSED)
    flight.store(END, 1)
    flight.commit()
    flight.admit(Rec(2, 4, CLOSED), watermark=CLOSED + 1, invalid=[3])
    if buried:
        flight.bury_too_late(2, 4)
        flight.bury(3)
    assert flight.commit().resume == 1
    later = Flight(kept, run="run-2")
    rows = later.admit(Rec(1, 33, CLOSED + 1), Rec(2, 4, CLOSED + 1), invalid=[3])
    assert positions_of(rows) == ([1] if buried else [1, 2, 3])


def test_a_settled_message_that_comes_again_is_acknowledged_again() -> None:
    """And left out, whatever its time."""
    kept = Kept()
    flight = Flight(kept, QUEUE)
    flight.admit(Rec("m", 3), watermark=CLOSED, invalid=["bad"])
    flight.store(END, 1)
    flight.bury("bad")
    assert set(flight.commit().positions) == {"m", "bad"}
    later = Flight(kept, QUEUE, run="run-2")
    rows = later.admit(Rec("m", 3, CLOSED), Rec("n", 3, CLOSED), invalid=["bad"])
    assert positions_of(rows) == ["n"]
    assert later.settle() == {"m", "bad"}


def test_a_settled_message_is_known_two_runs_later() -> None:
    """A run that dies before the message comes again has not acknowledged it."""
    kept = Kept()
    flight = Flight(kept, QUEUE)
    flight.admit(Rec("m", 3), watermark=CLOSED)
    flight.store(END, 1)
    assert flight.commit().positions == ["m"]
    Flight(kept, QUEUE, run="run-2").commit()
    third = Flight(kept, QUEUE, run="run-3")
    assert third.admit(Rec("m", 3, CLOSED), watermark=CLOSED) == []
    assert third.settle() == {"m"}
    third.commit(clean=True)
    assert kept.split(QUEUE).settled == []


def test_a_settled_message_is_known_after_a_run_that_waited_for_it_in_vain() -> None:
    """A service may give it back later than the time a reader waits for that."""
    kept = Kept()
    flight = Flight(kept, QUEUE)
    flight.admit(Rec("m", 3), watermark=CLOSED)
    flight.store(END, 1)
    assert flight.commit().positions == ["m"]
    second = Flight(kept, QUEUE, run="run-2")
    second.core.end_recovery()
    second.admit(watermark=CLOSED + 1)
    second.commit()
    third = Flight(kept, QUEUE, run="run-3")
    assert third.admit(Rec("m", 3, CLOSED + 1), watermark=CLOSED + 1) == []


def test_a_dead_letter_stays_one_if_it_would_be_a_record_now() -> None:
    """A time from the future is none some minutes later: the record must not be in two places."""
    kept = Kept()
    flight = Flight(kept)
    flight.admit(Rec(0, 3), watermark=END, invalid=[1])
    flight.bury(1)
    assert flight.commit().resume == 0
    later = Flight(kept, run="run-2")
    assert positions_of(later.admit(Rec(0, 3, END), Rec(1, 33, END), watermark=END)) == [0]


def test_a_record_of_an_open_window_that_is_none_now_becomes_a_dead_letter() -> None:
    """As when a clock was put back, or a generator fails on it: it must be in some place."""
    kept = Kept()
    flight = Flight(kept)
    flight.admit(Rec(0, 3), Rec(1, 4), watermark=END)
    flight.commit()
    later = Flight(kept, run="run-2")
    rows = later.admit(Rec(0, 3, END), watermark=END, invalid=[1])
    assert positions_of(rows) == [0, 1]


def test_a_run_that_dies_while_it_reads_again_leaves_what_it_has_not_read_open() -> None:
    """A dead letter of the first run that was not written is not forgotten by the second."""
    kept = Kept()
    flight = Flight(kept)
    flight.admit(Rec(0, 3), watermark=END, invalid=[1, 2])
    flight.bury(2)
    flight.commit()
    second = Flight(kept, run="run-2")
    second.admit(Rec(0, 3, END), watermark=END)
    second.commit()
    assert kept.split()[:2] == (3, 0)
    third = Flight(kept, run="run-3")
    assert positions_of(third.admit(Rec(0, 3, END), invalid=[1, 2])) == [0, 1]


def test_a_dead_letter_stays_open_for_a_run_that_has_not_come_to_it() -> None:
    """Of a settled window, in which every other record of the log is settled."""
    kept = Kept()
    flight = Flight(kept)
    flight.admit(Rec(0, 33), Rec(1, 3), watermark=CLOSED)
    flight.store(END, 1)
    flight.commit()
    flight.admit(Rec(2, 4, CLOSED), watermark=CLOSED)
    flight.commit()
    second = Flight(kept, run="run-2")
    second.admit(Rec(0, 33, CLOSED), watermark=CLOSED)
    second.commit()
    third = Flight(kept, run="run-3")
    rows = third.admit(Rec(0, 33, CLOSED), Rec(1, 3, CLOSED), Rec(2, 4, CLOSED))
    assert positions_of(rows) == [0, 2]


class Retractions:
    """Notes what is retracted, and what a checkpoint said then."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, runs: Sequence[str], low_ms: int, high_ms: int) -> None:
        self.calls.append((*runs, low_ms, high_ms))
        self.kept.told.append("retract")


def test_only_a_run_that_goes_on_retracts_and_before_it_settles() -> None:
    """The ends of the windows that it settles now: from the last settled watermark to this one."""
    kept = Kept()
    notes = Retractions(kept)
    first = Flight(kept, retract=notes)
    first.admit(watermark=20)
    first.commit()
    assert notes.calls == []
    second = Flight(kept, run="run-2", retract=notes)
    for watermark in (40, 41):
        second.admit(watermark=watermark)
        kept.told.clear()
        second.commit()
        assert kept.told == ["retract", "write"]
    assert notes.calls == [
        ("run-1", 20 - LATENESS, 40 - LATENESS),
        ("run-1", 40 - LATENESS, 41 - LATENESS),
    ]


def test_the_first_windows_of_a_source_can_be_retracted_by_any_database() -> None:
    """A range from before the first event time on, and no smaller number."""
    kept = Kept()
    Flight(kept)
    notes = Retractions(kept)
    second = Flight(kept, run="run-2", retract=notes)
    second.admit(watermark=40)
    second.commit()
    assert notes.calls == [("run-1", MIN_EVENT_TIME_MS - LATENESS, 40 - LATENESS)]


def test_a_retraction_that_fails_settles_nothing() -> None:
    """The checkpoint stays as it was, and nothing is to be acknowledged."""
    kept = Kept()
    Flight(kept, QUEUE)

    def fail(runs: Sequence[str], low_ms: int, high_ms: int) -> None:
        msg = "database is locked"
        raise OSError(msg)

    flight = Flight(kept, QUEUE, run="run-2", retract=fail)
    flight.admit(Rec("m", 3), watermark=CLOSED)
    flight.store(END, 1)
    written = len(kept.written)
    with pytest.raises(OSError, match="locked"):
        flight.commit()
    assert len(kept.written) == written
    assert flight.core.count() == 1


def test_a_run_must_sort_after_the_one_before() -> None:
    """Else its panes would replace no row, and count as stored all the same."""
    kept = Kept()
    Flight(kept, run="run-2")
    for run in ("run-1", "run-2"):
        with pytest.raises(ValueError, match="must sort after 'run-2'"):
            Flight(kept, run=run)


def test_a_run_that_has_left_nothing_is_forgotten() -> None:
    """Once a retraction says that no later window has rows of earlier runs."""
    kept = Kept()
    Flight(kept)
    second = Flight(kept, run="run-2", retract=lambda runs, low, high: True)
    known = [kept.last.runs]
    second.admit(watermark=40)
    second.commit()
    assert [*known, kept.last.runs] == [("run-1", "run-2"), ("run-2",)]


def test_part_of_a_checkpoint_is_not_begun_anew() -> None:
    """A subscription more, or less, would open settled windows again."""
    kept = Kept(Checkpoint("a,b", "", ("run-1",), 0))
    for source in ("a", "b,c"):
        with pytest.raises(ValueError, match="as part of a,b"):
            InFlight(source, "run-2", WINDOWS, OnlyOf(kept), True, True)
    InFlight("c", "run-2", WINDOWS, OnlyOf(kept), True, True)


class OnlyOf(Kept):
    """Knows other sources only."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(*kept.written)

    def load(self, source: str) -> Checkpoint | None:
        return None

"""What is settled, and when: closed, and in the store with all that was accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import Windows
from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.times import NO_WATERMARK_MS
from tests.transforms.commits.flights import LOG, QUEUE, SOURCE, WINDOWS, Flight, Kept, Rec

CLOSED = WINDOWS.closed_at(0)  # of the window of event time 0
END = WINDOWS.end_of(0)
FEW = settings(max_examples=100, deadline=None)


@pytest.mark.parametrize("watermark", [END, CLOSED - 1, CLOSED])
@pytest.mark.parametrize("stored", [False, True])
def test_a_record_is_settled_when_its_window_is_closed_and_in_the_store(
    watermark: int, stored: bool
) -> None:
    """Both are needed, of an offset as of a message id."""
    wanted = stored and watermark >= CLOSED
    log, queue = Flight(Kept()), Flight(Kept(), QUEUE)
    log.admit(Rec(0, 3), watermark=watermark)
    queue.admit(Rec("m", 3), watermark=watermark)
    if stored:
        log.store(END, 1)
        queue.store(END, 1)
    assert (log.commit().resume > 0) == wanted
    assert (queue.commit().positions == ["m"]) == wanted


@FEW
@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=12),
)
def test_a_window_is_settled_when_the_panes_stand_on_every_record(
    accepted: dict[str, int], told: list[tuple[str, int]]
) -> None:
    """Whatever is told twice, or in another order: an older pane tells nothing new."""
    flight = Flight(Kept())
    keys = [key for key, count in accepted.items() for _ in range(count)]
    flight.admit(*(Rec(i, i % 10, key=key) for i, key in enumerate(keys)), watermark=CLOSED)
    stored = dict.fromkeys(accepted, 0)
    for key, count in told:
        if key in accepted:  # a pane of no more records than there are
            stored[key] = max(stored[key], min(count, accepted[key]))
            flight.store(END, min(count, accepted[key]), index=count - 1, key=key)
    assert (flight.commit().resume == len(keys)) == (stored == accepted)


def test_a_window_waits_for_its_late_panes_too() -> None:
    """A record that was accepted late is one of its records."""
    flight = Flight(Kept())
    flight.admit(Rec(0, 3), watermark=END)
    flight.store(END, 1)
    flight.admit(Rec(1, 4, stamp=END), watermark=CLOSED)
    assert flight.commit().resume == 0
    flight.store(END, 1)
    assert flight.commit().resume == 0
    flight.store(END, 2, index=1)
    assert flight.commit().resume == 2


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 60)),
        st.tuples(st.just("watermark"), st.integers(0, 80)),
        st.tuples(st.just("store"), st.integers(0, 6)),
        st.tuples(st.just("commit"), st.just(0)),
    ),
    max_size=40,
)


@FEW
@given(STEPS)
def test_the_settled_watermark_stops_before_the_first_window_that_is_not_stored(
    steps: list[tuple[str, int]],
) -> None:
    """Else it is the source's; it never goes back; every offset not settled is read again."""
    flight = Flight(Kept())
    watermark, settled, offset = NO_WATERMARK_MS, NO_WATERMARK_MS, 0
    waiting: dict[int, list[int]] = {}  # by the end of their window
    panes: dict[int, int] = {}
    for name, number in steps:
        if name == "read" and watermark < WINDOWS.closed_at(number):
            flight.admit(Rec(offset, number, watermark), watermark=watermark)
            waiting.setdefault(WINDOWS.end_of(number), []).append(offset)
            offset += 1
        elif name == "watermark":
            watermark = max(watermark, number)
            flight.admit(watermark=watermark)
        elif name == "store" and (end := 10 * number) in waiting:
            panes[end] = panes.get(end, -1) + 1
            flight.store(end, len(waiting[end]), panes[end])
            waiting[end] = [-1] * len(waiting[end])  # in the store
        elif name == "commit":
            resume = flight.commit().resume
            closed = [end for end in waiting if end + 5 <= watermark]
            open_ends = [end for end in closed if set(waiting[end]) != {-1}]
            limit = min(watermark, min(open_ends, default=10**6) + 4)
            settled = max(settled, limit)
            assert flight.core.watermark_ms == flight.kept.last.watermark_ms == settled
            alive = [end for end in waiting if end + 5 > settled]
            assert all(o >= resume for end in alive for o in waiting[end] if o >= 0)
    times = [checkpoint.watermark_ms for checkpoint in flight.kept.written]
    assert times == sorted(times)


def test_a_pane_of_another_window_settles_nothing() -> None:
    """Nor does a pane of a window of which nothing is in flight."""
    flight = Flight(Kept())
    flight.admit(Rec(0, 3), watermark=CLOSED)
    flight.store(END + 10, 1)
    assert flight.commit().resume == 0


@pytest.mark.parametrize("keep", [True, False])
def test_a_too_late_record_waits_until_its_window_is_settled(keep: bool) -> None:
    """Then it goes on, once, as it came; only a dead letter that is kept must be written first."""
    flight = Flight(Kept(), QUEUE, keep=keep)
    flight.admit(Rec("m", 3), watermark=CLOSED)
    late = Rec("late", 4, stamp=CLOSED + 1)
    assert flight.admit(late, watermark=CLOSED + 2) == []
    assert flight.settle() == set()
    assert flight.admit(watermark=CLOSED + 3) == []
    flight.store(END, 1)
    assert flight.settle() == {"m"}
    (row,) = flight.admit(watermark=CLOSED + 3)
    assert (row["position"], row["event_time"], row["watermark"]) == late[:3]
    assert flight.admit(watermark=CLOSED + 4) == []
    assert flight.settle() == (set() if keep else {"late"})
    flight.bury_too_late("late", 4)
    assert flight.settle() == ({"late"} if keep else set())
    assert flight.core.count() == 0


def test_a_too_late_record_of_a_settled_window_goes_on_at_once() -> None:
    """Beside what is accepted, in its place."""
    flight = Flight(Kept())
    flight.admit(watermark=CLOSED)
    flight.commit()
    records = Rec(0, 4, CLOSED), Rec(1, CLOSED + 9, CLOSED), Rec(2, 5, CLOSED)
    assert [row["position"] for row in flight.admit(*records)] == [0, 1, 2]


def test_a_window_without_records_is_settled_when_it_is_closed() -> None:
    """There is nothing to wait for; one that is not closed keeps its too late records out."""
    flight = Flight(Kept())
    flight.admit(watermark=CLOSED)
    assert flight.admit(Rec(0, 4, CLOSED), watermark=CLOSED) == []  # no checkpoint says so yet
    flight.commit()
    assert [row["position"] for row in flight.admit()] == [0]


def test_an_offset_that_is_held_or_whose_dead_letter_is_not_written_stays_open() -> None:
    """It is read again after a crash, and told from those around it that are settled."""
    flight = Flight(Kept())
    flight.admit(Rec(0, 3), Rec(2, 4), watermark=CLOSED, invalid=[1])
    flight.admit(Rec(3, 5, CLOSED), watermark=CLOSED)
    flight.store(END, 2)
    assert flight.commit().resume == 1
    assert set(flight.kept.split().open) == {1, 3}
    flight.admit()  # the held one goes on
    flight.bury(1)
    flight.bury_too_late(3, 5)
    flight.admit(watermark=CLOSED + 1)
    flight.commit()
    assert flight.kept.split()[:3] == (4, 4, [])


def test_a_dead_letter_is_settled_for_good_when_nothing_else_moves() -> None:
    """In a quiet input too: it would be written again after a crash, and the group would lag."""
    flight = Flight(Kept())
    flight.admit(invalid=[0])
    flight.commit()
    assert flight.kept.split()[:3] == (1, 0, [0])
    flight.bury(0)
    assert flight.commit().resume == 1
    assert flight.kept.split()[:3] == (1, 1, [])


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_no_record_is_settled_when_its_dead_letter_is_written(keep: bool) -> None:
    """At once, if none is."""
    flight = Flight(Kept(), QUEUE, keep=keep)
    (row,) = flight.admit(invalid=["m"])
    assert row["position"] == "m"
    assert flight.settle() == (set() if keep else {"m"})
    flight.bury("m")
    flight.bury("m")
    assert flight.settle() == ({"m"} if keep else set())


def test_a_dead_letter_of_nothing_in_flight_is_no_news() -> None:
    """Other sources' records have no position, or one of another split."""
    flight = Flight(Kept(), QUEUE)
    flight.bury("stranger")
    assert flight.settle() == set()


@pytest.mark.parametrize(("settled", "gone"), [(20, False), (21, True)])
def test_a_marker_is_settled_when_the_settled_watermark_is_past_it(
    settled: int, gone: bool
) -> None:
    """Until then it is read again, to move the watermark again."""
    queue, log = Flight(Kept(), QUEUE), Flight(Kept())
    queue.admit(markers=[("m", 20)], watermark=settled)
    log.admit(markers=[(0, 20)], watermark=settled)
    assert queue.settle() == ({"m"} if gone else set())
    assert log.commit().resume == int(gone)


def test_settled_ids_stay_in_the_checkpoint_until_they_are_acknowledged() -> None:
    """A message that comes again although it is settled is known by that."""
    flight = Flight(Kept(), QUEUE)
    flight.admit(Rec("m", 3), Rec("n", 3), watermark=CLOSED)
    flight.store(END, 2)
    assert set(flight.commit().positions) == {"m", "n"}
    assert set(flight.kept.split(QUEUE).settled) == {"m", "n"}
    flight.core.confirm(QUEUE, ["n"])
    assert flight.commit(clean=True).positions == ["n"]
    assert flight.kept.split(QUEUE).settled == ["n"]
    flight.core.confirm(QUEUE, [])
    assert flight.commit(clean=True).positions == []
    assert flight.kept.split(QUEUE).settled == []


def test_without_news_a_checkpoint_is_written_once_a_second() -> None:
    """A window that is settled is news: it is written at once."""
    flight = Flight(Kept())
    flight.core.commit()
    flight.admit(Rec(0, 3), watermark=END)
    flight.core.commit()
    assert len(flight.kept.written) == 1  # `begin`
    flight.commit()
    flight.commit()
    assert len(flight.kept.written) == 2
    flight.admit(watermark=CLOSED)
    flight.store(END, 1)
    flight.core.commit()
    assert len(flight.kept.written) == 3
    assert flight.kept.split(LOG).resume == 1


@pytest.mark.parametrize(
    "windows", [Windows("20ms", "5ms"), Windows("10ms", "6ms"), Windows("10ms", "5ms", "1ms")]
)
def test_a_checkpoint_of_other_windows_is_refused(windows: Windows) -> None:
    """What is settled by one set of windows is not by another; nothing is written."""
    kept = Flight(Kept()).kept
    with pytest.raises(ValueError, match=r"--window, --window_offset and --allowed_lateness"):
        InFlight(SOURCE, "run-2", windows, kept, True, True)
    assert len(kept.written) == 1

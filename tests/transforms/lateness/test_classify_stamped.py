"""Stamped records are judged by their stamps alone, exactly as the reference model judges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import RouteTooLate, Windows
from tests.cases.load import Advance, Step, judge, windows_of
from tests.model import NO_WATERMARK, Event, bounded
from tests.transforms.lateness.batches import batch_of, route

SMALL = st.integers(-60, 60)


@st.composite
def small_windows(draw: st.DrawFn) -> Windows:
    """Draws windows small enough that boundaries are met all the time."""
    size = draw(st.integers(1, 20))
    return windows_of(size, draw(st.integers(0, 20)), draw(st.integers(0, size - 1)))


@st.composite
def event_lists(draw: st.DrawFn) -> list[Event]:
    """Draws records, named by their place."""
    rows = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9), SMALL), max_size=40))
    return [Event(key, value, ts, str(name)) for name, (key, value, ts) in enumerate(rows)]


@given(windows=small_windows(), events=event_lists(), bound=st.integers(0, 10))
@settings(max_examples=300)
def test_verdicts_equal_the_models_record_by_record(
    windows: Windows, events: list[Event], bound: int
) -> None:
    """The same records are accepted, in order, and the same are too late."""
    stamped = list(bounded(events, bound))
    model = judge([], windows)
    verdicts = {}
    for event, watermark in stamped:
        model.watermark = watermark
        verdicts[event.name] = model.record(event)
    accepted, too_late = route(batch_of(stamped), windows)
    names = [row["record_id"] for batch in accepted for row in batch.to_pylist()]
    assert names == [event.name for event in events if verdicts[event.name]]
    assert [r.record_id for r in too_late] == [e.name for e in events if not verdicts[e.name]]


@given(windows=small_windows(), events=event_lists(), bound=st.integers(0, 10))
def test_a_too_late_record_tells_its_window_and_exact_distance(
    windows: Windows, events: list[Event], bound: int
) -> None:
    """Nothing of the record is lost, and late_by_ms = watermark - (end + allowed lateness) >= 0."""
    stamped = {event.name: (event, watermark) for event, watermark in bounded(events, bound)}
    _, too_late = route(batch_of(list(stamped.values()), split="day.jsonl"), windows)
    for record in too_late:
        event, watermark = stamped[str(record.record_id)]
        start = judge([], windows).start_of(event.ts)
        closed = start + windows.size_ms + windows.allowed_lateness_ms
        assert (record.key, record.value, record.event_time) == (event.key, event.value, event.ts)
        assert (record.window_start, record.window_end) == (start, start + windows.size_ms)
        assert (record.watermark, record.late_by_ms) == (watermark, watermark - closed)
        assert record.late_by_ms is not None
        assert record.late_by_ms >= 0
        assert (record.split, record.payload) == ("day.jsonl", event.name.encode())
        assert record.position == list(stamped).index(event.name)


@given(windows=small_windows(), ts=SMALL, past=st.integers(-2, 2))
def test_the_boundary_is_the_windows_end_plus_allowed_lateness(
    windows: Windows, ts: int, past: int
) -> None:
    """At end + L - 1 a record is accepted, at end + L it is too late."""
    closed = windows.closed_at(ts)
    accepted, too_late = route(batch_of([(Event("a", 1, ts, "x"), closed + past)]), windows)
    assert (len(accepted), len(too_late)) == ((1, 0) if past < 0 else (0, 1))
    assert [record.late_by_ms for record in too_late] == ([past] if past >= 0 else [])


@given(windows=small_windows(), events=event_lists(), wm=SMALL)
def test_nothing_is_lost_or_doubled(windows: Windows, events: list[Event], wm: int) -> None:
    """Accepted + too late = all, whatever the watermark."""
    accepted, too_late = route(batch_of([(event, wm) for event in events]), windows)
    names = [row["record_id"] for batch in accepted for row in batch.to_pylist()]
    names += [record.record_id for record in too_late]
    assert sorted(names) == sorted(event.name for event in events)


@given(windows=small_windows(), ts=SMALL, wm=SMALL)
def test_a_record_at_or_after_the_watermark_is_never_too_late(
    windows: Windows, ts: int, wm: int
) -> None:
    """Its window ends after it, hence after the watermark."""
    _, too_late = route(batch_of([(Event("a", 1, max(ts, wm), "x"), wm)]), windows)
    assert too_late == []


@given(events=event_lists())
def test_nothing_is_too_late_before_the_first_watermark(events: list[Event]) -> None:
    """The least watermark is before every window."""
    batch = batch_of([(event, NO_WATERMARK) for event in events])
    _, too_late = route(batch, windows_of(1))
    assert too_late == []


@given(events=event_lists(), wm=SMALL)
def test_more_allowed_lateness_accepts_no_less(events: list[Event], wm: int) -> None:
    """What is too late with 10 ms is too late with 0."""
    batch = batch_of([(event, wm) for event in events])
    patient, strict = route(batch, windows_of(7, 10))[1], route(batch, windows_of(7))[1]
    assert {r.record_id for r in patient} <= {r.record_id for r in strict}


def test_a_batch_without_too_late_records_passes_as_it_is() -> None:
    """The usual batch is not copied."""
    batch = batch_of([(Event("a", 1, 5), 0), (Event("a", 1, 6), 5)])
    accepted, _ = route(batch, windows_of(10))
    assert accepted[0] is batch


def test_the_payload_loses_its_line_break_only() -> None:
    """The record as it was read, without \\n or \\r\\n."""
    batch = batch_of([(Event("a", 1, 0, "  {x} \r\n"), 50)])
    _, (record,) = route(batch, windows_of(10))
    assert record.payload == b"  {x} "


@pytest.mark.parametrize("verdict", ["stamps", "", "Engine"])
def test_an_unknown_verdict_is_refused(verdict: str) -> None:
    """The message names the choices."""
    with pytest.raises(ValueError, match=f"verdict must be one of stamp, engine, got {verdict!r}"):
        RouteTooLate(windows_of(10), verdict)


@given(windows=small_windows(), events=event_lists(), marks=st.lists(SMALL, max_size=8))
def test_the_model_and_the_stamps_agree_on_any_watermark(
    windows: Windows, events: list[Event], marks: list[int]
) -> None:
    """Watermarks between records, in any order; a lower one has no effect."""
    steps: list[Step] = [*events]
    for place, mark in enumerate(marks):
        steps.insert(place * 5 % (len(steps) + 1), Advance(mark))
    stamped, watermark = [], NO_WATERMARK
    for step in steps:
        if isinstance(step, Event):
            stamped.append((step, watermark))
        elif step.watermark is not None:
            watermark = max(watermark, step.watermark)
    _, too_late = route(batch_of(stamped), windows)
    assert [r.record_id for r in too_late] == [e.name for e in judge(steps, windows).too_late]

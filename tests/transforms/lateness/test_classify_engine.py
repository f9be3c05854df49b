"""Records without a stamp, and suspicious ones if asked, are judged by the engine's watermark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from beam_lateness import AggregateWindows, EventBatch, RouteTooLate, TooLateRecord
from beam_lateness.transforms.beam_time import to_timestamp
from tests.cases.check import check_all, check_conserved, final_values, of_steps
from tests.cases.engine import (
    Outcome,
    direct_pipeline,
    keep,
    kept,
    outcome,
    route_and_aggregate,
    run_records,
    stream_of,
)
from tests.cases.load import windows_of
from tests.transforms.lateness.script import composites, run_batches, steps_of

NOW_S = 1_700_000_000
FIVE_AND_TWO = windows_of(5000, 2000)


@pytest.mark.parametrize(("past_ms", "too_late"), [(-1, 0), (0, 1), (1, 1)])
def test_the_engine_draws_the_line_at_end_plus_allowed_lateness(
    past_ms: int, too_late: int, tmp_path: Path
) -> None:
    """A key never seen before, at watermark end + L - 1, end + L and end + L + 1."""
    steps = steps_of(f"wm 0; a:1@3; wm {7 + past_ms / 1000}; new:2@4; end")
    got = run_records(steps, FIVE_AND_TWO, tmp_path)
    assert len(got.too_late) == too_late
    check_all(got, of_steps(steps, FIVE_AND_TWO), stamped=False)


def test_a_too_late_pair_keeps_key_value_time_and_window(tmp_path: Path) -> None:
    """What only a stamp could tell is None."""
    steps = steps_of("wm 7.5; c:9@0.25; end")
    got = run_records(steps, FIVE_AND_TWO, tmp_path)
    assert got.too_late == [TooLateRecord("c", 9, 250, 0, 5000)]


def test_elements_that_are_no_pairs_are_judged_too(tmp_path: Path) -> None:
    """The element is the value; there is no key."""
    stream = stream_of(steps_of("wm 7.5; c:9@0; c:8@6"), record=lambda event: [event.value])
    with direct_pipeline() as pipeline:
        routed = pipeline | stream | RouteTooLate(FIVE_AND_TWO)
        keep(routed.accepted, tmp_path, "accepted")
        keep(routed.too_late, tmp_path, "too_late")
    assert kept(tmp_path, "accepted") == [[8]]
    assert kept(tmp_path, "too_late") == [TooLateRecord(None, [9], 0, 0, 5000)]


def test_records_stamped_back_after_the_source_are_too_late_not_lost(tmp_path: Path) -> None:
    """C20: a Map moves ten timestamps an hour back, behind a watermark of now."""
    windows = windows_of(60_000, 60_000)
    steps = steps_of(f"wm {NOW_S}; " + "; ".join(f"k:{v}@{NOW_S}" for v in range(10)) + "; end")
    with direct_pipeline() as pipeline:
        moved = pipeline | stream_of(steps) | "MoveBack" >> beam.Map(_an_hour_back)
        route_and_aggregate(moved, windows, tmp_path)
    got = outcome(tmp_path)
    assert (got.panes, sorted(r.value for r in got.too_late)) == ([], list(range(10)))


def _an_hour_back(pair: tuple[str, int]) -> Any:
    return TimestampedValue(pair, Timestamp(NOW_S - 3600))


@pytest.mark.parametrize(
    "timestamp",
    [MIN_TIMESTAMP, MAX_TIMESTAMP - 1, to_timestamp(-(9 * 10**15)), to_timestamp(9 * 10**15)],
    ids=str,
)
def test_a_timestamp_out_of_range_is_invalid_and_moves_nothing(
    timestamp: Timestamp, tmp_path: Path
) -> None:
    """C19: far ends, and what never got a timestamp; the honest record has its pane."""
    steps = steps_of("wm 0; a:1@3; wm 1; end")
    stream = stream_of(steps[:2]).add_elements([TimestampedValue(("a", 5), timestamp)])
    stream = stream.advance_watermark_to(to_timestamp(6999))
    stream = stream.add_elements([TimestampedValue(("a", 2), to_timestamp(4000))])
    with direct_pipeline() as pipeline:
        records = pipeline | stream.advance_watermark_to_infinity()
        route_and_aggregate(records, FIVE_AND_TWO, tmp_path)
    got = outcome(tmp_path)
    assert final_values(got.panes) == {("a", (0, 5000)): 3}
    assert [(record.reason, record.payload) for record in got.invalid] == [
        ("event_time_out_of_range", b"('a', 5)")
    ]


def run_bounded(elements: list[Any], folder: Path) -> Outcome:
    """Runs a bounded collection of (pair, ms); a pair without ms gets no timestamp."""
    with direct_pipeline() as pipeline:
        records = pipeline | beam.Create(elements) | "Stamp" >> beam.Map(_stamp)
        route_and_aggregate(records, FIVE_AND_TWO, folder)
    return outcome(folder)


def _stamp(element: tuple[Any, int | None]) -> Any:
    pair, ms = element
    return pair if ms is None else TimestampedValue(pair, to_timestamp(ms))


def test_nothing_is_late_in_a_bounded_collection(tmp_path: Path) -> None:
    """Its watermark stays at the start until its end, whatever the order."""
    got = run_bounded([(("a", 1), 900_000), (("a", 2), 3), (("b", 4), -5), (("a", 8), 4)], tmp_path)
    assert (got.too_late, got.invalid) == ([], [])
    assert final_values(got.panes) == {
        ("a", (900_000, 905_000)): 1,
        ("a", (0, 5000)): 10,
        ("b", (-5000, 0)): 4,
    }
    assert {(pane.timing, pane.index) for pane in got.panes} == {("ON_TIME", 0)}


def test_a_bounded_element_without_timestamp_is_invalid(tmp_path: Path) -> None:
    """C19: t=None."""
    got = run_bounded([(("a", 1), 3), (("a", 2), None)], tmp_path)
    assert final_values(got.panes) == {("a", (0, 5000)): 1}
    assert [record.reason for record in got.invalid] == ["event_time_out_of_range"]


def test_a_bounded_collection_is_not_shuffled() -> None:
    """No GroupByKey in the graph, where an unbounded one has one."""
    shuffles = {}
    for bounded in (True, False):
        pipeline = direct_pipeline()
        source = beam.Create([("a", 1)], reshuffle=False) if bounded else stream_of([])
        _ = pipeline | source | RouteTooLate(FIVE_AND_TWO)
        found = [t for t in composites(pipeline) if isinstance(t, beam.GroupByKey)]
        shuffles[bounded] = len(found)
    assert shuffles == {True: 0, False: 1}


@pytest.mark.parametrize(("engine_s", "too_late"), [("6.999", 0), ("7", 1)])
def test_the_engine_overrules_a_suspicious_stamp_if_asked(
    engine_s: str, too_late: int, tmp_path: Path
) -> None:
    """After a Flatten the engine's watermark is the lowest of all sources'."""
    steps = steps_of(f"a:1@3; wm {engine_s}; a:2@4; end")
    got = run_batches(steps, [0, 20_000], FIVE_AND_TWO, tmp_path, "engine")
    assert [record.late_by_ms for record in got.too_late] == [13_000] * too_late
    assert final_values(got.panes) == {("a", (0, 5000)): 1 if too_late else 3}
    check_conserved(got, of_steps(steps, FIVE_AND_TWO))


def test_the_stamp_decides_unless_the_engine_is_asked(tmp_path: Path) -> None:
    """The same record is too late by its own source's watermark."""
    steps = steps_of("a:1@3; wm 6.999; a:2@4; end")
    got = run_batches(steps, [0, 7000], FIVE_AND_TWO, tmp_path, "stamp")
    assert [(r.value, r.late_by_ms) for r in got.too_late] == [(2, 0)]


@pytest.mark.parametrize("verdict", ["stamp", "engine"])
def test_an_innocent_stamp_is_accepted_without_asking(verdict: str, tmp_path: Path) -> None:
    """A stamp before end + L means that the engine's watermark is no further."""
    steps = steps_of("a:1@3; wm 6.999; a:2@4; end")
    got = run_batches(steps, [0, 6999], FIVE_AND_TWO, tmp_path, verdict)
    assert final_values(got.panes) == {("a", (0, 5000)): 3}
    assert got.too_late == []


def test_stamped_batches_are_not_shuffled_unless_the_engine_is_asked() -> None:
    """The stamped path has no GroupByKey."""
    shuffles = {}
    for verdict in ("stamp", "engine"):
        pipeline = direct_pipeline()
        batches = pipeline | stream_of([])
        batches.element_type = EventBatch
        _ = batches | RouteTooLate(FIVE_AND_TWO, verdict)
        found = [t for t in composites(pipeline) if isinstance(t, beam.GroupByKey)]
        shuffles[verdict] = len(found)
    assert shuffles == {"stamp": 0, "engine": 1}


def test_what_is_routed_out_leaves_in_the_global_window() -> None:
    """So that it can be flattened with the source's invalid records: windows that differ crash
    Prism."""
    routed = direct_pipeline() | stream_of([]) | RouteTooLate(FIVE_AND_TWO)
    for routed_out in (routed.too_late, routed.invalid):
        assert routed_out.windowing.windowfn == GlobalWindows()


def test_accepted_records_keep_their_type() -> None:
    """A user's next step finds its coder."""
    pipeline = direct_pipeline()
    records = pipeline | stream_of([]).with_output_types(tuple[str, int])
    records.element_type = beam.typehints.Tuple[str, int]
    routed = records | RouteTooLate(FIVE_AND_TWO)
    assert routed.accepted.element_type == beam.typehints.Tuple[str, int]
    assert AggregateWindows(FIVE_AND_TWO).expand(routed.accepted) is not None

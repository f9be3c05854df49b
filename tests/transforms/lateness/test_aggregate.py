"""`AggregateWindows`: what panes hold, for every kind of aggregate, key and mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.combiners import TopCombineFn
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.window import GlobalWindows, TimestampedValue

from beam_lateness import AggregateWindows, EventBatch, Pane, ReadSettings
from tests.cases.check import check_all, final_values, of_steps, panes_by_cell
from tests.cases.engine import Outcome, direct_pipeline, keep, kept, run_records, stream_of
from tests.cases.load import windows_of
from tests.model import Event
from tests.transforms.lateness.script import run_file, steps_of

WINDOWS = windows_of(10_000, 20_000)
STEPS = steps_of(
    "a:1@1; b:2@2; a:4@3; wm 10; a:8@4; wm 12; c:16@5; a:32@12; wm 29; b:64@9; wm 30; a:128@1; end"
)
"""Window [0, 10): a = 5 and b = 2 on time, then a 8, c 16 and b 64 late; a 128 too late."""

EVENTS = {event.name: event for event in STEPS if isinstance(event, Event)}


def values_by_cell(got: Outcome) -> dict[tuple[Any, int], list[Any]]:
    """Gives the values of each key and window start, in order of their index."""
    cells = panes_by_cell(got.panes).items()
    return {(key, window[0]): [pane.value for pane in panes] for (key, window), panes in cells}


def test_late_records_correct_what_was_on_time(tmp_path: Path) -> None:
    """Each pane is the whole result so far; the index counts per key."""
    got = run_file(STEPS, WINDOWS, tmp_path)
    assert [pane for pane in got.panes if pane.window_start == 0] == [
        Pane("a", 0, 10_000, 5, 2, 0, "ON_TIME"),
        Pane("a", 0, 10_000, 13, 3, 1, "LATE"),
        Pane("b", 0, 10_000, 2, 1, 0, "ON_TIME"),
        Pane("b", 0, 10_000, 66, 2, 1, "LATE"),
        Pane("c", 0, 10_000, 16, 1, 0, "LATE"),
    ]
    check_all(got, of_steps(STEPS, WINDOWS), stamped=True)


def test_discarding_panes_hold_only_what_is_new(tmp_path: Path) -> None:
    """For consumers that add up: the values of a cell sum to its total, the counts too."""
    got = run_file(STEPS, WINDOWS, tmp_path, accumulation_mode=AccumulationMode.DISCARDING)
    cells = values_by_cell(got)
    assert cells == {("a", 0): [5, 8], ("b", 0): [2, 64], ("c", 0): [16], ("a", 10_000): [32]}
    check_all(got, of_steps(STEPS, WINDOWS, discarding=True), stamped=True)


def test_the_on_time_pane_stands_on_what_came_before_the_windows_end(tmp_path: Path) -> None:
    """A stamped record behind the end goes into a LATE pane even where one block holds all."""
    steps = steps_of("a:1@1; wm 9.999; a:2@2; wm 10; a:4@3; end")
    got = run_file(steps, WINDOWS, tmp_path, settings=ReadSettings())
    assert [(pane.value, pane.count, pane.timing) for pane in got.panes] == [
        (3, 2, "ON_TIME"),
        (7, 3, "LATE"),
    ]


def test_several_aggregates_come_as_a_dictionary(tmp_path: Path) -> None:
    """Each pane corrects all of them."""
    names = ("sum", "count", "min", "max", "mean")
    got = run_file(STEPS, WINDOWS, tmp_path, aggregate=names)
    on_time, late = values_by_cell(got)["a", 0]
    assert on_time == {"sum": 5, "count": 2, "min": 1, "max": 4, "mean": 2.5}
    assert late == {"sum": 13, "count": 3, "min": 1, "max": 8, "mean": 13 / 3}


@pytest.mark.parametrize("run", [run_records, run_file], ids=["records", "batches"])
def test_a_combine_fn_aggregates_and_corrects(run: Any, tmp_path: Path) -> None:
    """Any Beam CombineFn, its accumulators merged with late ones."""
    got: Outcome = run(STEPS, WINDOWS, tmp_path, aggregate=TopCombineFn(2))
    assert final_values(got.panes) == {
        ("a", (0, 10_000)): [8, 4],
        ("b", (0, 10_000)): [64, 2],
        ("c", (0, 10_000)): [16],
        ("a", (10_000, 20_000)): [32],
    }


@pytest.mark.parametrize("key_type", [int, bytes, tuple[str, int], Any], ids=str)
def test_keys_of_any_type_come_back_as_they_were(key_type: Any, tmp_path: Path) -> None:
    """K needs a deterministic coder, no more."""
    keys: dict[Any, list[Any]] = {
        int: [1, -7],
        bytes: [b"\x00", b"\xff"],
        tuple[str, int]: [("a", 1), ("a", 2)],
        Any: ["text", None],
    }
    first, second = keys[key_type]
    pairs = {"0": (first, 1), "1": (second, 2), "3": (first, 4)}
    steps = steps_of("x:1@1; y:2@2; wm 10; x:4@3; end")
    stream = stream_of(steps, lambda event: pairs[event.name])
    with direct_pipeline() as pipeline:
        records = pipeline | stream
        records.element_type = beam.typehints.Tuple[
            beam.typehints.native_type_compatibility.convert_to_beam_type(key_type), int
        ]
        keep(records | AggregateWindows(WINDOWS), tmp_path, "panes")
    assert final_values(kept(tmp_path, "panes")) == {
        (first, (0, 10_000)): 5,
        (second, (0, 10_000)): 2,
    }


@pytest.mark.parametrize(
    "values",
    [[1, 2.5, 4], [2**63 - 1, 2**63 - 1, -5], [0.25, 2, 2**40]],
    ids=["int-float", "wide", "float-int"],
)
def test_plain_values_may_be_integers_and_floats(values: list[Any], tmp_path: Path) -> None:
    """Together the sums are exact."""
    got = run_values(values, tmp_path)
    assert final_values(got.panes) == {("a", (0, 10_000)): sum(values)}


@pytest.mark.parametrize(
    "values", [[2**70, 1, 2], [2**53 + 1, 0.5, 1]], ids=["beyond-64-bits", "odd-with-float"]
)
def test_large_integers_do_not_stop_the_job(values: list[Any], tmp_path: Path) -> None:
    """Arrow refuses them as a column; a plain record may hold any number."""
    got = run_values(values, tmp_path)
    (value,) = final_values(got.panes).values()
    assert value == pytest.approx(sum(values))


def run_values(values: list[Any], folder: Path) -> Outcome:
    """Sums three values of a key: two on time in one bundle, one late."""
    first, second, late = (TimestampedValue(("a", value), 1) for value in values)
    stream = stream_of([]).add_elements([first, second]).advance_watermark_to(10)
    stream = stream.add_elements([late]).advance_watermark_to_infinity()
    with direct_pipeline() as pipeline:
        keep(pipeline | stream | AggregateWindows(WINDOWS), folder, "panes")
    return Outcome(kept(folder, "panes"))


@pytest.mark.parametrize("num_shards", [1, 2, 7])
def test_the_number_of_shards_changes_no_result(num_shards: int, tmp_path: Path) -> None:
    """It is the unit of parallelism only."""
    got = run_file(STEPS, WINDOWS, tmp_path, num_shards=num_shards)
    check_all(got, of_steps(STEPS, WINDOWS), stamped=True)


@pytest.mark.parametrize("num_shards", [0, -1])
def test_no_shards_are_refused(num_shards: int) -> None:
    """The message names the parameter and the value."""
    with pytest.raises(ValueError, match=f"num_shards must be at least 1, got {num_shards}"):
        AggregateWindows(WINDOWS, num_shards=num_shards)


@pytest.mark.parametrize("aggregate", ["median", "", [], ("sum", "sum")])
def test_an_unknown_aggregate_is_refused_before_launch(aggregate: Any) -> None:
    """At construction, by the flag's name."""
    with pytest.raises(ValueError, match=r"aggregate \(--aggregate\) must be one or more of sum"):
        AggregateWindows(WINDOWS, aggregate)


def test_panes_leave_in_the_global_window() -> None:
    """Everything a sink needs is in the value."""
    batches = direct_pipeline() | stream_of([])
    batches.element_type = EventBatch
    panes = batches | AggregateWindows(WINDOWS)
    assert panes.windowing.windowfn == GlobalWindows()
    assert panes.element_type is Pane


def test_windows_before_the_epoch_and_with_an_offset_are_windows_too(tmp_path: Path) -> None:
    """Negative starts."""
    windows = windows_of(10_000, 5000, 3000)
    steps = steps_of("a:1@-8; a:2@-7; wm -7; a:4@-7.001; a:8@2.999; a:16@3; end")
    got = run_file(steps, windows, tmp_path)
    assert values_by_cell(got) == {("a", -17_000): [1, 5], ("a", -7000): [10], ("a", 3000): [16]}
    check_all(got, of_steps(steps, windows), stamped=True)

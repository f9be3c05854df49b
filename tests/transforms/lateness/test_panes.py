"""Panes as a sink sees them: numbered, never empty, never repeated (cases/public.md C42 to C48)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.combiners import ToListCombineFn
from apache_beam.transforms.trigger import AccumulationMode

from beam_lateness import AggregateWindows, Pane, ReadSettings, RouteTooLate, Windows
from beam_lateness.transforms import metrics
from tests.cases.check import check_all, final_values, of_steps, panes_by_cell
from tests.cases.engine import Outcome, direct_pipeline, keep, kept, run_records, stream_of
from tests.cases.load import windows_of
from tests.model import Event
from tests.transforms.lateness.script import run_file, steps_of

FIVE_AND_TWO = windows_of(5000, 2000)
MANY = steps_of(
    "a:1@1; b:1@2; wm 5; a:1@3; c:1@1; wm 5.5; a:1@4; b:1@3; wm 6; a:1@0; c:1@2; wm 6.5; a:1@1; end"
)


@pytest.mark.parametrize("run", [run_records, run_file], ids=["engine", "stamp"])
def test_a_window_without_late_records_has_one_pane(run: Any, tmp_path: Path) -> None:
    """C42: no closing pane that repeats the value, however far the watermark goes on."""
    steps = steps_of("a:1@3; wm 5; wm 6.999; wm 7; a:1@20; wm 67; wm 67.001; wm 1000; end")
    got: Outcome = run(steps, FIVE_AND_TWO, tmp_path)
    assert got.panes == [
        Pane("a", 0, 5000, 1, 1, 0, "ON_TIME"),
        Pane("a", 20_000, 25_000, 1, 1, 0, "ON_TIME"),
    ]


@pytest.mark.parametrize("mode", [AccumulationMode.ACCUMULATING, AccumulationMode.DISCARDING])
def test_no_pane_is_empty(mode: int, tmp_path: Path) -> None:
    """C43: every pane has news; nothing can overwrite a row with an empty value."""
    got = run_file(MANY, FIVE_AND_TWO, tmp_path, accumulation_mode=mode)
    assert all(pane.count > 0 and pane.value > 0 for pane in got.panes)
    for panes in panes_by_cell(got.panes).values():
        counts = [pane.count for pane in panes]
        if mode == AccumulationMode.ACCUMULATING:
            assert counts == sorted(set(counts))


@pytest.mark.parametrize("run", [run_records, run_file], ids=["engine", "stamp"])
def test_panes_are_numbered_per_key(run: Any, tmp_path: Path) -> None:
    """A late record of one key does not number the panes of another."""
    got: Outcome = run(MANY, FIVE_AND_TWO, tmp_path)
    indices = {
        cell[0]: [pane.index for pane in panes] for cell, panes in panes_by_cell(got.panes).items()
    }
    assert indices == {"a": [0, 1, 2, 3, 4], "b": [0, 1], "c": [0, 1]}
    check_all(got, of_steps(MANY, FIVE_AND_TWO), stamped=run is run_file)


def test_a_pane_keeps_its_index_through_a_reshuffle(tmp_path: Path) -> None:
    """C46: it is in the element, where Reshuffle cannot lose it."""
    steps = steps_of("a:1@1; wm 5; a:2@2; wm 6; a:3@3; end")
    with direct_pipeline() as pipeline:
        routed = pipeline | stream_of(steps) | RouteTooLate(FIVE_AND_TWO)
        panes = routed.accepted | AggregateWindows(FIVE_AND_TWO)
        keep(panes | beam.Reshuffle(), tmp_path, "panes")
    panes = sorted(kept(tmp_path, "panes"), key=lambda pane: pane.index)
    assert [(pane.index, pane.value) for pane in panes] == [(0, 1), (1, 3), (2, 6)]


def test_a_file_a_pane_never_meets_another(tmp_path: Path) -> None:
    """C48: half of the records come after the end; files named by window and pane hold all."""
    steps = steps_of("; ".join(f"a:{n}@{n % 5}" for n in range(6)))
    steps += steps_of("wm 5; " + "; ".join(f"a:{n}@{n % 5}; wm {5 + n / 10}" for n in range(6, 12)))
    steps += steps_of("end")
    got = run_file(
        steps,
        FIVE_AND_TWO,
        tmp_path,
        aggregate=ToListCombineFn(),
        accumulation_mode=AccumulationMode.DISCARDING,
    )
    files: dict[str, list[int]] = {}
    for pane in got.panes:
        name = f"window{pane.window_start}-pane{pane.index}"
        assert name not in files
        files[name] = pane.value
    assert list(files)[:2] == ["window0-pane0", "window0-pane1"]
    written = [value for values in files.values() for value in values]
    assert sorted(written) == [step.value for step in steps if isinstance(step, Event)]


def test_a_window_of_too_late_records_only_has_no_pane(tmp_path: Path) -> None:
    """They are in too_late, each once."""
    steps = steps_of("wm 100; a:1@3; b:2@4; a:4@50; end")
    got = run_file(steps, FIVE_AND_TWO, tmp_path)
    assert got.panes == []
    assert sorted(record.value for record in got.too_late) == [1, 2, 4]


def test_late_records_of_one_block_share_a_pane(tmp_path: Path) -> None:
    """How many share one depends on the bundle; the value is the same."""
    got = run_file(MANY, FIVE_AND_TWO, tmp_path, settings=ReadSettings())
    assert [pane.index for pane in got.panes if pane.key == "a"] == [0, 1]
    check_all(got, of_steps(MANY, FIVE_AND_TWO), stamped=True)


@pytest.mark.parametrize("run", [run_records, run_file], ids=["engine", "stamp"])
@pytest.mark.parametrize(
    "windows", [Windows("1d", "200d"), Windows("73000d", "73000d"), Windows("1ms")], ids=str
)
def test_windows_of_any_length_fire(run: Any, windows: Windows, tmp_path: Path) -> None:
    """From a millisecond to 200 years."""
    steps = steps_of("a:1@3; wm 5; a:2@4; a:4@6; end")
    got: Outcome = run(steps, windows, tmp_path)
    check_all(got, of_steps(steps, windows), stamped=run is run_file)


def test_the_counts_of_a_run_balance(tmp_path: Path) -> None:
    """Input = aggregated + too late + invalid; late and panes are counted too."""
    steps = [*MANY[:-1], *steps_of("wm 7; a:1@4; wm 8; b:1@4; d:1@7; end")]
    metrics.start_tally()
    got = run_file(steps, FIVE_AND_TWO, tmp_path)
    tally = metrics.tally()
    expected = of_steps(steps, FIVE_AND_TWO)
    assert tally[metrics.INPUT] == len(expected.events)
    assert tally[metrics.TOO_LATE] == len(expected.too_late) == 2
    assert tally[metrics.AGGREGATED] == tally[metrics.INPUT] - 2
    assert tally[metrics.LATE] == sum(pane.timing == "LATE" for pane in expected.panes)
    assert tally[metrics.PANES] == len(got.panes)
    assert final_values(got.panes)["d", (5000, 10_000)] == 1

"""`WindowWithLateness`: Beam's own windowing for a user's GroupByKey, behind `RouteTooLate`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterAny,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    Repeatedly,
    TriggerFn,
)
from apache_beam.transforms.window import FixedWindows

from beam_lateness import RouteTooLate, Windows, WindowWithLateness
from beam_lateness.transforms.beam_time import to_ms
from tests.cases.check import is_subsequence
from tests.cases.engine import direct_pipeline, keep, kept, stream_of
from tests.cases.load import Step, judge, windows_of
from tests.transforms.lateness.script import steps_of

WINDOWS = windows_of(5000, 2000)
STEPS = steps_of(
    "a:1@3; b:2@1; wm 5; a:4@4; wm 6.999; b:8@0; new:16@4.999; wm 7; a:32@4; a:64@7; end"
)
"""Two on time, one late, two at end + L - 1, one at end + L, one of the next window."""


def run_group_by_key(
    steps: list[Step], folder: Path, window_into: beam.PTransform[Any, Any] | None = None
) -> dict[tuple[str, int], list[int]]:
    """Groups by the user's own GroupByKey; gives the sums of each cell's panes, in order."""
    with direct_pipeline() as pipeline:
        routed = pipeline | stream_of(steps) | RouteTooLate(WINDOWS)
        accepted = routed.accepted
        if window_into is not None:
            accepted = accepted | window_into
        summed = accepted | beam.GroupByKey() | beam.ParDo(_SumPane())
        keep(summed, folder, "panes")
        keep(routed.too_late, folder, "too_late")
    cells: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for key, start, index, total in kept(folder, "panes"):
        cells[key, start][index] = total
    return {cell: [by[index] for index in sorted(by)] for cell, by in cells.items()}


class _SumPane(beam.DoFn):
    """Sums the values of a pane."""

    def __init__(self) -> None:
        """Is typed, unlike the one of Beam."""

    def process(
        self,
        element: tuple[str, Any],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Any:
        yield element[0], to_ms(window.start), pane.index, sum(element[1])


def test_a_users_own_group_by_key_corrects_itself(tmp_path: Path) -> None:
    """`accepted` is windowed already: each pane the whole result, the last one the final value."""
    cells = run_group_by_key(STEPS, tmp_path)
    model = judge(STEPS, WINDOWS)
    wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for pane in model.panes:
        wanted[pane.key, pane.window[0]].append(pane.value)
    assert cells.keys() == wanted.keys()
    for cell, values in cells.items():
        assert is_subsequence(values, wanted[cell])
        assert values[-1] == wanted[cell][-1]
    too_late = kept(tmp_path, "too_late")
    assert [record.value for record in too_late] == [event.value for event in model.too_late]


def test_discarding_panes_add_up(tmp_path: Path) -> None:
    """Each pane is what is new."""
    into = WindowWithLateness(WINDOWS, accumulation_mode=AccumulationMode.DISCARDING)
    cells = run_group_by_key(STEPS, tmp_path, into)
    totals = {cell: sum(values) for cell, values in cells.items()}
    assert totals == judge(STEPS, WINDOWS).totals


def test_an_early_trigger_may_be_asked_for(tmp_path: Path) -> None:
    """The final values are the same."""
    trigger = AfterWatermark(early=AfterCount(1), late=AfterCount(1))
    cells = run_group_by_key(STEPS, tmp_path, WindowWithLateness(WINDOWS, trigger))
    assert {cell: values[-1] for cell, values in cells.items()} == judge(STEPS, WINDOWS).totals


@pytest.mark.parametrize(
    "trigger",
    [
        AfterCount(1),
        AfterProcessingTime(10),
        AfterWatermark(),
        AfterWatermark(early=AfterCount(1)),
        AfterAny(AfterCount(1000), AfterWatermark()),
    ],
    ids=repr,
)
def test_a_trigger_that_finishes_is_refused(trigger: TriggerFn) -> None:
    """C41: plain Beam keeps 1 of 1000 records under `AfterCount(1)`."""
    with pytest.raises(ValueError, match=r"trigger must not finish .* wrap it in Repeatedly"):
        WindowWithLateness(WINDOWS, trigger)


@pytest.mark.parametrize(
    ("trigger", "windows"),
    [
        (Repeatedly(AfterCount(1)), WINDOWS),
        (Repeatedly(AfterProcessingTime(10)), WINDOWS),
        (AfterWatermark(late=AfterCount(1)), WINDOWS),
        (AfterWatermark(early=AfterCount(1), late=AfterCount(1)), WINDOWS),
        (AfterWatermark(), windows_of(5000)),
        (None, windows_of(5000)),
        (None, WINDOWS),
    ],
    ids=repr,
)
def test_a_trigger_that_goes_on_is_accepted(trigger: TriggerFn | None, windows: Windows) -> None:
    """With lateness 0 nothing comes after the watermark's firing."""
    assert WindowWithLateness(windows, trigger).trigger is trigger


def test_the_windowing_is_fixed_windows_with_the_allowed_lateness() -> None:
    """What a GroupByKey after it sees."""
    windows = Windows("1m", allowed_lateness="2m", offset="5s")
    windowing = (direct_pipeline() | stream_of([]) | WindowWithLateness(windows)).windowing
    assert windowing.windowfn == FixedWindows(60, 5)
    assert windowing.allowed_lateness == 120
    assert windowing.accumulation_mode == AccumulationMode.ACCUMULATING
    assert windowing.triggerfn == AfterWatermark(late=AfterCount(1))

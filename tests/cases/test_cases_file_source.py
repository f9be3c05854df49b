"""The cases by the file source with markers, embedded in Beam's Python DirectRunner."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_lateness import ReadSettings
from tests.cases.check import check_all, check_pane_or_invalid, of_case
from tests.cases.engine import LINE_BY_LINE, Outcome, direct_pipeline, run_case_from_file
from tests.cases.load import Case, among_others, fixed_cases, judge
from tests.model import Event

WINDOW = [case for case in fixed_cases("window") if case.scope != "extreme"]
EXTREME = [case for case in fixed_cases("window") if case.scope == "extreme"]
ALL = [*WINDOW, *fixed_cases("random")]


@pytest.mark.parametrize("case", ALL, ids=lambda case: str(case.id))
def test_stamped_records_come_out_as_the_case_says(case: Case, tmp_path: Path) -> None:
    """Values, labels and the too-late set, with the whole file in one block."""
    got = run_case_from_file(
        case, direct_pipeline, tmp_path, embedded=True, settings=ReadSettings()
    )
    check_all(got, of_case(case), stamped=True)
    check_distances(case, got)
    assert got.invalid == []


@pytest.mark.parametrize("case", WINDOW, ids=lambda case: str(case.id))
def test_suspicious_records_are_judged_by_the_engine_if_asked(case: Case, tmp_path: Path) -> None:
    """The same with `verdict="engine"`, where every line is a poll of its own."""
    got = run_case_from_file(
        case, direct_pipeline, tmp_path, embedded=True, verdict="engine", settings=LINE_BY_LINE
    )
    check_all(got, of_case(case), stamped=True)
    check_distances(case, got)


@pytest.mark.parametrize("case", EXTREME, ids=lambda case: str(case.id))
def test_records_at_the_end_of_time_are_one_pane_or_invalid(case: Case, tmp_path: Path) -> None:
    """The job ends, and no record is lost (C19)."""
    case = among_others(case)
    got = run_case_from_file(case, direct_pipeline, tmp_path, embedded=True)
    check_pane_or_invalid(got, of_case(case))


def check_distances(case: Case, got: Outcome) -> None:
    """`late_by_ms` is exact: the watermark when the record came, less its window's last moment."""
    windows = case.windows
    watermarks = _watermarks(case)
    for record in got.too_late:
        assert record.record_id is not None
        watermark = watermarks[record.record_id]
        assert record.watermark == watermark
        assert record.late_by_ms == watermark - record.window_end - windows.allowed_lateness_ms
        assert record.late_by_ms >= 0


def _watermarks(case: Case) -> dict[str, int]:
    """The watermark before each record, by its name."""
    model = judge([], case.windows)
    watermarks = {}
    for step in case.steps:
        if isinstance(step, Event):
            watermarks[step.name] = model.watermark
        elif step.watermark is not None:
            model.advance(step.watermark)
    return watermarks

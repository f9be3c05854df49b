"""The cases by TestStream: plain records, judged by the engine's watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.check import check_all, check_pane_or_invalid, of_case
from tests.cases.engine import mode_of, run_records
from tests.cases.load import Case, fixed_cases

WINDOW = [case for case in fixed_cases("window") if case.scope != "extreme"]
EXTREME = [case for case in fixed_cases("window") if case.scope == "extreme"]


@pytest.mark.parametrize("case", WINDOW, ids=lambda case: str(case.id))
def test_plain_records_come_out_as_the_case_says(case: Case, tmp_path: Path) -> None:
    """Final values, order of corrections, and the too-late set exactly; a record a bundle."""
    got = run_records(case.steps, case.windows, tmp_path, accumulation_mode=mode_of(case))
    check_all(got, of_case(case), stamped=False)
    assert got.invalid == []


@pytest.mark.parametrize("case", fixed_cases("random"), ids=lambda case: str(case.id))
def test_bundles_of_plain_records_come_out_as_the_case_says(case: Case, tmp_path: Path) -> None:
    """The same, with all records between two watermarks in one bundle."""
    got = run_records(
        case.steps,
        case.windows,
        tmp_path,
        accumulation_mode=mode_of(case),
        one_by_one=False,
    )
    check_all(got, of_case(case), stamped=False)
    assert got.invalid == []


@pytest.mark.parametrize("case", EXTREME, ids=lambda case: str(case.id))
def test_plain_records_at_the_end_of_time_are_one_pane_or_invalid(
    case: Case, tmp_path: Path
) -> None:
    """The job ends, and no record is lost (C19)."""
    got = run_records(case.steps, case.windows, tmp_path)
    check_pane_or_invalid(got, of_case(case))

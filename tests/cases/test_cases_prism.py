"""The cases by the file source with markers on Prism, many sources to a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_lateness import ReadSettings
from tests.cases.check import (
    check_all,
    check_conserved,
    check_pane_or_invalid,
    final_values,
    of_case,
    total_values,
)
from tests.cases.engine import LINE_BY_LINE, MakePipeline, Outcome, run_cases_from_files
from tests.cases.load import Case, among_others, fixed_cases

pytestmark = pytest.mark.prism

CASES_A_PIPELINE = 16
WINDOW = fixed_cases("window")
CORE = [case for case in WINDOW if case.scope != "extreme"]
EXTREME = [among_others(case) for case in WINDOW if case.scope == "extreme"]
ALL = [*EXTREME, *CORE, *fixed_cases("random")]


@pytest.fixture(scope="module")
def prism_pipeline(prism: str) -> MakePipeline:
    """Makes pipelines for Prism."""
    flags = [
        "--runner=PrismRunner",
        f"--prism_location={prism}",
        "--prism_log_level=warn",
        "--streaming",
        "--experiments=prism_disable_sdf_split",
    ]
    return lambda: beam.Pipeline(PrismRunner(), options=PipelineOptions(flags))


def batches(cases: Sequence[Case]) -> list[list[Case]]:
    """Cuts cases into as many as one pipeline takes."""
    starts = range(0, len(cases), CASES_A_PIPELINE)
    return [list(cases[start : start + CASES_A_PIPELINE]) for start in starts]


def check(
    cases: Sequence[Case], outcomes: dict[str, Outcome], law: Callable[[Case, Outcome], None]
) -> None:
    """Holds each case to a law, and says which ones fail and why."""
    failures = {}
    for case in cases:
        try:
            law(case, outcomes[case.id])
        except AssertionError as error:
            failures[case.id] = str(error)
    assert not failures


def exactly(case: Case, got: Outcome) -> None:
    """Everything as the case says; at the end of time, nothing lost."""
    if case.scope == "extreme":
        check_pane_or_invalid(got, of_case(case))
    else:
        check_all(got, of_case(case), stamped=True)


def never_harsher(case: Case, got: Outcome) -> None:
    """The too-late records are among the expected ones; all others are in the final values."""
    too_late = [record.record_id for record in got.too_late]
    assert len(set(too_late)) == len(too_late)
    assert set(too_late) <= set(case.too_late)
    check_conserved(got, of_case(case))
    accepted: dict[tuple[str, int], int] = {}
    for event in case.events:
        if event.name not in too_late:
            cell = event.key, case.windows.start_of(event.ts)
            accepted[cell] = accepted.get(cell, 0) + event.value
    values = total_values(got.panes) if case.discarding else final_values(got.panes)
    assert {(key, window[0]): value for (key, window), value in values.items()} == accepted


@pytest.mark.parametrize("cases", batches(ALL), ids=lambda cases: str(cases[0].id))
def test_stamped_records_come_out_as_the_cases_say(
    cases: list[Case], prism_pipeline: MakePipeline, tmp_path: Path
) -> None:
    """Values, labels and the too-late set, as on the DirectRunner."""
    outcomes = run_cases_from_files(
        cases, prism_pipeline, tmp_path, embedded=False, settings=ReadSettings()
    )
    check(cases, outcomes, exactly)


@pytest.mark.parametrize("cases", batches(CORE), ids=lambda cases: str(cases[0].id))
def test_the_engine_judges_no_harsher_than_the_stamp(
    cases: list[Case], prism_pipeline: MakePipeline, tmp_path: Path
) -> None:
    """With `verdict="engine"`, a poll a line: Prism's watermark runs after the source's, from one
    stage to the next, so how many suspects it still accepts is its own affair; none is lost."""
    outcomes = run_cases_from_files(
        cases,
        prism_pipeline,
        tmp_path,
        embedded=False,
        verdict="engine",
        settings=LINE_BY_LINE,
    )
    check(cases, outcomes, never_harsher)

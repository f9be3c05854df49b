"""The case files and the reference model agree: two sources of the same expectations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.load import FOLDER, Case, fixed_cases, judge, scopes

CASES = [*fixed_cases("window"), *fixed_cases("random")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.id))
def test_the_model_gives_every_case_its_expected_result(case: Case) -> None:
    """Panes in order within a key and window, and the too-late records."""
    judged = judge(case.steps, case.windows, case.discarding)
    assert _sorted(judged.panes) == _sorted(case.panes)
    assert [event.name for event in judged.too_late] == list(case.too_late)


def _sorted(panes: Any) -> list[Any]:
    return sorted(panes, key=lambda pane: (pane.key, pane.window))  # stable


def test_only_sliding_and_session_windows_are_left_out() -> None:
    """Every case file is run, but for the windows that are not offered."""
    run = {case.id for case in CASES}
    left_out = {
        name: scope
        for family in ("window", "random")
        for name, scope in scopes(family).items()
        if name not in run
    }
    assert set(left_out.values()) <= {"sliding", "session"}
    assert len(run) + len(left_out) == sum(
        len(list((FOLDER / family).glob("*.json"))) for family in ("window", "random")
    )

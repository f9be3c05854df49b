"""Which dead letters are no business of a table: another job's, and those judged again since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from beam_lateness.transforms.reconcile.letters import Left, Letter
from beam_lateness.transforms.sinks.runs_table import Runs

OTHER_JOB: Final = "other_job"
SUPERSEDED: Final = "superseded"
UNFINISHED: Final = "unfinished_run"


def judged_elsewhere(letter: Letter, row: Mapping[str, Any] | None, runs: Runs) -> Left | None:
    """Says why a letter must not be added to a row, if another run has a say in it.

    Args:
        letter: The letter.
        row: The row of its key and window; None if there is none.
        runs: The runs that wrote to the table.
    """
    row_run = None if row is None else row["run"]
    if len(runs) and letter.run and letter.run not in runs:
        detail = f"its run, {letter.run}, did not write this table: it is another job's letter"
        return letter.left(OTHER_JOB, detail)
    by = runs.superseding(letter.run, letter.split, row_run)
    if by is not None:
        detail = (
            f"run {by} has read its input again from the start: the record is in a result of that "
            "run, or in a dead letter of it, or was dropped by it"
        )
        return letter.left(SUPERSEDED, detail)
    if row_run is not None and runs.is_ahead(letter.run, letter.split, row_run):
        detail = (
            f"its run broke off before this window, whose row is of run {row_run}, which "
            "judged the record for itself: start the job again"
        )
        return letter.left(UNFINISHED, detail)
    return None

"""SIGKILL in the middle of a run: the same command again ends as if nothing had happened."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from benchmarks.payments import write_payments
from tests.jobs import PAYMENT_FLAGS, PRISM, Outcome, job_flags, query, run_job
from tests.runners.process import running

pytestmark = pytest.mark.prism

FLAGS = (*PAYMENT_FLAGS, "--bound=5s", "--allowed_lateness=2m", "--block_bytes=10000")


def count_rows(database: Path) -> int:
    """How many rows a table has that may not be there yet."""
    try:
        return int(query(database, "select count(*) from windows")[0][0])
    except sqlite3.OperationalError:
        return 0


def results(outcome: Outcome) -> list[tuple[Any, ...]]:
    """The table but for what may differ from run to run: the run, and how late panes share."""
    return [
        (row.key, row.start, row.end, row.value, row.records, row.timing) for row in outcome.rows
    ]


@pytest.mark.parametrize("rows", [1, 1_000], ids=["early", "midway"])
def test_a_job_killed_and_begun_again_ends_as_if_uninterrupted(tmp_path: Path, rows: int) -> None:
    """Every row is the new run's, none is lost, none is doubled; dead letters count once."""
    path = tmp_path / "payments.jsonl"
    write_payments(path, 40_000, rate=20)
    whole = run_job(tmp_path / "whole", [path], *FLAGS, "--block_bytes=8388608", runner=PRISM)
    folder = tmp_path / "killed"
    folder.mkdir()
    flags = job_flags(folder, [path], *FLAGS, runner=PRISM)
    database = folder / "windows.db"
    with running(flags, tmp_path / "log") as job:
        job.await_that(lambda: count_rows(database) >= rows, f"{rows} rows")
        job.kill()
        job.await_nobody()
    killed = Outcome(-9, folder)
    assert not (folder / "report.json").exists()
    assert len(results(killed)) < len(results(whole)), "the job was over before it was killed"

    again = run_job(folder, [path], *FLAGS, runner=PRISM)
    assert again.code == 0
    assert results(again) == results(whole)
    assert again.runs == {again.report["run"]}
    assert sorted(set(again.too_late_ids)) == whole.too_late_ids


def test_a_job_killed_twice_at_different_places_ends_right_too(tmp_path: Path) -> None:
    """The newest run wins, however many there were."""
    path = tmp_path / "payments.jsonl"
    write_payments(path, 20_000, rate=20)
    whole = run_job(tmp_path / "whole", [path], *FLAGS, "--block_bytes=8388608", runner=PRISM)
    folder = tmp_path / "killed"
    folder.mkdir()
    flags = job_flags(folder, [path], *FLAGS, runner=PRISM)
    for number, rows in enumerate((500, 200)):
        before = {run for (run,) in runs(folder)}
        with running(flags, tmp_path / f"log{number}") as job:
            job.await_that(
                lambda before=before, rows=rows: news(folder, before) >= rows,  # type: ignore[misc]
                f"{rows} rows of this run",
            )
            job.kill()
            job.await_nobody()
    again = run_job(folder, [path], *FLAGS, runner=PRISM)
    assert results(again) == results(whole)
    assert again.runs == {again.report["run"]}


def runs(folder: Path) -> list[tuple[Any, ...]]:
    """The runs in a table that may not be there yet."""
    try:
        return query(folder / "windows.db", "select distinct run from windows")
    except sqlite3.OperationalError:
        return []


def news(folder: Path, before: set[Any]) -> int:
    """How many rows are of a run that was not there before."""
    try:
        rows = query(folder / "windows.db", "select run, count(*) from windows group by run")
    except sqlite3.OperationalError:
        return 0
    return sum(count for run, count in rows if run not in before)

"""`beam-lateness reconcile`: its flags, what it prints and reports, its exit codes."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.reconcile import _time
from tests.jobs import EMBEDDED, FLIGHT_FLAGS, FLIGHTS, HOUR_MS, Outcome, read_flights, run_job

JOB = (*FLIGHT_FLAGS, "--bound=15m", "--allowed_lateness=60m")
TOO_LATE = 129


@pytest.fixture
def job(tmp_path: Path) -> Outcome:
    """A week of flights, settled."""
    return run_job(tmp_path, [FLIGHTS], *JOB)


def reconcile(folder: Path, *flags: str) -> int:
    """Runs the command on what a job left."""
    found = {
        "--dead_letters": folder / "dead",
        "--output": f"sqlite:///{folder / 'windows.db'}",
        "--report": folder / "reconciled.jsonl",
        "--runner": EMBEDDED,
    }
    given = {flag.split("=")[0] for flag in flags}
    return main(["reconcile", *(f"{k}={v}" for k, v in found.items() if k not in given), *flags])


def report(folder: Path) -> list[dict[str, Any]]:
    """Reads the report."""
    return [json.loads(line) for line in (folder / "reconciled.jsonl").read_text().splitlines()]


def batch_sum() -> dict[tuple[str, int], tuple[int, int]]:
    """The whole input, in the plainest way."""
    totals: dict[tuple[str, int], tuple[int, int]] = {}
    for event in read_flights():
        cell = (event.key, event.ts // HOUR_MS * HOUR_MS)
        total, count = totals.get(cell, (0, 0))
        totals[cell] = (total + event.value, count + 1)
    return totals


def test_the_windows_are_the_batch_sum_and_stay_so(
    job: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run twice; each time it says what it did, and the report has a line a window or record."""
    assert reconcile(job.folder) == 0
    assert job.finals == batch_sum()
    printed = capsys.readouterr().out
    windows = len({(x["key"], x["window_start_ms"]) for x in job.too_late})
    assert (
        f"\ntoo late records: 129 read; 129 added to {windows} windows; 0 stood there already; "
        "0 left\n"
    ) in printed
    assert re.search(r"\nwindows: sqlite:///.*windows\.db \(table windows, run reconcile-", printed)
    lines = report(job.folder)
    assert {line["what"] for line in lines} == {"corrected"}
    assert lines == sorted(lines, key=lambda line: str(line["key"]))
    ids = [name for line in lines for name in line["record_ids"]]
    assert sorted(ids) == job.too_late_ids
    for line in lines:
        cell = (line["key"], line["window_start_ms"])
        assert (line["after"], line["count_after"]) == job.finals[cell]
        assert line["count_after"] - line["count_before"] == len(line["record_ids"])
    rows = job.rows
    assert reconcile(job.folder) == 0
    assert job.rows == rows
    assert "129 read; 0 added to 0 windows; 129 stood there already; 0 left" in (
        capsys.readouterr().out
    )
    assert [(x["what"], x["reason"]) for x in report(job.folder)] == (
        [("left", "already_applied")] * TOO_LATE
    )


def test_a_newer_run_of_the_job_is_reconciled_again(job: Outcome) -> None:
    """It replaces the rows; its dead letters are the same records."""
    reconcile(job.folder)
    run_job_again(job.folder)
    assert job.finals != batch_sum()
    assert reconcile(job.folder) == 0
    assert job.finals == batch_sum()


def run_job_again(folder: Path) -> None:
    """Runs the job once more on the same store; its dead letters are in the same folder."""
    run_job(folder, [FLIGHTS], *JOB)


@pytest.mark.parametrize("flag", ["--dry_run", "--dry_run=true"])
def test_a_dry_run_says_what_would_be_done(
    job: Outcome, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And changes nothing: not a row, not a table. Its report is that of the real run."""
    before = dump(job.folder)
    assert reconcile(job.folder, flag) == 0
    assert "129 read; 129 would be added to" in capsys.readouterr().out
    told = report(job.folder)
    assert dump(job.folder) == before
    assert reconcile(job.folder, "--dry_run=false") == 0
    assert report(job.folder) == told


def dump(folder: Path) -> list[str]:
    """Everything in the database."""
    connection = sqlite3.connect(folder / "windows.db")
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def test_windows_and_run_can_be_chosen(job: Outcome) -> None:
    """By ISO time or ms, from inclusive to exclusive; two parts make the whole."""
    middle = "2013-01-04T00:00Z"
    middle_ms = 1_357_257_600_000
    assert reconcile(job.folder, f"--to={middle}") == 0
    starts = [line["window_start_ms"] for line in report(job.folder)]
    assert starts
    assert max(starts) < middle_ms
    assert reconcile(job.folder, f"--from={middle_ms}", "--run=another") == 2
    (run,) = job.runs
    assert reconcile(job.folder, f"--from={middle_ms}", f"--run={run}") == 0
    assert job.finals == batch_sum()


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("-5", -5),
        ("1970-01-01T00:00:01.001Z", 1001),
        ("1970-01-01", 0),
        ("1970-01-01T01:00+01:00", 0),
        ("2013-01-01T00:00:00.003", 1_356_998_400_003),
    ],
)
def test_a_time_is_iso_or_ms(text: str, ms: int) -> None:
    """UTC, where it names no zone; to the millisecond."""
    assert _time("--from", text) == ms


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--dead_letters="], "--dead_letters is required"),
        (["--output="], "--output is required"),
        (["--dead_letters={}/none"], r"\(--dead_letters\) .*/none' holds no \*\.jsonl"),
        (["--output=sqlite:///{}/none/windows.db"], r"\(--output\) .* is not there"),
        (["--output=sqlite:///{}/other.db"], r"\(--output\) .*other.db' is not there"),
        (["--output=kafka://host/topic"], r"\(--output\) must be a SQLite file or PostgreSQL"),
        (["--table=settlement"], r"has no table 'settlement' \(--table\)"),
        (["--aggregate=median"], r"\(--aggregate\) must be of sum, .* got 'median'"),
        (["--aggregate=sum,sum"], r"\(--aggregate\) must name each aggregate once"),
        (["--aggregate=sum,count"], r"has sum"),
        (["--from=yesterday"], "--from must be a time such as .* got 'yesterday'"),
        (["--to=2013-13-01"], "--to must be a time such as"),
        (["--to=--5"], "--to must be a time such as"),
        (["--dry_run=perhaps"], "--dry_run must be true or false, got 'perhaps'"),
        (["--report={}"], "--report .* cannot be written"),
        (["--report={}/windows.db"], "--report .* would overwrite --output"),
        (["--agregate=sum"], r"unknown flag '--agregate=sum'; did you mean --aggregate\?"),
        (["--runner=SparkRunner"], "--runner must be"),
    ],
    ids=str,
)
def test_a_wrong_flag_is_refused_before_anything_runs(
    settled: Path,
    flags: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, one line that names it, and nothing has changed."""
    rows = Outcome(0, settled).rows
    assert reconcile(settled, *(flag.format(settled) for flag in flags)) == 2
    error = capsys.readouterr().err
    assert error.startswith("beam-lateness reconcile: error: ")
    assert re.search(complaint, error)
    assert Outcome(0, settled).rows == rows


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same week, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("settled")
    run_job(folder, [FLIGHTS], *JOB)
    return folder


def test_a_broken_database_is_a_failed_job(
    job: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, with the cause."""
    connection = sqlite3.connect(job.folder / "windows.db")
    connection.execute(
        "create trigger broken before update on windows begin insert into absent values (1); end"
    )
    connection.close()
    rows = job.rows
    assert reconcile(job.folder) == 1
    assert "the job failed: " in capsys.readouterr().err
    assert job.rows == rows


def test_what_cannot_be_added_is_in_the_report(job: Outcome) -> None:
    """With its reason, file and line, below the windows."""
    (job.folder / "dead" / "strange.jsonl").write_bytes(b"{]\n\n7\n")
    assert reconcile(job.folder) == 0
    left = [line for line in report(job.folder) if line["what"] == "left"]
    assert sorted((x["reason"], Path(x["file"]).name, x["line"]) for x in left) == [
        ("unreadable", "strange.jsonl", 1),
        ("unreadable", "strange.jsonl", 3),
    ]
    assert job.finals == batch_sum()


def test_the_audit_trail_of_the_job_goes_on(tmp_path: Path) -> None:
    """`beam-lateness audit verify` finds it whole."""
    outcome = run_job(tmp_path, [FLIGHTS], *JOB, "--audit=true")
    assert reconcile(tmp_path) == 0
    assert outcome.finals == batch_sum()
    assert main(["audit", "verify", f"--output=sqlite:///{tmp_path / 'windows.db'}"]) == 0


def test_several_aggregates_are_reconciled(tmp_path: Path) -> None:
    """Each as if all records had come in time."""
    outcome = run_job(tmp_path, [FLIGHTS], *JOB, "--aggregate=sum,mean,max")
    assert reconcile(tmp_path, "--aggregate=sum,mean,max") == 0
    flights = read_flights()
    for row in outcome.rows:
        values = [e.value for e in flights if (e.key, e.ts // HOUR_MS * HOUR_MS) == row[:2]]
        assert json.loads(row.value) == {
            "sum": sum(values),
            "mean": pytest.approx(sum(values) / len(values)),
            "max": max(values),
        }


def test_help_tells_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0."""
    assert main(["reconcile", "--help"]) == 0
    printed = capsys.readouterr().out
    for flag in ("dead_letters", "output", "table", "aggregate", "from", "to", "run", "dry_run"):
        assert f"--{flag} " in printed

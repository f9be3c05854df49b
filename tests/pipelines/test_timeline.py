"""The worked timeline (W1 of cases/worked.md), told to the job by a file with markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs import Row, keep_history, read_history, run_job, write_lines

TEN = 1_767_261_600_000  # 2026-01-01T10:00:00Z
MINUTE = 60_000
FLAGS = (
    "--key_field=account",
    "--value_field=amount",
    "--id_field=id",
    "--window=1m",
    "--watermark=punctuated",
    "--marker_field=marker",
)


def at(minute: int, second: int) -> int:
    """A time between ten and eleven, in ms."""
    return TEN + minute * MINUTE + second * 1000


def record(name: str, amount: int, second: int) -> dict[str, Any]:
    """A record of the minute of ten o'clock."""
    return {"id": name, "account": "ACC-001", "amount": amount, "event_time": at(0, second)}


def marker(minute: int, second: int = 0) -> dict[str, Any]:
    """Everything up to and including this time has come."""
    return {"marker": True, "event_time": at(minute, second)}


TIMELINE = [
    record("one", 50_000, 30),
    record("two", 30_000, 45),
    marker(1),
    record("late", 5_000, 35),
    marker(2, 30),
    record("later", 1_000, 50),
    marker(3),
    record("lost", 7_000, 20),
]


@pytest.mark.parametrize("block_bytes", [1, 150, 8 << 20])
def test_w1_ends_right_whatever_the_block_size(tmp_path: Path, block_bytes: int) -> None:
    """86,000 of four records; the fifth is a dead letter with its window and its distance."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    outcome = run_job(
        tmp_path, [path], *FLAGS, "--allowed_lateness=2m", f"--block_bytes={block_bytes}"
    )
    assert outcome.finals == {("ACC-001", TEN): (86_000, 4)}
    (letter,) = outcome.letters
    assert (letter["record_id"], letter["value"]) == ("lost", 7_000)
    assert letter["event_time_ms"] == at(0, 20)
    assert (letter["window_start_ms"], letter["window_end_ms"]) == (TEN, at(1, 0))
    assert letter["watermark_ms"] == at(3, 0) + 1
    assert letter["late_by_ms"] == 1
    assert outcome.report["late"] == 2


def test_w1_layer_by_layer(tmp_path: Path) -> None:
    """Read line by line, the table sees 80,000 on time, then each correction."""
    keep_history(tmp_path)
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    outcome = run_job(tmp_path, [path], *FLAGS, "--allowed_lateness=2m", "--block_bytes=1")
    assert read_history(tmp_path) == [
        (80_000, 2, 0, "ON_TIME"),
        (85_000, 3, 1, "LATE"),
        (86_000, 4, 2, "LATE"),
    ]
    assert outcome.rows == [Row("ACC-001", TEN, at(1, 0), 86_000, 4, 2, "LATE")]
    assert outcome.report["panes"] == 3


def test_w1_without_lateness_and_dropping_counts_what_it_dropped(tmp_path: Path) -> None:
    """One result, 80,000, and no dead letter: the policy was to drop, and it is counted."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    outcome = run_job(tmp_path, [path], *FLAGS, "--too_late=emit")
    assert len(outcome.too_late) == 3
    dropped = tmp_path / "dropped"
    outcome_code, report, rows, letters = _drop(dropped, path)
    assert outcome_code == 0
    assert report["too_late"] == 3
    assert rows == [Row("ACC-001", TEN, at(1, 0), 80_000, 2, 0, "ON_TIME")]
    assert letters == []


def _drop(folder: Path, path: Path) -> tuple[int, dict[str, Any], list[Row], list[Any]]:
    from beam_lateness.pipelines.cli import main
    from tests.jobs import Outcome, job_flags

    folder.mkdir()
    flags = [
        flag.replace("--too_late=emit", "--too_late=drop")
        for flag in job_flags(folder, [path], *FLAGS)
        if not flag.startswith("--dead_letters")
    ]
    outcome = Outcome(main(["stream", *flags]), folder)
    return outcome.code, outcome.report, outcome.rows, outcome.letters


def test_markers_are_no_records(tmp_path: Path) -> None:
    """Not counted as input, not routed, whatever else they carry."""
    lines = [*TIMELINE, {**marker(9), "account": "ACC-001", "amount": 1}]
    outcome = run_job(tmp_path, [write_lines(tmp_path / "w1.jsonl", lines)], *FLAGS)
    assert outcome.report["input"] == 5
    assert outcome.report["invalid"] == 0
    assert outcome.report["watermark_ms"] <= at(9, 0) + 1


@pytest.mark.parametrize(
    ("last_marker_ms", "too_late"),
    [(at(3, 0) - 2, 0), (at(3, 0) - 1, 1)],
    ids=["a millisecond before", "at the very end"],
)
def test_a_window_closes_at_its_end_plus_the_lateness_to_the_millisecond(
    tmp_path: Path, last_marker_ms: int, too_late: int
) -> None:
    """A marker at T completes T: the exclusive watermark is T + 1 ms."""
    lines = [*TIMELINE[:6], {"marker": True, "event_time": last_marker_ms}, TIMELINE[-1]]
    path = write_lines(tmp_path / "w1.jsonl", lines)
    outcome = run_job(tmp_path, [path], *FLAGS, "--allowed_lateness=2m")
    assert outcome.report["too_late"] == too_late


@pytest.mark.parametrize(
    ("marker_ms", "late"), [(at(1, 0) - 2, 0), (at(1, 0) - 1, 1)], ids=["before", "at"]
)
def test_a_window_is_on_time_up_to_its_end_to_the_millisecond(
    tmp_path: Path, marker_ms: int, late: int
) -> None:
    """What comes behind the marker that ends the window is late."""
    lines = [*TIMELINE[:2], {"marker": True, "event_time": marker_ms}, TIMELINE[3]]
    path = write_lines(tmp_path / "w1.jsonl", lines)
    outcome = run_job(tmp_path, [path], *FLAGS, "--allowed_lateness=2m")
    assert outcome.report["late"] == late


def test_a_window_of_late_records_only_gets_its_pane(tmp_path: Path) -> None:
    """First pane, index 0, and LATE."""
    path = write_lines(tmp_path / "w1.jsonl", [marker(1), record("only", 9, 5)])
    outcome = run_job(tmp_path, [path], *FLAGS, "--allowed_lateness=2m", "--block_bytes=1")
    assert outcome.rows == [Row("ACC-001", TEN, at(1, 0), 9, 1, 0, "LATE")]

"""Live inputs on Prism: followed files, their end by a signal, and paced replays."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import (
    PRISM,
    Outcome,
    job_flags,
    keep_history,
    query,
    read_rows,
    run_job,
    write_lines,
)
from tests.pipelines.test_timeline import FLAGS as TIMELINE_FLAGS
from tests.pipelines.test_timeline import TIMELINE
from tests.runners.process import JobProcess, running

pytestmark = pytest.mark.prism

TEN = 1_767_261_600_000
FLAGS = ("--key_field=k", "--value_field=v", "--id_field=id", "--window=1s", "--bound=0s")


def record(second: float, value: int = 1, key: str = "a") -> dict[str, Any]:
    """A record some seconds past ten."""
    return {"id": f"{key}{second}", "k": key, "v": value, "event_time": TEN + int(second * 1000)}


def append(path: Path, *lines: bytes | dict[str, Any]) -> None:
    """Appends to a file; bytes as they are, records as lines."""
    with path.open("ab") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")


def values(folder: Path) -> dict[tuple[str, int], int]:
    """The table as it stands, by key and second."""
    try:
        rows = query(folder / "windows.db", "select key, window_start_ms, value from windows")
    except sqlite3.OperationalError:
        return {}
    return {(key, (start - TEN) // 1000): value for key, start, value in rows}


def holds(folder: Path, **wanted: int) -> Callable[[], bool]:
    """A condition: the table holds values, given as key and second."""
    cells = {(name[0], int(name[1:])): value for name, value in wanted.items()}
    return lambda: cells.items() <= values(folder).items()


def follow(folder: Path, *inputs: Path, more: tuple[str, ...] = ()) -> list[str]:
    """The flags of a job that follows inputs."""
    return job_flags(
        folder, inputs, *FLAGS, "--allowed_lateness=5s", "--follow", *more, runner=PRISM
    )


def end(job: JobProcess, number: signal.Signals) -> None:
    """Ends a job by a signal; it must say so by its exit code and leave nothing behind."""
    assert "prism" in job.members()
    job.signal(number)
    assert job.await_end(20) == 130, job.output
    job.await_nobody()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_followed_file_shows_its_windows_as_it_grows_until_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    """On time, then corrected; exit code 130, a report, and no prism process left behind."""
    path = write_lines(tmp_path / "in.jsonl", [record(0.1, 5), record(0.2, 6)])
    with running(follow(tmp_path, path), tmp_path / "log") as job:
        job.await_that(lambda: "engine: prism" in job.output, "an engine")
        append(path, record(1.5, 7))
        job.await_that(holds(tmp_path, a0=11), "the first window")
        append(path, record(2.5, 8), record(0.3, 100))
        job.await_that(holds(tmp_path, a0=111, a1=7), "the corrected window")
        append(path, record(9, 1), record(0.4, 999))
        job.await_that(holds(tmp_path, a2=8), "the third window")
        job.await_that(lambda: len(Outcome(0, tmp_path).too_late) == 1, "the too late record")
        end(job, number)
        output = job.output
    outcome = Outcome(130, tmp_path)
    assert values(tmp_path)["a", 0] == 111
    assert outcome.too_late_ids == ["a0.4"]
    assert outcome.report["too_late"] == 1
    assert outcome.report["input"] == 7
    assert outcome.report["aggregated"] == 5
    assert "interrupted: 1 records were in windows still open" in output


def test_w1_shows_layer_by_layer_as_it_happens(tmp_path: Path) -> None:
    """80,000 on time, 85,000 and 86,000 as the late records come, then the too late one."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE[:3])
    flags = (*TIMELINE_FLAGS, "--allowed_lateness=2m", "--follow")
    database = tmp_path / "windows.db"

    def shows(*wanted: object) -> Callable[[], bool]:
        def condition() -> bool:
            try:
                rows = read_rows(database)
            except sqlite3.OperationalError:  # not there yet
                return False
            return [row[3:] for row in rows] == [wanted]

        return condition

    job_line = job_flags(tmp_path, [path], *flags, runner=PRISM)
    with running(job_line, tmp_path / "log") as job:
        job.await_that(shows(80_000, 2, 0, "ON_TIME"), "80,000 on time")
        append(path, *TIMELINE[3:5])
        job.await_that(shows(85_000, 3, 1, "LATE"), "85,000 corrected")
        append(path, *TIMELINE[5:7])
        job.await_that(shows(86_000, 4, 2, "LATE"), "86,000 corrected")
        append(path, *TIMELINE[7:])
        job.await_that(lambda: Outcome(0, tmp_path).too_late_ids == ["lost"], "the dead letter")
        end(job, signal.SIGTERM)
    assert shows(86_000, 4, 2, "LATE")()


def test_an_interrupted_job_prints_no_stack_trace(tmp_path: Path) -> None:
    """Ctrl-C is how a followed input ends: nothing has gone wrong."""
    path = write_lines(tmp_path / "in.jsonl", [record(0.1, 5), record(1.2, 1)])
    with running(follow(tmp_path, path), tmp_path / "log") as job:
        job.await_that(holds(tmp_path, a0=5), "the first window")
        end(job, signal.SIGINT)
        output = job.output
    assert "Traceback" not in output


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """Its first half is no invalid record."""
    path = write_lines(tmp_path / "in.jsonl", [record(0.1, 5)])
    whole = json.dumps(record(0.5, 70)).encode() + b"\n"
    with running(follow(tmp_path, path), tmp_path / "log") as job:
        append(path, record(1.2, 1), whole[:20])
        job.await_that(holds(tmp_path, a0=5), "the first window")
        append(path, whole[20:], record(2.2, 1))
        job.await_that(holds(tmp_path, a0=75, a1=1), "the corrected window")
        end(job, signal.SIGTERM)
    assert Outcome(130, tmp_path).letters == []


def test_a_file_that_appears_in_a_followed_folder_is_read(tmp_path: Path) -> None:
    """From its start; and while it lags, it holds the watermark."""
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "one.jsonl", [record(0.1, 5), record(1.2, 1)])
    with running(follow(tmp_path, folder), tmp_path / "log") as job:
        job.await_that(holds(tmp_path, a0=5), "the first window")
        write_lines(folder / "two.jsonl", [record(1.3, 20, "b"), record(2.2, 1, "b")])
        append(folder / "one.jsonl", record(2.3, 1))
        job.await_that(holds(tmp_path, a1=1, b1=20), "the second file's window")
        end(job, signal.SIGTERM)


def test_a_followed_record_from_the_future_moves_no_watermark(tmp_path: Path) -> None:
    """A clock that is wrong by a year must not close every window."""
    path = write_lines(tmp_path / "in.jsonl", [record(0.1, 5)])
    year = 400 * 86_400
    ahead = {**record(0, 9), "event_time": int((time.time() + year) * 1000)}
    with running(follow(tmp_path, path), tmp_path / "log") as job:
        append(path, ahead, record(0.2, 1), record(1.2, 1))
        job.await_that(holds(tmp_path, a0=6), "the first window")
        end(job, signal.SIGTERM)
    (letter,) = Outcome(130, tmp_path).letters
    assert letter["reason"] == "future_event_time"


def test_a_paced_replay_is_no_faster_than_its_pace_and_shows_windows_on_the_way(
    tmp_path: Path,
) -> None:
    """Twenty seconds at four times the speed take five; its results are those of full speed."""
    path = write_lines(tmp_path / "in.jsonl", [record(i / 4, i) for i in range(81)])
    fast = run_job(tmp_path / "fast", [path], *FLAGS, runner=PRISM)
    folder = tmp_path / "paced"
    keep_history(folder)
    connection = sqlite3.connect(folder / "windows.db")
    with connection:
        connection.execute("create table moments (day real)")
        connection.execute(
            "create trigger moment after insert on windows begin "
            "insert into moments values (julianday('now')); end"
        )
    connection.close()
    began = time.monotonic()
    paced = run_job(folder, [path], *FLAGS, "--replay_speed=4", runner=PRISM)
    assert time.monotonic() - began >= 5
    assert paced.finals == fast.finals
    assert paced.too_late_ids == fast.too_late_ids
    days = [day for (day,) in query(folder / "windows.db", "select day from moments")]
    assert (max(days) - min(days)) * 86_400 >= 2.5

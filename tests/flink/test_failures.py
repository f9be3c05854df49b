"""A task manager is killed, the job goes on: nothing lost, nothing doubled, the same verdicts."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.flink.cluster import Cluster, Jars
from beam_lateness.pipelines.flink.rest import Job
from benchmarks.payments import write_payments
from tests.flink.jobs import (
    QUICK,
    await_on,
    await_running,
    flink_flags,
    kill_task_manager,
    submit,
)
from tests.jobs import PAYMENT_FLAGS, Outcome, keep_history, query, read_payments
from tests.model import Windowed, bounded, verdicts
from tests.runners.process import running

pytestmark = pytest.mark.flink

RECORDS = 60_000
PIECES = 12
KILLS = 5
FLAGS = (
    *PAYMENT_FLAGS,
    "--follow",
    "--bound=5s",
    "--allowed_lateness=2m",
    "--num_shards=4",
    "--block_bytes=50000",
    *QUICK,
)


class Payments:
    """Payments that a job follows, appended piece by piece; the last one closes all windows.

    Args:
        folder: Where the file, and the job's results, are.
    """

    def __init__(self, folder: Path) -> None:
        whole = folder / "whole.jsonl"
        write_payments(whole, RECORDS, rate=20)
        lines = whole.read_bytes().splitlines(keepends=True)
        size = len(lines) // PIECES
        self._pieces = [lines[at : at + size] for at in range(0, len(lines), size)]
        self.path = folder / "payments.jsonl"
        self.path.touch()
        self.folder = folder
        self.outcome = Outcome(0, folder)
        last = max(event.ts for event in read_payments(whole))
        closing = (
            b'{"event_id": "end", "account": "end", "amount_cents": 1, "event_time": %d}\n'
            % (last + 600_000)
        )
        self._pieces[-1].append(closing)

    def append(self) -> None:
        """Appends the next piece."""
        with self.path.open("ab") as file:
            file.write(b"".join(self._pieces.pop(0)))

    def append_rest(self) -> None:
        """Appends all pieces that are left."""
        while self._pieces:
            self.append()

    @property
    def read(self) -> int:
        """How many records stand in the table or in the dead letters."""
        rows = query(self.folder / "windows.db", "select coalesce(sum(count), 0) from windows")
        return int(rows[0][0]) + len({each["record_id"] for each in self.outcome.too_late})

    @property
    def expected(self) -> Windowed:
        """What the model makes of the file."""
        events = read_payments(self.path)
        return verdicts([bounded(events, 5_000)], 60_000, 120_000)

    def check(self) -> None:
        """Holds the results to the model."""
        model = self.expected
        totals = {cell: value for cell, value in model.totals.items() if cell[0] != "end"}
        assert self.outcome.totals == totals
        # A dead letter may be written twice: its id is the same then.
        assert sorted(set(self.outcome.too_late_ids)) == sorted(e.name for e in model.too_late)
        counts: dict[tuple[str, int], int] = {}
        for key, start, count in self.history():
            assert count >= counts.get((key, start), 0), "a pane below an earlier one"
            counts[key, start] = count

    def history(self) -> list[tuple[Any, ...]]:
        """The panes that the table took in."""
        sql = "select key, window_start_ms, count from history order by rowid"
        return query(self.folder / "windows.db", sql)


@pytest.fixture
def payments(tmp_path: Path) -> Payments:
    """The payments, and a table that keeps its history."""
    keep_history(tmp_path)
    return Payments(tmp_path)


@pytest.fixture
def job(flink: Cluster, payments: Payments, ended: None) -> Job:
    """A job that follows them."""
    payments.append()
    return submit(flink, flink_flags(flink, payments.folder, [payments.path], *FLAGS))


def await_all(flink: Cluster, job: Job, payments: Payments) -> None:
    """Waits until every record stands somewhere; the closing one's window stays open."""
    await_on(flink, job, lambda: payments.read >= RECORDS, f"{RECORDS} records")


def test_a_task_manager_killed_again_and_again_changes_no_result(
    flink: Cluster, jars: Jars, payments: Payments, job: Job
) -> None:
    """SIGKILL at seeded moments, of either task manager."""
    seeded = random.Random(6)
    for _ in range(KILLS):
        payments.append()
        before, much = payments.read, seeded.randint(1, 2500)
        await_on(
            flink,
            job,
            lambda before=before, much=much: payments.read >= before + much,  # type: ignore[misc]
            f"{much} records more",
        )
        number = seeded.randint(1, 2)
        kill_task_manager(flink, number)
        payments.append()
        flink.start_task_manager(number, jars)
        await_running(flink, job)
    payments.append_rest()
    await_all(flink, job, payments)
    payments.check()
    assert flink.rest.checkpoints(job.id).restored > 0


def test_a_job_stopped_with_a_savepoint_goes_on_where_it_was(
    flink: Cluster, payments: Payments, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice; the verdicts are those of a job that was never stopped, no record is read twice."""
    for _ in range(2):
        before = payments.read
        payments.append()
        await_on(flink, job, lambda before=before: payments.read > before, "more")  # type: ignore[misc]
        master = f"--flink_master={flink.layout.master}"
        capsys.readouterr()
        assert main(["stop", job.name, "--savepoint", master]) == 0
        said = capsys.readouterr().out
        path = said.split("savepoint: ")[1].split()[0]
        payments.append()
        flags = flink_flags(flink, payments.folder, [payments.path], *FLAGS)
        assert main(["resume", f"--from={path}", "--detach", *flags]) == 0
        job = flink.rest.job()
    payments.append_rest()
    await_all(flink, job, payments)
    payments.check()
    letters = payments.outcome.too_late_ids
    assert len(letters) == len(set(letters)), "a dead letter was written twice"


def test_a_job_that_was_ended_at_once_goes_on_from_its_last_checkpoint(
    flink: Cluster, payments: Payments, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that has failed for good does: what was read after it is read again."""
    await_on(flink, job, lambda: payments.read > 0, "records")
    await_on(flink, job, lambda: flink.rest.checkpoints(job.id).path is not None, "checkpoint")
    payments.append()
    capsys.readouterr()
    assert main(["stop", job.name, "--cancel", f"--flink_master={flink.layout.master}"]) == 0
    path = capsys.readouterr().out.split("last checkpoint: ")[1].split()[0]
    flags = flink_flags(flink, payments.folder, [payments.path], *FLAGS)
    assert main(["resume", f"--from={path}", "--detach", *flags]) == 0
    payments.append_rest()
    await_all(flink, flink.rest.job(), payments)
    payments.check()


@pytest.mark.usefixtures("ended")
def test_a_live_job_that_is_interrupted_goes_on_by_the_command_it_names(
    flink: Cluster, payments: Payments
) -> None:
    """Ctrl-C stops it with a savepoint: what it has read is nowhere but in its state."""
    payments.append()
    flags = flink_flags(flink, payments.folder, [payments.path], *FLAGS)
    with running(flags, payments.folder / "log") as process:
        process.await_that(lambda: payments.read > 0, "records")
        process.signal(signal.SIGINT)
        assert process.await_end() == 130
        said = process.output
    payments.append()
    path = said.split("resume --from=")[1].split("`")[0]
    assert main(["resume", f"--from={path}", "--detach", *flags]) == 0
    payments.append_rest()
    await_all(flink, flink.rest.job(), payments)
    payments.check()

"""Jobs on the cluster, and what is asked of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.flink.cluster import Cluster
from beam_lateness.pipelines.flink.nodes import task_manager
from beam_lateness.pipelines.flink.rest import RUNNING, Job
from tests.jobs import Outcome, check_conservation, job_flags, read_payments
from tests.model import bounded, verdicts
from tests.waiting import await_that

QUICK: Final = ("--checkpointing_interval=1000", "--parallelism=2")
WAIT_S: Final = 90.0


def flink_flags(
    cluster: Cluster, folder: Path, inputs: Iterable[Path | str], *flags: str
) -> list[str]:
    """Gives the flags of a job on the cluster, without a report."""
    own = [flag for flag in job_flags(folder, inputs, *flags) if not flag.startswith("--r")]
    return [*own, *cluster.layout.flags]


def run_on_flink(
    cluster: Cluster, folder: Path, inputs: Iterable[Path | str], *flags: str
) -> Outcome:
    """Runs a finite job to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    report = f"--report={folder / 'report.json'}"
    code = main(["stream", *flink_flags(cluster, folder, inputs, *flags), report])
    outcome = Outcome(code, folder)
    if code == 0:
        check_conservation(outcome)
    return outcome


def submit(cluster: Cluster, flags: Iterable[str]) -> Job:
    """Submits a job, and gives it."""
    assert main(["submit", *flags]) == 0
    (job,) = [job for job in cluster.rest.jobs() if not job.ended]
    return job


def await_on(cluster: Cluster, job: Job, condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds, while the job is not over."""

    def holds() -> bool:
        now = cluster.rest.job(job.id)
        assert not now.ended, f"{now.state}: {cluster.rest.failure(job.id)}"
        return condition()

    await_that(holds, WAIT_S, what)


def await_running(cluster: Cluster, job: Job) -> None:
    """Waits until a job runs again."""
    await_on(cluster, job, lambda: cluster.rest.job(job.id).state == RUNNING, "running job")


def kill_task_manager(cluster: Cluster, number: int) -> None:
    """Ends a task manager by SIGKILL, and waits until it is gone."""
    process = cluster.node(task_manager(number)).process
    assert process is not None
    process.kill()
    process.wait(10)


def check_readers(outcome: Outcome, paths: Iterable[Path]) -> None:
    """Holds what several readers made of payments to what each of them would make alone.

    No record is lost or doubled; where the engine judged, it was no harsher than the model of each
    file by itself (a bound of 5 s, a lateness of 2 min). Records of the key `end` stay open.
    """
    files = [read_payments(path) for path in paths]
    too_late = outcome.too_late_ids
    assert len(set(too_late)) == len(too_late)
    apart = verdicts([bounded(events, 5_000) for events in files], 60_000, 120_000)
    assert set(too_late) <= {event.name for event in apart.too_late}
    left_out = set(too_late)
    sums: dict[tuple[str, int], int] = {}
    for event in itertools.chain.from_iterable(files):
        if event.name not in left_out and event.key != "end":
            cell = event.key, event.ts - event.ts % 60_000
            sums[cell] = sums.get(cell, 0) + event.value
    assert outcome.totals == sums

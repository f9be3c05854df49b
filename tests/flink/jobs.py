"""Jobs on the cluster, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.flink.cluster import Cluster
from beam_lateness.pipelines.flink.rest import RUNNING, Job
from tests.jobs import Outcome, check_conservation, job_flags
from tests.waiting import await_that

RUNNER: Final = "FlinkRunner"
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

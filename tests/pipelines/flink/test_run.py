"""A job on a cluster: it is found, followed to its end, and stopped in order."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from rich.console import Console

from beam_lateness.pipelines.flink import run as runs
from beam_lateness.pipelines.flink.engine import StoppableFlinkRunner
from beam_lateness.pipelines.flink.run import ClusterRun
from beam_lateness.transforms import metrics
from tests.pipelines.flink.canned import (
    ROOT,
    TRACE,
    CannedFlink,
    Turns,
    accumulators,
    checkpoints,
    refusal,
)

NAME: Final = "mine"


class Submitted:
    """A job that a cluster takes, and how it goes there.

    Args:
        flink: The cluster.
        states: Those in which it is seen, one after the other, the last for ever.
        restored: How often it went back to a checkpoint.
    """

    def __init__(self, flink: CannedFlink, *states: str, restored: int = 0) -> None:
        self.flink = flink
        self.restored = restored
        self.states = states
        self.id = ""
        self.then: Callable[[], None] = self._nothing

    def _nothing(self) -> None:
        pass

    def run(self) -> Any:
        """Submits it, as a pipeline does."""
        flink = self.flink
        self.id = flink.add(NAME, 2, self.states[-1])
        entry = flink.jobs[-1]
        turns = Turns([{"jobs": [{**entry, "state": state}]} for state in self.states])
        flink.answers["jobs/overview"] = turns
        kept = checkpoints(5, restored=self.restored, path="file:/c/chk-5")
        counted = monitoring_infos.int64_user_counter(metrics.NAMESPACE, metrics.INPUT, 7, "read")
        entries = [{"stacktrace": TRACE}] if "FAILED" in self.states else []
        done = {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/s/1"}}
        flink.answers |= {
            f"jobs/{self.id}/checkpoints": kept,
            f"jobs/{self.id}/accumulators": accumulators(counted),
            f"jobs/{self.id}/exceptions": {"exceptionHistory": {"entries": entries}},
            f"jobs/{self.id}/stop": {"request-id": "r"},
            f"jobs/{self.id}/savepoints/r": done,
        }
        self.then()
        return SimpleNamespace(state=PipelineState.RUNNING)

    def told(self) -> list[str]:
        """What Flink was told to do, by method."""
        return [each.method for each in self.flink.asked if each.method != "GET"]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Keeps what is said; nobody waits."""
    monkeypatch.setattr(runs, "_POLL_S", 0.0)
    monkeypatch.setattr(runs, "_SAY_S", 0.0)
    return Console(record=True, file=io.StringIO(), width=200)


def cluster_run(job: Submitted, console: Console, *flags: str, endless: bool = True) -> ClusterRun:
    """The run of a job."""
    options = PipelineOptions([f"--flink_master={job.flink.master}", f"--job_name={NAME}", *flags])
    return ClusterRun(job, StoppableFlinkRunner(), options, endless, console)  # type: ignore[arg-type]


def test_a_finite_job_ends_with_its_counts(flink: CannedFlink, console: Console) -> None:
    """Of all its input: it was never started anew."""
    flink.add(NAME, 1, "FINISHED", ended=True)  # of the same name, and from before
    job = Submitted(flink, "CREATED", "RUNNING", "RUNNING", "FINISHED")
    ended = cluster_run(job, console, endless=False).await_end()
    assert (ended.counts["input"], ended.whole, ended.interrupted) == (7, True, False)
    assert job.told() == []


@pytest.mark.parametrize(
    ("flags", "restored"), [(["--savepoint_path=/s"], 1), ([], 1)], ids=["resumed", "failed"]
)
def test_the_counts_of_a_job_that_began_anew_are_not_those_of_its_input(
    flink: CannedFlink, console: Console, flags: list[str], restored: int
) -> None:
    """They may not balance."""
    job = Submitted(flink, "RUNNING", "FINISHED", restored=restored)
    assert not cluster_run(job, console, *flags, endless=False).await_end().whole


def test_a_job_that_fails_says_why_and_how_to_go_on(flink: CannedFlink, console: Console) -> None:
    """With its last checkpoint."""
    job = Submitted(flink, "RUNNING", "RESTARTING", "FAILED")
    with pytest.raises(RuntimeError) as caught:
        cluster_run(job, console).await_end()
    parts = [ROOT, job.id, "`beam-lateness resume --from=file:/c/chk-5`"]
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("endless", [True, False], ids=["live", "finite"])
def test_an_interrupted_job_is_stopped_with_a_savepoint_if_it_is_live(
    flink: CannedFlink, console: Console, monkeypatch: pytest.MonkeyPatch, endless: bool
) -> None:
    """What its source has acknowledged is nowhere but in its state; a finite one is cancelled."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClusterRun, "_follow", interrupt)
    job = Submitted(flink, "RUNNING", "RUNNING", "CANCELED")
    if not endless:
        job.then = lambda: flink.answers.update({f"jobs/{job.id}": {"state": "CANCELED"}})
    ended = cluster_run(job, console, endless=endless).await_end()
    assert ended.interrupted
    assert job.told() == (["POST"] if endless else ["PATCH"])
    assert ("file:/s/1" in str(ended.remark)) == endless


def test_a_job_that_is_left_is_told_with_the_commands_for_it(
    flink: CannedFlink, console: Console
) -> None:
    """It goes on."""
    job = Submitted(flink, "CREATED", "RUNNING")
    cluster_run(job, console).leave()
    said = console.export_text()
    assert f"beam-lateness status {NAME}" in said
    assert f"beam-lateness stop {NAME} --savepoint" in said
    assert job.told() == []


def test_a_job_that_does_not_come_is_an_error(
    flink: CannedFlink, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the same name that was there before is another."""
    monkeypatch.setattr(runs, "_SUBMIT_S", 0.05)
    flink.add(NAME, 1, "FINISHED", ended=True)
    pipeline = SimpleNamespace(run=lambda: SimpleNamespace(state=PipelineState.RUNNING))
    job = Submitted(flink)
    job.run = pipeline.run  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=f"no job {NAME} has come to {flink.master}"):
        cluster_run(job, console).await_end()


def test_a_resumed_job_is_not_told_to_have_failed(flink: CannedFlink, console: Console) -> None:
    """To begin with a savepoint is no failure."""
    job = Submitted(flink, "RUNNING", "RUNNING", "RUNNING", "FINISHED", restored=1)
    cluster_run(job, console, "--savepoint_path=/s", endless=False).await_end()
    assert "failure" not in console.export_text()


def test_a_question_that_is_not_answered_is_not_the_end_of_a_job(
    flink: CannedFlink, console: Console
) -> None:
    """A job manager may be busy, or elect its leader anew; the job goes on meanwhile."""
    job = Submitted(flink, "RUNNING", "RUNNING", "RUNNING", "FINISHED")

    def falter() -> None:
        flink.answers["jobs/overview"].insert(3, refusal(503, "ongoing leader election"))

    job.then = falter
    assert cluster_run(job, console, endless=False).await_end().counts["input"] == 7


def test_an_interrupt_while_a_job_comes_to_the_cluster_does_not_leave_it_there(
    flink: CannedFlink, console: Console
) -> None:
    """`interrupted before the job ran` would be wrong."""
    job = Submitted(flink, "CREATED", "RUNNING", "RUNNING", "CANCELED")

    def interrupt() -> None:
        raise KeyboardInterrupt

    job.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        cluster_run(job, console).await_end()
    assert job.told() != []


def test_a_second_job_of_a_name_is_refused_before_it_is_submitted(
    flink: CannedFlink, console: Console
) -> None:
    """The two would write the same, and `stop` would end the later one."""
    flink.add(NAME, 1)
    job = Submitted(flink, "RUNNING")
    with pytest.raises(ValueError, match=f"--job_name={NAME} runs on {flink.master} already"):
        cluster_run(job, console).leave()
    assert job.id == ""

"""Runs a job on a Flink cluster: submits it, leaves it or waits for it, and stops it in order."""

from __future__ import annotations

import time
from typing import Final

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
)
from apache_beam.runners.runner import PipelineResult, PipelineState
from rich.console import Console

from beam_lateness.pipelines.ended import Ended
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.engine import StoppableFlinkRunner
from beam_lateness.pipelines.flink.options import FlinkOptions
from beam_lateness.pipelines.flink.rest import RUNNING, FlinkRest, Job
from beam_lateness.pipelines.interrupts import interrupts

_SUBMIT_S: Final = 600.0
_WITHDRAW_S: Final = 10.0
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.2
_SAY_S: Final = 30.0


class ClusterRun:
    """A job on a cluster.

    Args:
        pipeline: The job.
        runner: Its runner.
        options: Its options.
        endless: Whether its input has no end: it is stopped with a savepoint then.
        console: Where to say how it goes.
    """

    def __init__(
        self,
        pipeline: beam.Pipeline,
        runner: StoppableFlinkRunner,
        options: PipelineOptions,
        endless: bool,
        console: Console,
    ) -> None:
        self._pipeline = pipeline
        self._runner = runner
        self._endless = endless
        self._console = console
        self._name = str(options.view_as(GoogleCloudOptions).job_name)
        self._resumed = options.view_as(FlinkOptions).savepoint_path is not None
        self._before: set[str] = set()
        self._id: str | None = None
        self._rest = FlinkRest(options.view_as(FlinkRunnerOptions).flink_master)

    def submit(self) -> Job:
        """Submits the job, and waits until it runs.

        Raises:
            ValueError: If a job of its name runs already.
            RuntimeError: If Flink or the job server does not take it.
        """
        for job in self._rest.jobs():
            if job.name == self._name and not job.ended:
                msg = (
                    f"--job_name={self._name} runs on {self._rest.master} already ({job.id}): two "
                    "of them would write the same; stop it first, or give another name"
                )
                raise ValueError(msg)
            self._before.add(job.id)
        result = self._pipeline.run()
        self._id = self._find(result)
        job = self._rest.await_state(self._id, RUNNING)
        say(self._console, f"job {job.name} ({job.id}) runs on {self._rest.master}")
        return job

    def counts(self) -> dict[str, int]:
        """Gives what the job has counted so far, by metric name; nothing before it runs."""
        if self._id is None:
            return {}
        return FlinkRest(self._rest.master).counts(self._id)  # its own: others ask in other threads

    def leave(self) -> None:
        """Submits the job and leaves it to the cluster."""
        try:
            self._refuse_failed(self.submit())
        finally:
            self._runner.stop()
        say(
            self._console,
            f"how it goes: beam-lateness status {self._name}; "
            f"to end it: beam-lateness stop {self._name} --savepoint",
        )

    def await_end(self) -> Ended:
        """Submits the job and waits for its end; an interrupt stops it.

        A live job is stopped with a savepoint, since what its source has acknowledged is nowhere
        but in its state; a finite one is cancelled.

        Raises:
            RuntimeError: If it fails.
        """
        job = None
        try:
            with interrupts():
                job = self.submit()
            with interrupts():  # once more: Beam has set its own handler meanwhile
                job = self._follow(job)
        except KeyboardInterrupt:
            if job is None:
                self._withdraw()
                raise
            return self._stop(job)
        finally:
            self._runner.stop()
        self._refuse_failed(job)
        remark = None
        if self._endless or job.state != "FINISHED":
            remark = "the job was ended from elsewhere; `beam-lateness resume --from` goes on"
        return Ended(self._rest.counts(job.id), remark is not None, self._whole(job), remark)

    def _withdraw(self) -> None:
        """Cancels the job, should it have come to the cluster before the interrupt."""
        end = time.monotonic() + _WITHDRAW_S
        while time.monotonic() < end:
            for job in self._new():
                self._rest.cancel(job.id)
                return
            time.sleep(_POLL_S)

    def _new(self) -> list[Job]:
        """The job, once it has come to the cluster."""
        jobs = self._rest.jobs()
        return [job for job in jobs if job.name == self._name and job.id not in self._before]

    def _find(self, result: PipelineResult) -> str:
        end = time.monotonic() + _SUBMIT_S
        while time.monotonic() < end:
            for job in self._new():
                return job.id
            if result.state in (PipelineState.FAILED, PipelineState.CANCELLED):
                result.wait_until_finish()  # raises what the job server said
            time.sleep(_POLL_S)
        msg = f"no job {self._name} has come to {self._rest.master} in {_SUBMIT_S:g} s"
        raise RuntimeError(msg)

    def _follow(self, job: Job) -> Job:
        """Waits for a job's end, and says so when it is started anew."""
        restored, said = int(self._resumed), time.monotonic()
        answered = time.monotonic()
        while not job.ended:
            time.sleep(_POLL_S)
            try:
                job = self._rest.job(job.id)
                if time.monotonic() - said >= _SAY_S:
                    said = time.monotonic()
                    now = self._rest.checkpoints(job.id).restored
                    if now > restored:
                        say(
                            self._console,
                            f"started anew after a failure: {self._rest.failure(job.id)}",
                        )
                    restored = max(now, restored)
                answered = time.monotonic()
            except EngineError as error:  # a job manager may be busy, or come back
                if time.monotonic() - answered > _PATIENCE_S:
                    msg = f"{error}; whether job {job.name} ({job.id}) goes on is not known"
                    raise RuntimeError(msg) from error
        return job

    def _refuse_failed(self, job: Job) -> None:
        if job.state == "FAILED":
            path = self._rest.checkpoints(job.id).path
            again = f"; `beam-lateness resume --from={path}` goes on" if path else ""
            msg = f"{self._rest.failure(job.id)} (job {job.id} on {self._rest.master}){again}"
            raise RuntimeError(msg)

    def _stop(self, job: Job) -> Ended:
        whole = self._whole(job)
        if not self._endless:
            self._rest.cancel(job.id)
            job = self._rest.await_state(job.id)
            return Ended(self._rest.counts(job.id), True, whole)
        say(self._console, "stopping the job with a savepoint")
        try:
            path = self._rest.stop(job.id)
        except EngineError as error:
            return Ended({}, True, False, f"{error}; it still runs on {self._rest.master}")
        remark = f"the same flags with `beam-lateness resume --from={path}` go on with them"
        return Ended(self._rest.counts(job.id), True, whole, remark)

    def _whole(self, job: Job) -> bool:
        """Says whether the job's counts are of its whole input."""
        return not self._resumed and self._rest.checkpoints(job.id).restored == 0


def say(console: Console, text: str) -> None:
    """Prints a line as it is: a path may hold what would be markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)

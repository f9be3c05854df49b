"""The flags of jobs on Flink: the runner's own, and what is set where they are left out.

Beam's Python client does not know the flags of its Java runner, and calls them unparseable. Here
they are declared, so that a wrong one is refused and a right one needs no guessing.
"""

from __future__ import annotations

import argparse
import glob
import os
from typing import Any, Final, NamedTuple

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)

from beam_lateness.pipelines.flink.jars import FLINK_VERSION, JOB_SERVER_VERSION
from beam_lateness.pipelines.flink.rest import MAGIC_MASTERS

FLINK_RUNNER: Final = "FlinkRunner"
WORKERS_ADDRESS: Final = "localhost:50000"
LOOPBACK_WORKERS: Final = "LOOPBACK"
EXTERNAL_WORKERS: Final = "EXTERNAL"

CHECKPOINTING_INTERVAL_MS: Final = 10_000
_LEAST_CHECKPOINTING_MS: Final = 1000
_BUNDLE_MS: Final = 200
_UNSET: Final = -1
_EXACTLY_ONCE: Final = "EXACTLY_ONCE"
_RETRIES: Final = 10
_LIVE_RETRIES: Final = 100
_RETRY_DELAY_MS: Final = 2000


def truth(text: str) -> bool:
    """Reads a yes-or-no flag."""
    if text.lower() not in ("true", "false"):
        msg = f"must be true or false, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return text.lower() == "true"


class FlinkOptions(PipelineOptions):
    """The flags of Beam's runner for Flink that Beam's Python client does not know, and ours."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("on Flink (--runner=FlinkRunner)")
        numbers = {
            "checkpointing_interval": f"ms between checkpoints ({CHECKPOINTING_INTERVAL_MS})",
            "min_pause_between_checkpoints": "ms between a checkpoint's end and the next",
            "checkpoint_timeout_millis": "ms after which a checkpoint is given up",
            "max_bundle_time_mills": f"ms after which a bundle is finished ({_BUNDLE_MS})",
            "max_bundle_size": "elements after which a bundle is finished",
            "num_concurrent_checkpoints": "checkpoints at a time (1)",
            "auto_watermark_interval": "ms between watermarks of Flink's own sources",
            "latency_tracking_interval": "ms between markers that measure latency (0: none)",
            "number_of_execution_retries": "failures after which a job is given up "
            f"({_RETRIES}; live: {_LIVE_RETRIES})",
            "execution_retry_delay": f"ms between a failure and the next try ({_RETRY_DELAY_MS})",
            "shutdown_sources_after_idle_ms": "ms after which a source that has given its splits "
            "is shut down, and checkpoints end with it (0; live: never)",
        }
        for name, text in numbers.items():
            group.add_argument(f"--{name}", type=int, help=text)
        switches = {
            "finish_bundle_before_checkpointing": "true: without it records are lost (true)",
            "externalized_checkpoints_enabled": "keep checkpoints after a job has failed (true)",
            "retain_externalized_checkpoints_on_cancellation": "and after it was cancelled (true)",
            "allow_non_restored_state": "resume even if the savepoint holds state of steps that "
            "are no more (false)",
            "faster_copy": "copy no elements between steps of a task (false)",
            "object_reuse": "use element objects again (false)",
            "operator_chaining": "run steps that follow each other in one task (true)",
            "unaligned_checkpoint_enabled": "checkpoints overtake what is on its way (false)",
            "fail_on_checkpointing_errors": "a checkpoint that fails fails the job (true)",
            "disable_metrics": "keep no metrics: `status` has no counts then (false)",
        }
        for name, text in switches.items():
            group.add_argument(f"--{name}", type=truth, nargs="?", const=True, help=text)
        texts = {
            "savepoint_path": "savepoint or checkpoint to go on from (`resume --from` sets it)",
            "checkpointing_mode": "EXACTLY_ONCE, or AT_LEAST_ONCE, which counts twice "
            "(EXACTLY_ONCE)",
            "state_backend": "where state is kept: filesystem (the cluster's own choice; for "
            "rocksdb, name it in the cluster's configuration)",
            "state_backend_storage_path": "URL of the folder for its checkpoints (the cluster's)",
            "flink_conf_dir": "folder with Flink's configuration, for the job server",
        }
        for name, text in texts.items():
            group.add_argument(f"--{name}", help=text)
        group.add_argument(
            "--job_server_version",
            default=JOB_SERVER_VERSION,
            help="Beam release whose job server is resolved with Maven (%(default)s)",
        )
        group.add_argument(
            "--detach",
            action="store_true",
            help="submit the job and leave it; see `beam-lateness status` and `stop`",
        )


def asks_flink(options: PipelineOptions) -> bool:
    """Says whether the job shall run on Flink."""
    return bool(options.view_as(StandardOptions).runner == FLINK_RUNNER)


def jar_path(options: PipelineOptions) -> str | None:
    """Gives where the job shall be written as a jar, for application mode, instead of being run."""
    path: str | None = options.view_as(PortableOptions).output_executable_path
    return path


def in_job_server(options: PipelineOptions) -> bool:
    """Says whether Flink runs inside the job server: for trying out, and without REST."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    return master in MAGIC_MASTERS and jar_path(options) is None


class Job(NamedTuple):
    """What the settings depend on.

    Args:
        endless: Whether its input is read as time goes by: it has no end, or a pace.
        live: Whether it has no end.
        num_readers: How many readers share the input.
        run: Names the run.
    """

    endless: bool
    live: bool
    num_readers: int
    run: str


def set_safe_defaults(options: PipelineOptions, job: Job) -> None:
    """Sets what a job on Flink needs to lose nothing, where it was left out.

    Raises:
        ValueError: If what was given would lose records; it says how.
    """
    flink = options.view_as(FlinkOptions)
    options.view_as(StandardOptions).streaming = True
    _set(flink, "checkpointing_interval", CHECKPOINTING_INTERVAL_MS)
    _set(flink, "finish_bundle_before_checkpointing", True)
    _refuse_loss(flink, job)
    if job.live and in_job_server(options):
        master = options.view_as(FlinkRunnerOptions).flink_master
        msg = (
            f"--flink_master={master} runs Flink inside the job server, and what its checkpoints "
            "hold of a live input is lost with it: name a cluster's REST interface with "
            "--flink_master=HOST:PORT (`beam-lateness cluster up` starts one)"
        )
        raise ValueError(msg)
    _set(flink, "max_bundle_time_mills", _BUNDLE_MS)
    # Bounded: with Flink's own default, endless restarts look like a job that hangs.
    _set(flink, "number_of_execution_retries", _LIVE_RETRIES if job.live else _RETRIES)
    _set(flink, "execution_retry_delay", _RETRY_DELAY_MS)
    # Left out, a live job's sources stay, and so do its checkpoints.
    if not job.live:
        _set(flink, "shutdown_sources_after_idle_ms", 0)
    if not in_job_server(options):
        _set(flink, "externalized_checkpoints_enabled", True)
        _set(flink, "retain_externalized_checkpoints_on_cancellation", True)
    runner = options.view_as(FlinkRunnerOptions)
    if jar_path(options) is not None:
        _prepare_jar(options)
        runner.flink_master = MAGIC_MASTERS[0]  # it runs on the cluster that is given the jar
    if not _given(options, "flink_version"):  # Beam's default is newer than what is tested here
        runner.flink_version = FLINK_VERSION
    if runner.parallelism == _UNSET:
        runner.parallelism = job.num_readers
    if runner.parallelism < 1:
        msg = f"--parallelism must be at least 1, got {runner.parallelism}"
        raise ValueError(msg)
    cloud = options.view_as(GoogleCloudOptions)
    if not cloud.job_name:
        cloud.job_name = f"beam-lateness-{job.run}".lower()
    _choose_workers(options)


def _refuse_loss(flink: FlinkOptions, job: Job) -> None:
    interval = flink.checkpointing_interval
    if job.live and interval < _LEAST_CHECKPOINTING_MS:
        msg = (
            f"--checkpointing_interval must be at least {_LEAST_CHECKPOINTING_MS} (ms) for a live "
            f"input, got {interval}: without checkpoints nothing is acknowledged, and the first "
            "failure loses what the windows hold; more of them than one a second hinder the job"
        )
        raise ValueError(msg)
    if not flink.finish_bundle_before_checkpointing and interval > 0:
        msg = (
            "--finish_bundle_before_checkpointing=false loses records with checkpoints: a bundle "
            "that is open at the barrier is in none of them. Leave the flag out"
        )
        raise ValueError(msg)
    if (flink.checkpointing_mode or _EXACTLY_ONCE) != _EXACTLY_ONCE:
        msg = (
            f"--checkpointing_mode={flink.checkpointing_mode} counts records twice after a "
            f"failure: leave it out ({_EXACTLY_ONCE})"
        )
        raise ValueError(msg)
    idle_ms = flink.shutdown_sources_after_idle_ms
    if job.live and idle_ms is not None and idle_ms >= 0:
        msg = (
            f"--shutdown_sources_after_idle_ms={idle_ms} ends the checkpoints of a live job once "
            "its source has given its splits: leave it out"
        )
        raise ValueError(msg)


def _prepare_jar(options: PipelineOptions) -> None:
    portable = options.view_as(PortableOptions)
    if portable.job_endpoint:
        msg = (
            f"--job_endpoint={portable.job_endpoint} would write its own cluster into the jar of "
            "--output_executable_path: leave it out"
        )
        raise ValueError(msg)
    # The job server has a current folder of its own.
    portable.output_executable_path = os.path.abspath(portable.output_executable_path)


def _choose_workers(options: PipelineOptions) -> None:
    """Chooses who runs the Python steps: this process, or a pool beside each task manager."""
    portable = options.view_as(PortableOptions)
    inside = in_job_server(options)
    if not portable.environment_type:
        portable.environment_type = LOOPBACK_WORKERS if inside else EXTERNAL_WORKERS
    portable.environment_type = portable.environment_type.upper()
    named = portable.environment_config or portable.environment_options
    if portable.environment_type == EXTERNAL_WORKERS and not named:
        portable.environment_config = WORKERS_ADDRESS
    if options.view_as(FlinkOptions).detach:
        if jar_path(options) is not None:
            msg = "--detach submits a job, --output_executable_path writes it: give one of them"
            raise ValueError(msg)
        if inside:
            msg = (
                "--detach needs a cluster to leave the job on; name its REST interface with "
                "--flink_master=HOST:PORT, or start one with `beam-lateness cluster up`"
            )
            raise ValueError(msg)
        if portable.environment_type == LOOPBACK_WORKERS:
            msg = (
                "--environment_type=LOOPBACK runs the job's Python steps in this process, which "
                f"--detach ends; use EXTERNAL with a pool of workers ({WORKERS_ADDRESS})"
            )
            raise ValueError(msg)


_LOG: Final = "log"  # a place for alerts, and no path


def make_absolute(stream: Any) -> None:
    """Makes the paths of a job absolute: its workers have a current folder of their own.

    Args:
        stream: The flags of the streaming job; its files are replaced.
    """
    stream.input = [_absolute(name, pattern=True) for name in stream.input or ()]
    for name in ("output", "dead_letters", "checkpoint", "alert_to"):
        value = getattr(stream, name)
        if value is not None and value != _LOG:
            setattr(stream, name, _absolute(value))


def _absolute(name: str, *, pattern: bool = False) -> str:
    scheme, sign, path = name.partition(":///")
    if sign and scheme.partition("+")[0] == "sqlite":
        file = path not in ("", ":memory:")
        return f"{scheme}{sign}{os.path.abspath(path)}" if file else name
    if name.startswith("file:"):
        return f"file:{os.path.abspath(name.removeprefix('file:'))}"
    if not name or "://" in name:
        return name
    if pattern and not os.path.isabs(name):
        return os.path.normpath(os.path.join(glob.escape(os.getcwd()), name))
    return os.path.abspath(name)


def _set(options: Any, name: str, value: Any) -> None:
    if getattr(options, name) is None:
        setattr(options, name, value)


def _given(options: PipelineOptions, name: str) -> bool:
    return any(flag.split("=")[0] == f"--{name}" for flag in options._flags or ())

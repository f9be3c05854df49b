"""Gets Flink ready for a job: the job server, the cluster, and the workers."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.job_server import JobServer

from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.jars import Say, job_server_jar
from beam_lateness.pipelines.flink.options import (
    EXTERNAL_WORKERS,
    FlinkOptions,
    Job,
    in_job_server,
    jar_path,
    set_safe_defaults,
)
from beam_lateness.pipelines.flink.rest import LOCAL_HOSTS, FlinkRest
from beam_lateness.pipelines.java import find_java
from beam_lateness.pipelines.ports import accepts


class StoppableFlinkRunner(FlinkRunner):
    """Beam's runner, whose job server can be ended before this process does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._server: JobServer | None = None

    def default_job_server(self, options: PipelineOptions) -> Any:
        self._server = super().default_job_server(options)  # type: ignore[no-untyped-call]
        return self._server

    def stop(self) -> None:
        """Ends the job server, if this process has started one."""
        if self._server is not None:
            self._server.stop()
            self._server = None


def ready_flink(options: PipelineOptions, job: Job, say: Say) -> StoppableFlinkRunner:
    """Sets what the job needs, and checks that there is a Flink that can run it.

    Raises:
        ValueError: If a flag would lose records, or fits no other.
        EngineError: If Java, the job server, the cluster or its workers are not there.
    """
    set_safe_defaults(options, job)
    runner, portable = options.view_as(FlinkRunnerOptions), options.view_as(PortableOptions)
    if not in_job_server(options) and jar_path(options) is None:
        _check_cluster(runner, ours=not portable.job_endpoint)
        _check_workers(portable, runner)
    if portable.job_endpoint:
        _check_endpoint(portable.job_endpoint)
    else:
        options.view_as(JobServerOptions).job_server_java_launcher = find_java("Beam's job server")
        version = options.view_as(FlinkOptions).job_server_version
        runner.flink_job_server_jar = job_server_jar(
            runner.flink_job_server_jar, runner.flink_version, version, say
        )
    return StoppableFlinkRunner()


def _check_cluster(runner: Any, *, ours: bool) -> None:
    overview = FlinkRest(runner.flink_master).overview()
    there = str(overview["flink-version"])
    if ours and runner.flink_job_server_jar is None and not there.startswith(runner.flink_version):
        msg = (
            f"--flink_master={runner.flink_master} runs Flink {there}, and the job server is for "
            f"{runner.flink_version}: give --flink_version={'.'.join(there.split('.')[:2])} (and a "
            "--job_server_version that has it), or the right --flink_job_server_jar"
        )
        raise EngineError(msg)
    slots = overview["slots-total"]
    if slots < runner.parallelism:
        msg = (
            f"--parallelism={runner.parallelism} needs as many slots, and the cluster at "
            f"{runner.flink_master} has {slots}; start more task managers, or give less"
        )
        raise EngineError(msg)


def _check_workers(portable: Any, runner: Any) -> None:
    """Looks for the pool of workers where this machine is the cluster's."""
    here = FlinkRest(runner.flink_master).here
    if portable.environment_type != EXTERNAL_WORKERS or not here:
        return
    address = portable.environment_config or ""
    if _is_silent(address):
        port = address.rpartition(":")[2]
        msg = (
            f"no pool of workers answers at --environment_config={portable.environment_config}; "
            "`beam-lateness cluster up` starts one, or run `python -m "
            f"apache_beam.runners.worker.worker_pool_main --service_port={port}` (for a cluster "
            "elsewhere, reached by a forwarded port, name it by its address)"
        )
        raise EngineError(msg)


def _check_endpoint(endpoint: str) -> None:
    if _is_silent(endpoint):
        msg = (
            f"no job server answers at --job_endpoint={endpoint}; `beam-lateness cluster up` "
            "starts one, or leave the flag out for one of the job's own"
        )
        raise EngineError(msg)


def _is_silent(address: str) -> bool:
    """Says whether an address is of this machine, and nobody answers there."""
    host, _, port = address.rpartition(":")
    return host in LOCAL_HOSTS and port.isdecimal() and not accepts(int(port))

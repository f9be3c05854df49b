"""`stream` and `submit` on Flink: what cannot run is one line, before anything is made."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Final

import pytest

from beam_lateness.pipelines.ports import LOOPBACK, free_ports
from tests.pipelines.flink.canned import CannedFlink
from tests.pipelines.flink.told import Teller


@pytest.fixture
def ready(flink: CannedFlink) -> Iterator[list[str]]:
    """Flags of a Flink that is there, with a job server and workers."""
    with ExitStack() as stack:
        ports = [
            stack.enter_context(closing(socket.create_server((LOOPBACK, 0)))).getsockname()[1]
            for _ in range(2)
        ]
        yield [
            "--runner=FlinkRunner",
            f"--flink_master={flink.master}",
            f"--job_endpoint=localhost:{ports[0]}",
            f"--environment_config=localhost:{ports[1]}",
        ]


@pytest.mark.parametrize("flag", ["--from=/savepoint", "--output_executable_path=job.jar"])
def test_only_flink_goes_on_from_a_savepoint_and_writes_a_job_jar(
    told: Teller, job: list[str], flag: str
) -> None:
    """Another engine would run the job from the start, and say that all is well."""
    command = "resume" if "from" in flag else "stream"
    found = told(command, *job, "--runner=BundleBasedDirectRunner", flag)
    assert found.refuses("stream", "--runner=FlinkRunner")


MISTAKES: Final[dict[str, tuple[Sequence[str], Sequence[str]]]] = {
    "detached without Flink": (["--detach"], ["--detach", "--runner=FlinkRunner"]),
    "detached on Prism": (
        ["--detach", "--runner=PrismRunner"],
        ["--detach", "--runner=FlinkRunner"],
    ),
    "detached with a report": (
        ["--detach", "--report=r.json", "--runner=FlinkRunner"],
        ["--report=", "--detach", "leave it out", "`beam-lateness status`"],
    ),
    "detached with metrics": (
        ["--detach", "--metrics_port=0", "--runner=FlinkRunner"],
        ["--metrics_port", "--detach", "leave them out"],
    ),
    "a checkpoint of ours": (
        ["--checkpoint=sqlite:///c.db", "--runner=FlinkRunner"],
        ["--checkpoint=sqlite:///", "c.db", "own checkpoints", "leave it out"],
    ),
    "readers on Prism": (
        ["--num_readers=2", "--runner=PrismRunner"],
        ["--num_readers=2", "--runner=FlinkRunner", "lose records"],
    ),
    "readers on any engine": (
        ["--num_readers=2"],
        ["--num_readers=2", "--runner=FlinkRunner", "lose records"],
    ),
    "no reader": (["--num_readers=0", "--runner=FlinkRunner"], ["--num_readers", "'0'", "1"]),
    "an interval of a finite input": (
        ["--poll_interval=2s", "--runner=FlinkRunner"],
        ["--poll_interval", "finite"],
    ),
    "an interval of no time": (
        ["--poll_interval=often", "--follow", "--runner=FlinkRunner"],
        ["--poll_interval", "'often'"],
    ),
    "live without checkpoints": (
        ["--checkpointing_interval=0", "--follow", "--runner=FlinkRunner"],
        ["--checkpointing_interval", "got 0", "at least 1000"],
    ),
    "no such file": (["--input=no*.jsonl", "--runner=FlinkRunner"], ["--input", "no*.jsonl"]),
}


@pytest.mark.parametrize("command", ["stream", "submit"])
@pytest.mark.parametrize(("flags", "parts"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_flags_is_one_line_and_leaves_nothing(
    told: Teller, job: list[str], command: str, flags: list[str], parts: list[str]
) -> None:
    """Before Flink is asked for anything; `submit` is `stream --detach`."""
    if command == "submit" and "FlinkRunner" not in str(flags):
        parts = ["--detach", "--runner=FlinkRunner"]
    if command == "submit" and "report" not in str(flags):
        flags = [flag for flag in flags if flag != "--detach"]
    assert told(command, *job, *flags).refuses("stream", *parts)
    assert os.listdir() == ["in.jsonl"]


@pytest.mark.parametrize("command", [["stream"], ["submit"], ["resume", "--from=/savepoint"]])
def test_a_job_for_a_flink_that_is_not_there_leaves_nothing(
    told: Teller, job: list[str], nowhere: list[str], command: list[str]
) -> None:
    """No database, no table, no folder of dead letters."""
    found = told(*command, *job, *nowhere)
    assert found.refuses("stream", nowhere[1].split("=")[1], "`beam-lateness cluster up`")
    assert os.listdir() == ["in.jsonl"]


UNFIT: Final[dict[str, tuple[Sequence[str], Sequence[str]]]] = {
    "slots": (["--parallelism=5"], ["--parallelism=5", "4", "start more task managers"]),
    "no pool": (
        [f"--environment_config=localhost:{free_ports(1)[0]}"],
        ["--environment_config=localhost", "`beam-lateness cluster up`", "worker_pool_main"],
    ),
    "no job server": (
        [f"--job_endpoint=localhost:{free_ports(1)[0]}"],
        ["--job_endpoint=localhost", "`beam-lateness cluster up`", "leave the flag out"],
    ),
    "more readers than files": (
        ["--num_readers=2"],
        ["--num_readers", "number of splits, 1", "got 2"],
    ),
}


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        *(pytest.param(*each, id=name) for name, each in UNFIT.items()),
        *(
            pytest.param([f"--{name}=localhost:99999"], [name])
            for name in ("job_endpoint", "environment_config")
        ),
    ],
)
def test_what_a_flink_that_is_there_cannot_do_is_one_line_and_leaves_nothing(
    told: Teller, job: list[str], ready: list[str], flags: list[str], parts: list[str]
) -> None:
    """It is known before the job's outputs are made."""
    found = told("stream", *job, *ready, *flags)
    found.out = ""  # the engine may have been named
    assert found.refuses("stream", *parts)
    assert os.listdir() == ["in.jsonl"]


def test_a_job_server_of_the_jobs_own_is_of_the_clusters_version(
    told: Teller, job: list[str], ready: list[str], flink: CannedFlink
) -> None:
    """It could not talk to another."""
    own = [flag for flag in ready if "endpoint" not in flag]
    flink.overview["flink-version"] = "1.20.1"
    found = told("stream", *job, *own)
    assert found.refuses("stream", "1.20.1", "1.19", "--flink_version=1.20", "--job_server_version")


def test_a_job_server_of_the_jobs_own_needs_java(
    told: Teller, job: list[str], ready: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left, or got, without it."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    own = [flag for flag in ready if "endpoint" not in flag]
    assert told("stream", *job, *own).refuses("stream", "job server needs Java", "$JAVA_HOME")
    assert os.listdir() == ["in.jsonl"]

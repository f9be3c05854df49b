"""The commands around jobs on Flink: exit codes, one line for what is wrong, and nothing left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pipelines.flink.canned import (
    ROOT,
    TRACE,
    CannedFlink,
    Turns,
    accumulators,
    checkpoints,
    refusal,
)
from tests.pipelines.flink.told import Teller


def test_the_usage_lists_every_command(told: Teller) -> None:
    """With a line each; a command that is none is exit 2."""
    shown = told()
    assert shown.code == 0
    words = [line.split()[0] for line in shown.out.splitlines() if line.startswith("  ")]
    for command in ("cluster", "submit", "status", "stop", "resume", "stream"):
        assert command in words
        assert told(command, "--help").code == 0
    other = told("clusters")
    assert (other.code, other.out, other.error) == (2, "", shown.out)


def test_a_job_is_resumed_from_somewhere(told: Teller, job: list[str], nowhere: list[str]) -> None:
    """Without --from it would begin anew."""
    assert told("resume", *job, *nowhere).refuses("resume", "--from=PATH is required", "`stop`")


@pytest.mark.parametrize("how", [[], ["--savepoint", "--cancel"]], ids=["neither", "both"])
def test_a_job_is_stopped_in_one_of_two_ways(told: Teller, how: list[str]) -> None:
    """One keeps what it holds and one does not: there is no default."""
    found = told("stop", "mine", *how)
    assert found.code == 2
    assert "--savepoint" in found.error
    assert "--cancel" in found.error


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["cluster", "up", "--task_manager=3"], "--task_managers"),
        (["cluster", "down", "--folders=x"], "--folder"),
        (["status", "--flink_mastr=x"], "--flink_master"),
        (["stop", "--cancel", "--flink_mastr=x"], "--flink_master"),
        (["stop", "--cancle", "--savepoint"], "--cancel"),
        (["submit", "--detatch"], "--detach"),
        (["resume", "--from=x", "--checkpoint_interval=1"], "--checkpointing_interval"),
    ],
)
def test_a_flag_that_is_spelt_wrong_is_refused_with_the_right_one(
    told: Teller, argv: list[str], near: str
) -> None:
    """By every command."""
    name = {"submit": "stream", "resume": "stream"}.get(argv[0], argv[0])
    assert told(*argv).refuses(name, "unknown flag", f"did you mean {near}?")


@pytest.mark.parametrize(
    "argv", [["status"], ["status", "mine"], ["stop", "--savepoint"], ["stop", "x", "--cancel"]]
)
def test_where_no_flink_answers_a_command_says_what_helps(
    told: Teller, nowhere: list[str], argv: list[str]
) -> None:
    """In one line."""
    master = nowhere[1]
    assert told(*argv, master).refuses(argv[0], "no Flink answers", "cluster up", "--flink_master")


def test_status_shows_every_job_in_a_line(told: Teller, flink: CannedFlink) -> None:
    """Whatever its name, the last started first."""
    ids = [flink.add("old [1]", 1, "FINISHED", ended=True), flink.add("new", 2)]
    found = told("status", f"--flink_master={flink.master}")
    lines = found.out.splitlines()
    assert found.code == 0
    assert [line.split()[0] for line in lines] == ["RUNNING", "FINISHED"]
    assert [ids[1] in lines[0], ids[0] in lines[1], "old [1]" in lines[1]] == [True] * 3


@pytest.mark.parametrize(("state", "code"), [("RUNNING", 0), ("FAILED", 1)])
def test_status_of_a_job_shows_what_it_has_kept_and_counted(
    told: Teller, flink: CannedFlink, state: str, code: int
) -> None:
    """And why it failed last; a job that has failed is exit 1."""
    job_id = flink.add("mine", 1, state, ended=state == "FAILED")
    flink.vertices[job_id] = {"a": {"[1]{Read}.beam_lateness_input": [1200.0, 34.0]}}
    flink.answers[f"jobs/{job_id}/accumulators"] = accumulators()
    flink.answers[f"jobs/{job_id}/checkpoints"] = checkpoints(7, path="file:/c/chk-7")
    flink.answers[f"jobs/{job_id}/metrics"] = [{"id": "numRestarts", "value": "3"}]
    entries = [{"stacktrace": TRACE}]
    flink.answers[f"jobs/{job_id}/exceptions"] = {"exceptionHistory": {"entries": entries}}
    found = told("status", "mine", f"--flink_master={flink.master}")
    assert found.code == code
    parts = [state, job_id, "7 completed", "file:/c/chk-7", ROOT]
    parts += ["1,234", "3 after failures"] if state == "RUNNING" else []
    assert [part for part in parts if part not in found.out] == []


def stoppable(flink: CannedFlink, where: str) -> str:
    """A job that can be stopped, with a savepoint there."""
    job_id = flink.add("mine", 1)
    flink.answers[f"jobs/{job_id}/stop"] = {"request-id": "r"}
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": where}}
    flink.answers[f"jobs/{job_id}/savepoints/r"] = done
    return job_id


@pytest.mark.parametrize(
    "where",
    [
        "file:/savepoints/savepoint-1",
        "file:/a[b]/savepoint-1",
    ],
)
def test_a_stopped_job_goes_on_by_the_command_that_is_shown(
    told: Teller, flink: CannedFlink, job: list[str], nowhere: list[str], where: str
) -> None:
    """`stop` gives the command, and that one takes the path as it is."""
    stoppable(flink, where)
    found = told("stop", "--savepoint", f"--flink_master={flink.master}")
    assert found.code == 0
    (line,) = [line for line in found.out.splitlines() if line.startswith("go on: ")]
    command, flag = line.split()[3:5]
    assert (command, flag) == ("resume", f"--from={where}")
    assert told(command, flag, *job, *nowhere).refuses("stream", "no Flink answers")


@pytest.mark.parametrize(
    ("given", "sent"),
    [([], None), (["=kept"], "file://{}/kept"), (["=s3://b/kept"], "s3://b/kept")],
    ids=["the cluster's", "a path", "a URL"],
)
def test_a_savepoint_goes_where_it_is_told(
    told: Teller, flink: CannedFlink, job: list[str], given: list[str], sent: str | None
) -> None:
    """The cluster has no current folder: a path is made a URL."""
    stoppable(flink, "file:/s")
    folder = [f"--savepoint_dir{each}" for each in given]
    assert told("stop", "--savepoint", *folder, f"--flink_master={flink.master}").code == 0
    (asked,) = [each for each in flink.asked if each.method == "POST"]
    assert asked.body.get("targetDirectory") == (sent and sent.format(os.getcwd()))


def test_a_cancelled_job_is_told_with_its_last_checkpoint(told: Teller, flink: CannedFlink) -> None:
    """From which it may go on."""
    job_id = flink.add("mine", 1)
    flink.answers[f"jobs/{job_id}"] = {}
    flink.answers[f"jobs/{job_id}/checkpoints"] = checkpoints(1, path="file:/c/chk-1")
    entry = flink.jobs[0]
    over = {"jobs": [{**entry, "state": "CANCELED"}]}
    flink.answers["jobs/overview"] = Turns([{"jobs": [entry]}, {"jobs": [entry]}, over])
    found = told("stop", "mine", "--cancel", f"--flink_master={flink.master}")
    assert (found.code, "file:/c/chk-1" in found.out) == (0, True)
    assert [each.method for each in flink.asked].count("PATCH") == 1


def test_a_job_that_is_over_or_refuses_is_not_stopped(told: Teller, flink: CannedFlink) -> None:
    """In one line each."""
    master = f"--flink_master={flink.master}"
    flink.add("done", 1, "FINISHED", ended=True)
    assert told("stop", "done", "--cancel", master).refuses("stop", "done is FINISHED already")
    job_id = stoppable(flink, "file:/s")
    flink.answers[f"jobs/{job_id}/stop"] = refusal(409, TRACE)
    assert told("stop", "mine", "--savepoint", master).refuses("stop", "refuses POST", ROOT)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["down"], ["no cluster was started in", "cluster up"]),
        (["status"], ["no cluster was started in", "cluster up"]),
        (["up", "--slots=0"], ["--slots", "at least 1", "got 0"]),
        (["up", "--task_managers=-1"], ["--task_managers", "at least 1", "got -1"]),
        pytest.param(["up", "--rest_port=65536"], ["--rest_port"]),
        pytest.param(
            ["up", "--rest_port=20123", "--job_port=20123"],
            ["--rest_port", "--job_port"],
        ),
    ],
    ids=str,
)
def test_a_cluster_that_cannot_be_is_one_line(
    told: Teller,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flags: list[str],
    parts: list[str],
) -> None:
    """And no folder is made for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "flink-dist-1.jar").touch()
    (tmp_path / "server.jar").touch()
    own = [f"--flink_home={tmp_path}", f"--flink_job_server_jar={tmp_path / 'server.jar'}"]
    found = told("cluster", *flags, f"--folder={tmp_path / 'cluster'}", *own)
    assert found.refuses("cluster", *parts)
    assert not (tmp_path / "cluster").exists()

"""The cluster on this machine: it starts whole or not at all, and `down` ends what `up` started.

Its programs are played by a script: `java` answers for Flink's nodes and the job server.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

import psutil
import pytest

from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink import cluster as clusters
from beam_lateness.pipelines.flink.cluster import Cluster, Jars, Node, _since_boot, running
from beam_lateness.pipelines.flink.nodes import (
    JOB_MANAGER,
    JOB_SERVER,
    WORKERS,
    Layout,
    task_manager,
)
from beam_lateness.pipelines.ports import LOOPBACK, free_ports

JARS: Final = Jars([Path("flink-dist.jar")], "job-server.jar")
NAMES: Final = {JOB_MANAGER, JOB_SERVER, WORKERS, task_manager(1), task_manager(2)}

# Plays a node: by its arguments the job manager, a task manager, the job server, or the workers, of
# which it has one. A job manager counts the task managers that have not ended.
PLAYER: Final = """
import json, os, pathlib, signal, socket, subprocess, sys

text = " ".join(sys.argv[1:])
if text == "-version":
    sys.exit(os.environ.get("JAVA_SAYS", 'openjdk version "17.0.9" 2023-10-17'))
name = (
    "jobmanager" if "StandaloneSession" in text else
    "taskmanager-1" if "TaskManagerRunner" in text else
    "workers" if "--service_port" in text else "jobserver"
)
if name == os.environ.get("DIES"):
    sys.exit(f"the {name} finds no memory")
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.alarm(120)  # ends what a test that was killed has left
if name == "workers":
    worker = subprocess.Popen(["sleep", "120"])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(worker.wait()))
if name == os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = pathlib.Path("managers")
here.mkdir(exist_ok=True)

def listen(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen()
    return listener

if name == "taskmanager-1":
    (here / str(os.getpid())).touch()
elif name != "jobmanager":
    listening = listen(text.split("port=")[1].split()[0])
else:
    lines = pathlib.Path("conf/config.yaml").read_text().splitlines()
    config = {k: json.loads(v) for k, v in (line.split(": ", 1) for line in lines)}
    listener = listen(config["rest.port"])
    while True:
        connection, _ = listener.accept()
        path = connection.recv(65536).split()[1]
        there = [n for n in os.listdir(here) if os.path.exists(f"/proc/{n}/exe")]
        ids = [{"id": n} for n in there]
        slots = int(config["taskmanager.numberOfTaskSlots"]) * len(there)
        told = {"taskmanagers": ids if path == b"/taskmanagers" else len(there),
                "slots-total": slots, "flink-version": "1.19.3"}
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + json.dumps(told).encode())
        connection.close()
while True:
    signal.pause()
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A cluster of two task managers, to be played."""
    player = tmp_path / "java" / "bin" / "java"
    player.parent.mkdir(parents=True)
    player.write_text(f"#!{sys.executable} -IS{PLAYER}")
    player.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))

    def workers(self: Layout) -> list[str]:
        return [str(player), f"--service_port={self.worker_port}"]

    monkeypatch.setattr(Layout, "workers", workers)
    return Layout(tmp_path / "cluster", *free_ports(4))


@pytest.fixture
def cluster(layout: Layout) -> Iterator[Cluster]:
    """A cluster that is not started; what runs of it at the end is ended."""
    made = Cluster(layout)
    yield made
    if made.nodes():
        made.down()
    for process in processes(layout):  # what `down` has missed
        process.kill()
    made.down()


def processes(layout: Layout) -> list[psutil.Process]:
    """What runs of a cluster, by the folder in which its processes are."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(layout.folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(cluster: Cluster, name: str) -> None:
    """Ends a node by SIGKILL."""
    process = cluster.node(name).process
    assert process is not None
    process.kill()
    process.wait(30)


def test_a_cluster_comes_up_whole(cluster: Cluster) -> None:
    """Every node runs, and nothing is wrong."""
    cluster.up(JARS)
    assert {node.name for node in cluster.nodes() if node.process is not None} == NAMES
    assert cluster.troubles() == []


def test_a_cluster_is_found_again_by_its_folder(cluster: Cluster, layout: Layout) -> None:
    """By another process: with its ports, and its nodes."""
    cluster.up(JARS)
    found = Cluster.of(layout.folder)
    assert found.layout == layout
    assert found.nodes() == cluster.nodes()
    assert found.troubles() == []


@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_down_ends_every_process_and_the_children_of_them(
    cluster: Cluster, layout: Layout, same: bool
) -> None:
    """Whichever process asks; the cluster is forgotten then."""
    cluster.up(JARS)
    assert len(processes(layout)) == len(NAMES) + 1  # a worker of the pool
    ended = (cluster if same else Cluster.of(layout.folder)).down()
    assert set(ended) == NAMES
    assert processes(layout) == []
    with pytest.raises(
        EngineError, match=r"no cluster was started in .*`beam-lateness cluster up`"
    ):
        Cluster.of(layout.folder)


def test_down_ends_what_is_left_of_a_cluster(cluster: Cluster, layout: Layout) -> None:
    """Some of its nodes have ended by themselves."""
    cluster.up(JARS)
    kill(cluster, JOB_MANAGER)
    assert set(cluster.down()) == NAMES - {JOB_MANAGER}
    assert processes(layout) == []


@pytest.mark.parametrize("late_s", [0.0, 100.0], ids=["of the cluster", "of somebody else"])
def test_down_knows_a_process_by_its_number_and_its_start(layout: Layout, late_s: float) -> None:
    """A stranger that was given the number of a node that has ended goes on."""
    layout.folder.mkdir()
    with subprocess.Popen(["sleep", "120"]) as process:
        try:
            started = _since_boot(psutil.Process(process.pid)) - late_s
            state = {
                "layout": {**asdict(layout), "folder": str(layout.folder)},
                "nodes": [Node(JOB_MANAGER, process.pid, started)],
            }
            (layout.folder / "cluster.json").write_text(json.dumps(state))
            ended = Cluster.of(layout.folder).down()
            assert (ended, process.poll() is not None) == (
                ([], False) if late_s else ([JOB_MANAGER], True)
            )
        finally:
            process.kill()


def test_a_process_that_does_not_heed_sigterm_is_killed(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while."""
    monkeypatch.setenv("STUBBORN", JOB_SERVER)
    monkeypatch.setattr(clusters, "_STOP_S", 0.3)
    cluster.up(JARS)
    assert JOB_SERVER in cluster.down()
    assert processes(layout) == []


def test_a_cluster_that_runs_is_not_started_again(cluster: Cluster, layout: Layout) -> None:
    """It stays as it is, and the error says how to end it."""
    cluster.up(JARS)
    before = cluster.nodes()
    with pytest.raises(EngineError, match=r"runs in .* already; `beam-lateness cluster down`"):
        Cluster(layout).up(JARS)
    assert cluster.nodes() == before
    assert cluster.troubles() == []


def test_a_cluster_that_was_ended_can_be_started_again(cluster: Cluster) -> None:
    """In the same folder, on the same ports."""
    cluster.up(JARS)
    cluster.down()
    cluster.up(JARS)
    assert cluster.troubles() == []


@pytest.mark.parametrize("flag", Layout(Path()).ports)
def test_a_port_that_is_taken_is_named_and_nothing_is_started(
    cluster: Cluster, layout: Layout, flag: str
) -> None:
    """With the flag for another one."""
    port = layout.ports[flag]
    taken = pytest.raises(EngineError, match=f"port {port} is taken.*{flag}")
    with closing(socket.create_server((LOOPBACK, port))), taken:
        cluster.up(JARS)
    assert cluster.nodes() == []
    assert not layout.folder.exists()


def test_without_java_nothing_is_started(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error says what to install."""
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"Flink needs Java.*install Java"):
        cluster.up(JARS)
    assert not layout.folder.exists()


@pytest.mark.parametrize("says", ['openjdk version "1.8.0_392"', 'java version "10.0.2"', "what?"])
def test_a_java_that_is_too_old_is_named(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Where it is, what it says of itself, and how to choose another."""
    monkeypatch.setenv("JAVA_SAYS", says)
    with pytest.raises(EngineError) as caught:
        cluster.up(JARS)
    for part in ("Flink needs Java", str(layout.folder.parent / "java"), says, "$JAVA_HOME"):
        assert part in str(caught.value)
    assert not layout.folder.exists()


@pytest.mark.parametrize("name", sorted(NAMES - {task_manager(2)}))
def test_a_node_that_dies_at_its_start_shows_its_log_and_takes_the_others_with_it(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its last words are the reason."""
    monkeypatch.setenv("DIES", name)
    with pytest.raises(EngineError) as caught:
        cluster.up(JARS)
    ended, told, _ = str(caught.value).partition(" has ended at its start")
    assert told
    assert ended.rstrip("12") == name.rstrip("12"), "both task managers die"
    assert str(layout.log(ended)) in str(caught.value)
    assert str(caught.value).endswith(f"the {name} finds no memory")
    assert processes(layout) == []
    assert cluster.nodes() == []


def test_a_node_that_does_not_come_up_in_time_takes_the_others_with_it(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which, and for how long it was waited for."""
    monkeypatch.setattr(clusters, "_START_S", 0.0)
    monkeypatch.setattr(Cluster, "_answers", lambda _: False)
    with pytest.raises(EngineError, match=f"{JOB_MANAGER} did not come up in 0 s"):
        cluster.up(JARS)
    assert processes(layout) == []


def test_an_interrupt_of_the_start_leaves_nothing(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the nodes come up."""
    begun: list[int] = []

    def interrupt(_: Cluster) -> int:
        begun.append(len(processes(layout)))
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "_slots", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cluster.up(JARS)
    assert begun[0] >= len(NAMES)
    assert processes(layout) == []


def test_a_cluster_runs_as_long_as_its_context(layout: Layout) -> None:
    """However that ends; its workers have the variables given."""

    def work() -> None:
        with running(layout, JARS, {"ITS": "own"}) as cluster:
            workers = cluster.node(WORKERS).process
            assert workers is not None
            assert workers.environ()["ITS"] == "own"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert processes(layout) == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_node_that_has_ended_is_a_trouble(cluster: Cluster, layout: Layout, name: str) -> None:
    """Told with its log."""
    cluster.up(JARS)
    kill(cluster, name)
    assert any(
        name in trouble and str(layout.log(name)) in trouble for trouble in cluster.troubles()
    )


def test_a_task_manager_that_has_ended_can_be_started_again(cluster: Cluster) -> None:
    """It takes the place of the old one."""
    cluster.up(JARS)
    kill(cluster, task_manager(2))
    assert cluster.troubles() != []
    cluster.start_task_manager(2, JARS)
    assert sorted(node.name for node in cluster.nodes()) == sorted(NAMES)
    assert cluster.troubles() == []


def test_down_ends_the_workers_of_a_pool_that_has_ended(cluster: Cluster, layout: Layout) -> None:
    """They are children of what `up` has started."""
    cluster.up(JARS)
    kill(cluster, WORKERS)
    cluster.down()
    assert processes(layout) == []


def test_a_clock_that_is_set_hides_no_process(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By some seconds, as after a suspended machine: the start of a process is told anew."""
    cluster.up(JARS)
    real = psutil.Process.create_time
    with monkeypatch.context() as patch:
        boot = psutil.boot_time()
        patch.setattr(psutil.Process, "create_time", lambda process: real(process) + 5)
        patch.setattr(psutil, "boot_time", lambda: boot + 5)
        assert set(Cluster.of(layout.folder).down()) == NAMES


def test_a_job_manager_that_dies_while_others_come_up_shows_its_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the advice to start a cluster."""
    slots = Cluster._slots

    def dying(self: Cluster) -> int:
        if self.node(JOB_MANAGER).process is not None:
            kill(self, JOB_MANAGER)
        return slots(self)

    monkeypatch.setattr(Cluster, "_slots", dying)
    with pytest.raises(EngineError, match=f"{JOB_MANAGER} has ended"):
        cluster.up(JARS)

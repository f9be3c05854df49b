"""A standalone Flink cluster on this machine, with Beam's job server and Python workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.jars import Say, flink_jars, job_server_jar
from beam_lateness.pipelines.flink.nodes import (
    JOB_MANAGER,
    JOB_SERVER,
    WORKERS,
    Layout,
    task_manager,
)
from beam_lateness.pipelines.flink.rest import FlinkRest
from beam_lateness.pipelines.java import find_java
from beam_lateness.pipelines.ports import LARGEST, accepts, is_free

_STATE: Final = "cluster.json"
_START_S: Final = 90.0
_STOP_S: Final = 10.0
_POLL_S: Final = 0.05
_TAIL_BYTES: Final = 2000


class Node(NamedTuple):
    """A process of the cluster.

    Args:
        name: Which one.
        pid: Its number.
        started: Its start, in seconds since that of the machine: numbers are used again, and the
            clock may be set.
    """

    name: str
    pid: int
    started: float

    @property
    def process(self) -> psutil.Process | None:
        """The process; None if it has ended."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid)
            alive = found.status() != psutil.STATUS_ZOMBIE
            if alive and abs(_since_boot(found) - self.started) < 1:
                return found
        return None

    def family(self) -> list[psutil.Process]:
        """The process and all it has started: they are of one session, also when it has ended."""
        process = self.process
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                return [*process.children(recursive=True), process]
        if psutil.pid_exists(self.pid):
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                    return []  # the number is somebody else's now
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                zombie = each.status() == psutil.STATUS_ZOMBIE
                if os.getsid(each.pid) == self.pid and not zombie:
                    found.append(each)
        return found


def _since_boot(process: psutil.Process) -> float:
    return float(process.create_time() - psutil.boot_time())


class Jars(NamedTuple):
    """What the cluster is started from.

    Args:
        flink: The jars of a Flink node.
        job_server: Beam's job server.
    """

    flink: Sequence[Path]
    job_server: str


def find_jars(
    home: str | None, named: str | None, flink_version: str, job_server_version: str, say: Say
) -> Jars:
    """Finds what a cluster is started from, or gets it.

    Raises:
        ValueError: If what was named is not there.
        EngineError: If it cannot be had.
    """
    server = job_server_jar(named, flink_version, job_server_version, say)
    if "://" in server:
        msg = f"--flink_job_server_jar={server!r} must be a file here; download it first"
        raise ValueError(msg)
    return Jars(flink_jars(home, say), server)


class Cluster:
    """A cluster on this machine, which outlives the process that starts it.

    Args:
        layout: Its folder and its ports.
        environment: Variables of its Python workers, besides those of this process.
    """

    def __init__(self, layout: Layout, environment: Mapping[str, str] | None = None) -> None:
        self.layout = layout
        self.rest = FlinkRest(layout.master)
        self._environment = dict(environment or {})
        self._started: list[subprocess.Popen[bytes]] = []  # to take note of their ends

    @staticmethod
    def of(folder: Path) -> Cluster:
        """Gives the cluster that was started in a folder.

        Raises:
            EngineError: If there is none.
        """
        try:
            state = json.loads((folder / _STATE).read_text())
        except FileNotFoundError as error:
            msg = f"no cluster was started in {folder}; start one with `beam-lateness cluster up`"
            raise EngineError(msg) from error
        return Cluster(Layout(**{**state["layout"], "folder": folder}))

    def check(self) -> None:
        """Checks that it can be started.

        Raises:
            ValueError: If a port is none, or is given twice.
            EngineError: If it runs already, a port is taken, or there is no Java.
        """
        layout = self.layout
        if any(node.process is not None for node in self.nodes()):
            msg = f"a cluster runs in {layout.folder} already; `beam-lateness cluster down` ends it"
            raise EngineError(msg)
        for flag, port in layout.ports.items():
            others = [name for name, other in layout.ports.items() if other == port]
            if len(others) > 1 or not 0 < port <= LARGEST:
                flags = " and ".join(f"{name}={port}" for name in others)
                msg = f"{flags}: each needs a port of its own, from 1 to {LARGEST}"
                raise ValueError(msg)
            if not is_free(port):
                msg = (
                    f"port {port} is taken by another program; end it, or name another port "
                    f"with {flag}"
                )
                raise EngineError(msg)
        find_java("Flink")

    def up(self, jars: Jars) -> None:
        """Starts it, and waits until it can run jobs.

        Raises:
            ValueError: If a port is none, or is given twice.
            EngineError: If it runs already, a port is taken, or a process does not start; what was
                started is ended again.
        """
        self.check()
        layout, java = self.layout, find_java("Flink")
        for name in ("log", "tmp", "checkpoints", "savepoints"):
            (layout.folder / name).mkdir(parents=True, exist_ok=True)
        layout.write_configuration()
        (layout.folder / _STATE).unlink(missing_ok=True)
        try:
            self._start(JOB_MANAGER, layout.flink_node(JOB_MANAGER, java, jars.flink))
            self._start(JOB_SERVER, layout.job_server(java, jars.job_server))
            self._start(WORKERS, layout.workers())
            # First the job manager: a task manager that does not find it waits for ten seconds.
            self._await(JOB_MANAGER, self._answers)
            managers = [task_manager(number + 1) for number in range(layout.task_managers)]
            for name in managers:
                self._start(name, layout.flink_node(name, java, jars.flink))
            for name in managers:
                self._await(name, lambda: self._slots() == layout.task_managers * layout.slots)
            self._await(JOB_SERVER, lambda: accepts(layout.job_port))
            self._await(WORKERS, lambda: accepts(layout.worker_port))
        except BaseException:
            self.down()
            raise

    def start_task_manager(self, number: int, jars: Jars) -> None:
        """Starts a task manager that has ended, and waits until it can run tasks."""
        before = self.rest.task_managers()
        name = task_manager(number)
        self._start(name, self.layout.flink_node(name, find_java("Flink"), jars.flink))
        self._await(name, lambda: bool(self.rest.task_managers() - before))

    def down(self) -> list[str]:
        """Ends exactly the processes that `up` has started, and their children.

        Returns:
            The names of those that were running.
        """
        running = [node for node in reversed(self.nodes()) if node.process is not None]
        for node in reversed(self.nodes()):
            self.end(node)
        while self._started:
            self._started.pop().wait(_STOP_S)
        (self.layout.folder / _STATE).unlink(missing_ok=True)
        return [node.name for node in running]

    def nodes(self) -> list[Node]:
        """Gives the processes that were started, whether they run or not."""
        try:
            state = json.loads((self.layout.folder / _STATE).read_text())
        except FileNotFoundError:
            return []
        return [Node(*entry) for entry in state["nodes"]]

    def node(self, name: str) -> Node:
        """Gives a process by its name."""
        (found,) = [node for node in self.nodes() if node.name == name]
        return found

    def troubles(self) -> list[str]:
        """Says what is wrong with it; nothing, if it can run jobs."""
        found = [
            f"{node.name} has ended; see {self.layout.log(node.name)}"
            for node in self.nodes()
            if node.process is None
        ]
        try:
            registered = self._registered()
        except EngineError as error:
            return [*found, str(error)]
        if registered < self.layout.task_managers:
            found.append(f"{registered} of {self.layout.task_managers} task managers registered")
        for name, port in (
            ("job server", self.layout.job_port),
            ("workers", self.layout.worker_port),
        ):
            if not accepts(port):
                found.append(f"the {name} on port {port} accept(s) no connection")
        return found

    def end(self, node: Node) -> None:
        """Ends a process and its children: by SIGTERM, and by SIGKILL after a while."""
        family = node.family()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.terminate()
        _, alive = psutil.wait_procs(family, timeout=_STOP_S)
        for each in alive:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(alive, timeout=_STOP_S)

    def _start(self, name: str, command: Sequence[str]) -> None:
        variables = {
            **os.environ,
            # The pool starts its workers as `python`.
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
            **self._environment,
        }
        with self.layout.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.layout.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        nodes = [node for node in self.nodes() if node.name != name]
        nodes.append(Node(name, process.pid, _since_boot(psutil.Process(process.pid))))
        layout = {**asdict(self.layout), "folder": str(self.layout.folder)}
        state = self.layout.folder / _STATE
        written = state.with_suffix(".new")
        written.write_text(json.dumps({"layout": layout, "nodes": nodes}, indent=1))
        written.replace(state)

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        """Waits until something is ready that one of the processes has to do."""
        end = time.monotonic() + _START_S
        while not self._is(ready):
            if time.monotonic() > end:
                msg = f"{name} did not come up in {_START_S:g} s; {self._tail(name)}"
                raise EngineError(msg)
            time.sleep(_POLL_S)

    def _is(self, ready: Callable[[], bool]) -> bool:
        """Says whether something is ready; a node that has ended is told before what follows."""
        try:
            return ready()
        finally:
            self._check_nodes()

    def _check_nodes(self) -> None:
        for node in self.nodes():
            if node.process is None:
                msg = f"{node.name} has ended at its start; {self._tail(node.name)}"
                raise EngineError(msg)

    def _answers(self) -> bool:
        with suppress(EngineError):
            self.rest.overview()
            return True
        return False

    def _registered(self) -> int:
        return int(self.rest.overview()["taskmanagers"])

    def _slots(self) -> int:
        return int(self.rest.overview()["slots-total"])

    def _tail(self, name: str) -> str:
        path = self.layout.log(name)
        text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return f"its log {path} ends with:\n{text or '(nothing)'}"


@contextmanager
def running(
    layout: Layout, jars: Jars, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Runs a cluster as long as the context lasts."""
    cluster = Cluster(layout, environment)
    cluster.up(jars)
    try:
        yield cluster
    finally:
        cluster.down()

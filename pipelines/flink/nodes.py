"""The processes of a Flink cluster on this machine: their commands and their configuration."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from beam_lateness.pipelines.ports import LOOPBACK

JOB_MANAGER: Final = "jobmanager"
JOB_SERVER: Final = "jobserver"
WORKERS: Final = "workers"

_JOB_MANAGER_CLASS: Final = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER_CLASS: Final = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_WORKERS_MODULE: Final = "apache_beam.runners.worker.worker_pool_main"

# What Flink reaches into on Java 17; its own start scripts open the same.
_EXPORTS: Final = ("java.base/sun.net.util", "java.rmi/sun.rmi.registry")
_OPENS: Final = tuple(
    f"java.base/{package}"
    for package in (
        "java.lang",
        "java.lang.reflect",
        "java.net",
        "java.io",
        "java.nio",
        "sun.nio.ch",
        "java.text",
        "java.time",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "java.util.concurrent.locks",
    )
)
_MB: Final = 1 << 20

_LOG4J: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


def task_manager(number: int) -> str:
    """Names a task manager."""
    return f"taskmanager-{number}"


@dataclass(frozen=True)
class Layout:
    """A cluster on this machine.

    Args:
        folder: Where its logs, configuration, checkpoints and savepoints are.
        rest_port: Of Flink's REST interface and dashboard.
        job_port: Of Beam's job server.
        worker_port: Of the pool that starts Beam's Python workers.
        rpc_port: Of the job manager, for its task managers.
        task_managers: How many there are.
        slots: How many tasks of a job each can run beside each other.
    """

    folder: Path
    rest_port: int = 8081
    job_port: int = 8099
    worker_port: int = 50000
    rpc_port: int = 6123
    task_managers: int = 2
    slots: int = 2

    @property
    def master(self) -> str:
        """Flink's REST interface."""
        return f"localhost:{self.rest_port}"

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports, by the flag that sets each."""
        return {
            "--rest_port": self.rest_port,
            "--job_port": self.job_port,
            "--worker_port": self.worker_port,
            "--rpc_port": self.rpc_port,
        }

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of a job that runs here."""
        return (
            "--runner=FlinkRunner",
            f"--flink_master={self.master}",
            f"--job_endpoint=localhost:{self.job_port}",
            f"--environment_config=localhost:{self.worker_port}",
        )

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / "log" / f"{name}.log"

    def write_configuration(self) -> None:
        """Writes what the nodes of Flink read at their start."""
        folder = self.folder / "conf"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"{key}: {json.dumps(str(value))}\n" for key, value in self._configuration().items()
        ]
        (folder / "config.yaml").write_text("".join(lines))
        (folder / "log4j.properties").write_text(_LOG4J)

    def _configuration(self) -> dict[str, object]:
        return {
            "jobmanager.rpc.address": LOOPBACK,
            "jobmanager.rpc.port": self.rpc_port,
            "jobmanager.bind-host": LOOPBACK,
            "jobmanager.memory.process.size": "1000m",
            "rest.address": LOOPBACK,
            "rest.bind-address": LOOPBACK,
            "rest.port": self.rest_port,
            "taskmanager.host": LOOPBACK,
            "taskmanager.bind-host": LOOPBACK,
            "taskmanager.numberOfTaskSlots": self.slots,
            # Flink's start scripts work these out; here they are said.
            "taskmanager.cpu.cores": float(self.slots),
            "taskmanager.memory.network.min": 64 * _MB,
            "taskmanager.memory.network.max": 64 * _MB,
            "taskmanager.memory.framework.heap.size": 128 * _MB,
            "taskmanager.memory.framework.off-heap.size": 64 * _MB,
            "taskmanager.memory.managed.size": 128 * _MB,
            "taskmanager.memory.task.heap.size": 384 * _MB,
            "taskmanager.memory.task.off-heap.size": 64 * _MB,
            "taskmanager.memory.jvm-metaspace.size": 256 * _MB,
            "taskmanager.memory.jvm-overhead.min": 128 * _MB,
            "taskmanager.memory.jvm-overhead.max": 128 * _MB,
            "state.checkpoints.dir": (self.folder / "checkpoints").as_uri(),
            "state.savepoints.dir": (self.folder / "savepoints").as_uri(),
            "blob.storage.directory": self.folder / "blobs",
            "io.tmp.dirs": self.folder / "tmp",
            # On one machine a node that does not answer is dead.
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10000,
            "metrics.fetcher.update-interval": 1000,
        }

    def flink_node(self, name: str, java: str, jars: Sequence[Path]) -> list[str]:
        """Gives the command of the job manager, or of a task manager."""
        manager = name == JOB_MANAGER
        heap = (
            ("-Xmx448m",) if manager else ("-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m")
        )
        log4j = (self.folder / "conf" / "log4j.properties").as_uri()
        return [
            java,
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTS),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
            *heap,
            "-XX:MaxMetaspaceSize=320m",
            f"-Dlog4j.configurationFile={log4j}",
            "-cp",
            os.pathsep.join(map(str, jars)),
            _JOB_MANAGER_CLASS if manager else _TASK_MANAGER_CLASS,
            "--configDir",
            str(self.folder / "conf"),
            *(("--executionMode", "cluster") if manager else ()),
        ]

    def job_server(self, java: str, jar: str) -> list[str]:
        """Gives the command of Beam's job server."""
        return [
            java,
            "-Xmx384m",
            "-jar",
            jar,
            f"--flink-master={self.master}",
            f"--job-port={self.job_port}",
            "--artifact-port=0",
            "--expansion-port=0",
            f"--artifacts-dir={self.folder / 'artifacts'}",
        ]

    def workers(self) -> list[str]:
        """Gives the command of the pool of Beam's Python workers."""
        return [sys.executable, "-m", _WORKERS_MODULE, f"--service_port={self.worker_port}"]

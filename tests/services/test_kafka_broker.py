"""The local Kafka broker, through the client that users have."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from beam_lateness.pipelines.errors import EngineError
from services.kafka_broker import KafkaBroker, resolve_jars

pytestmark = pytest.mark.live

TIMEOUT_S: Final = 30.0


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t{uuid.uuid4().hex}"


def produce(broker: KafkaBroker, topic: str, value: bytes, partition: int = 0) -> None:
    """Writes a record, and waits until the broker has it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def consume(broker: KafkaBroker, topic: str, partition: int = 0) -> bytes | None:
    """Waits for the first record of a partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def partitions(broker: KafkaBroker, topic: str) -> set[int]:
    """Gives the partitions of a topic, none if there is no such topic."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    try:
        topics = consumer.list_topics(timeout=TIMEOUT_S).topics
        return set(topics[topic].partitions) if topic in topics else set()
    finally:
        consumer.close()


def first_error(broker: KafkaBroker, user: str, password: str) -> int | None:
    """Gives the first error of a client that authenticates, None if it is let in."""
    errors: list[KafkaError] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.sasl_bootstrap,
            "group.id": "authenticated",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    try:
        end = time.monotonic() + TIMEOUT_S
        while not errors and time.monotonic() < end:
            try:
                consumer.list_topics(timeout=1)
            except KafkaException:
                consumer.poll(0.1)  # which hands out the errors
            else:
                return None
        return errors[0].code()
    finally:
        consumer.close()


def test_a_record_is_read_as_it_was_written(kafka_broker: KafkaBroker, topic: str) -> None:
    """From the partition to which it was written."""
    kafka_broker.create_topic(topic, partitions=2)
    produce(kafka_broker, topic, b"value", partition=1)
    assert consume(kafka_broker, topic, partition=1) == b"value"


@pytest.mark.parametrize("end", [KafkaBroker.stop, KafkaBroker.kill], ids=["stop", "kill"])
def test_a_restart_keeps_the_address_and_the_data(
    kafka_broker: KafkaBroker, topic: str, end: Callable[[KafkaBroker], None]
) -> None:
    """However the broker has ended."""
    kafka_broker.create_topic(topic)
    produce(kafka_broker, topic, b"value")
    address = kafka_broker.bootstrap
    end(kafka_broker)
    kafka_broker.restart()
    assert kafka_broker.bootstrap == address
    assert consume(kafka_broker, topic) == b"value"


def test_added_partitions_can_be_used_at_once(kafka_broker: KafkaBroker, topic: str) -> None:
    """The topic has as many as asked for."""
    kafka_broker.create_topic(topic, partitions=1)
    kafka_broker.add_partitions(topic, 3)
    assert partitions(kafka_broker, topic) == {0, 1, 2}
    produce(kafka_broker, topic, b"value", partition=2)


def test_a_deleted_topic_is_gone(kafka_broker: KafkaBroker, topic: str) -> None:
    """And nobody creates it again by asking for it."""
    kafka_broker.create_topic(topic)
    kafka_broker.delete_topic(topic)
    assert partitions(kafka_broker, topic) == set()


def test_the_broker_tells_why_it_refuses(kafka_broker: KafkaBroker, topic: str) -> None:
    """Partitions cannot be taken away."""
    kafka_broker.create_topic(topic, partitions=2)
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        kafka_broker.add_partitions(topic, 1)


def test_the_right_password_is_let_in(kafka_broker: KafkaBroker) -> None:
    """By SASL_PLAINTEXT with PLAIN."""
    assert first_error(kafka_broker, kafka_broker.user, kafka_broker.password) is None


def test_a_wrong_password_is_refused(kafka_broker: KafkaBroker) -> None:
    """With an authentication error, which the client can tell from a broker that is down."""
    assert first_error(kafka_broker, kafka_broker.user, "wrong") == KafkaError._AUTHENTICATION


def test_a_broker_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    """The reason is in the error."""
    broker = KafkaBroker(tmp_path, {"node.id": "7"})
    with pytest.raises(EngineError, match="node id 7 must be included"):
        broker.start()


def test_without_java_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="install Java"):
        KafkaBroker(tmp_path).start()


def test_without_maven_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what to install."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="install Maven"):
        resolve_jars()

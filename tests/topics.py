"""Topics for tests: a Kafka cluster within the client, and what was written to a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import confluent_kafka as kafka

from beam_lateness.transforms.sinks.topic_messages import Message, PublishError, TopicWriter

TIMEOUT_S = 10.0


class Got(NamedTuple):
    """A message as a consumer has it."""

    data: bytes
    key: bytes | None
    headers: dict[str, str]
    timestamp_ms: int
    partition: int

    @property
    def json(self) -> dict[str, Any]:
        """Its payload."""
        return json.loads(self.data)


class MockKafka:
    """librdkafka's own cluster of one broker, which lives as long as this does."""

    def __init__(self) -> None:
        self._producer: Any = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
        (broker,) = self._producer.list_topics(timeout=TIMEOUT_S).brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"

    def create_topic(self, name: str) -> str:
        """Creates a topic (a producer's question does that here), and gives its URL."""
        self._producer.list_topics(name, timeout=TIMEOUT_S)
        return f"kafka://{self.bootstrap}/{name}"

    def topics(self) -> set[str]:
        """Gives the topics that are there."""
        return set(self._producer.list_topics(timeout=TIMEOUT_S).topics)

    def stop(self) -> None:
        """Ends it."""
        self._producer = None


@contextmanager
def mock_kafka() -> Iterator[MockKafka]:
    """Runs a mock cluster."""
    cluster = MockKafka()
    yield cluster
    cluster.stop()


def read_topic(url: str) -> list[Got]:
    """Reads all that a Kafka topic holds, partition by partition."""
    servers, topic = url.removeprefix("kafka://").split("/")
    consumer: Any = kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "log_level": 0, "fetch.wait.max.ms": 10}
    )
    got = []
    try:
        for number in consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions:
            partition = kafka.TopicPartition(topic, number, 0)
            low, high = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
            consumer.assign([partition])
            for _ in range(low, high):
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                assert message.error() is None
                headers = {name: value.decode() for name, value in message.headers() or ()}
                stamp = message.timestamp()[1]
                got.append(Got(message.value(), message.key(), headers, stamp, number))
    finally:
        consumer.close()
    return got


class FakeWriter(TopicWriter):
    """Keeps what it is sent, and which of it has been confirmed.

    Args:
        fail_at: The flush that fails, from 1; 0 for none.
    """

    def __init__(self, fail_at: int = 0) -> None:
        super().__init__("fake")
        self.sent: list[Message] = []
        self.confirmed: list[Message] = []
        self.flushes = 0
        self.closed = False
        self._fail_at = fail_at

    def _send(self, message: Message) -> None:
        assert not self.closed
        self.sent.append(message)

    def _flush(self) -> None:
        self.flushes += 1
        if self.flushes == self._fail_at:
            msg = "refused"
            raise PublishError(msg)
        self.confirmed = list(self.sent)

    def close(self) -> None:
        self.closed = True

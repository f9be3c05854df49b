"""Kafka topics for tests: writes to them, and reads them by the connector."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka as kafka

from beam_lateness.transforms.sources.kafka import Kafka
from beam_lateness.transforms.sources.kafka_reader import KafkaReader
from beam_lateness.transforms.sources.messages import Messages
from tests.transforms.sources.memory import JSON
from tests.waiting import TIMEOUT_S, await_that

SIZE = 1 << 20


class Topic:
    """A topic of which no other test knows, as the connector reads it.

    Args:
        bootstrap: Its broker.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"t{uuid.uuid4().hex}"
        self.group = f"g{self.name}"

    def split(self, partition: int = 0) -> str:
        """The name of a partition."""
        return f"{self.name}-{partition}"

    def source(self, group: str | None = None, **settings: Any) -> Kafka:
        """The connector."""
        return Kafka(self.bootstrap, self.name, JSON, group or self.group, **settings)

    def produce(self, *values: bytes | None, partition: int = 0, **more: Any) -> None:
        """Writes messages, and waits until the broker has them."""
        producer = kafka.Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for value in values:
            producer.produce(self.name, value, partition=partition, **more)
        assert producer.flush(TIMEOUT_S) == 0

    def committed(self, partition: int = 0) -> int:
        """The group's offset, as another consumer sees it."""
        consumer = kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0}
        )
        try:
            (found,) = consumer.committed(
                [kafka.TopicPartition(self.name, partition)], timeout=TIMEOUT_S
            )
            return int(found.offset)
        finally:
            consumer.close()


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Payloads that tell their number."""
    return [b"%d" % number for number in range(first, first + count)]


@contextmanager
def opened(source: Kafka, split: str, offset: int | None = None) -> Iterator[KafkaReader]:
    """Reads one split from where the source begins, or from an offset."""
    position = source.initial_positions()[split]
    if offset is not None:
        position = position._replace(offset=offset)
    reader: KafkaReader = source.open(split, position)
    try:
        yield reader
    finally:
        reader.close()


def take(reader: KafkaReader, count: int, size: int = SIZE) -> list[tuple[int, bytes | None]]:
    """Waits for a number of messages, as (position, payload)."""
    got: list[tuple[int, bytes | None]] = []

    def enough() -> bool:
        got.extend(each(reader.read(size).messages))
        return len(got) >= count

    await_that(enough)
    assert len(got) == count
    return got


def each(messages: Messages | None) -> list[tuple[int, bytes | None]]:
    """Messages as (position, payload); the offset of each is its position."""
    if messages is None:
        return []
    assert list(messages.offsets) == list(messages.positions)
    return list(zip(messages.offsets, messages.payloads, strict=True))


def values(got: Sequence[tuple[int, bytes | None]]) -> list[bytes | None]:
    """The payloads of what was read."""
    return [payload for _, payload in got]

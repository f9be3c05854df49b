"""Live streams for the tests: published bit by bit, and what must become of their records."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tests.jobs import read_letters

WINDOW_MS: Final = 1000
BOUND_MS: Final = 500
LATENESS_MS: Final = 1000
START_MS: Final = 1_767_261_600_000
FLAGS: Final = (
    "--key_field=k",
    "--value_field=v",
    "--id_field=id",
    "--time_unit=ms",
    f"--window={WINDOW_MS}ms",
    f"--bound={BOUND_MS}ms",
    f"--allowed_lateness={LATENESS_MS}ms",
)


class Record(NamedTuple):
    """A record to publish; its value is so large and random that no sum is right by chance."""

    id: str
    key: str
    value: int
    event_time: int

    @property
    def payload(self) -> bytes:
        """It as JSON."""
        names = {"id": self.id, "k": self.key, "v": self.value, "event_time": self.event_time}
        return json.dumps(names).encode()

    @property
    def window(self) -> int:
        """The start of its window."""
        return self.event_time - self.event_time % WINDOW_MS


class Broker(Protocol):
    """A topic on a server, and how the job reads it."""

    url: str

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Publishes payloads, and waits until the server has them."""

    def unsettled(self) -> int:
        """Gives how many messages the server would give to a new job."""


class Feed:
    """A seeded stream: mostly a little out of order, some late, some too late, some broken.

    Args:
        seed: The same seed gives the same stream.
        rate: Records a second of event time.
        late: The share of records that are late, or too late.
        broken: The share of payloads that are no records, beside those that are.
    """

    def __init__(
        self, seed: int, rate: int = 100, late: float = 0.05, broken: float = 0.02
    ) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._late = late
        self._broken = broken
        self.records: list[Record] = []
        self.invalid = 0

    @property
    def newest_ms(self) -> int:
        """The event time that the stream has come to."""
        return START_MS + len(self.records) * 1000 // self._rate

    def next(self, count: int) -> list[bytes]:
        """Gives the next payloads; about one in fifty is no record."""
        payloads = []
        for _ in range(count):
            behind = self._random.randint(0, BOUND_MS)
            if self._random.random() < self._late:
                behind += self._random.randint(0, 3 * (WINDOW_MS + LATENESS_MS))
            number = len(self.records)
            record = Record(
                f"r{number}",
                f"k{self._random.randint(0, 3)}",
                self._random.getrandbits(40),
                self.newest_ms - behind,
            )
            self.records.append(record)
            payloads.append(record.payload)
            if self._random.random() < self._broken:
                payloads.append(f"broken {self.invalid}".encode())
                self.invalid += 1
        return payloads

    def closing(self, splits: int) -> list[bytes]:
        """Gives payloads after which every window of the stream is closed: their own stays open."""
        end = self.newest_ms + 10 * (WINDOW_MS + BOUND_MS + LATENESS_MS)
        return [Record(f"end{i}", "end", 1, end).payload for i in range(splits)]

    @property
    def closed_ms(self) -> int:
        """The watermark at which all its windows are closed."""
        return self.newest_ms + WINDOW_MS + LATENESS_MS


class Outcome:
    """What is in a job's store and its dead letters.

    Args:
        folder: The job's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Asks the store; nothing, where the table is not there yet."""
        connection = sqlite3.connect(self.folder / "windows.db", timeout=10)
        try:
            return connection.execute(text).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            connection.close()

    @property
    def watermark_ms(self) -> int:
        """The settled watermark."""
        found = self.query("select watermark_ms from checkpoints")
        return int(found[0][0]) if found else -(2**62)

    @property
    def checkpoints_run(self) -> str:
        """The runs that have written checkpoints, as text."""
        found = self.query("select runs from checkpoints")
        return str(found[0][0]) if found else ""

    def letters(self) -> list[dict[str, Any]]:
        """Gives the dead letters, each id once."""
        found = {
            f"{letter['record_id']}{letter['reason'] == 'too_late'}": letter
            for letter in read_letters(self.folder)
        }
        return list(found.values())


def check_conservation(feed: Feed, outcome: Outcome) -> int:
    """Checks that each record is somewhere, once; gives how many were too late.

    Every record is in a row or a dead letter, never in both: by window, count and sum.
    """
    published: Counter[tuple[int, str]] = Counter()
    sums: Counter[tuple[int, str]] = Counter()
    for record in feed.records:
        published[record.window, record.key] += 1
        sums[record.window, record.key] += record.value
    rows = outcome.query(
        "select window_start_ms, key, value, count from windows where key != 'end'"
    )
    for start, key, value, count in rows:
        published[start, key] -= count
        sums[start, key] -= value
    letters = outcome.letters()
    too_late = [letter for letter in letters if letter["reason"] == "too_late"]
    for letter in too_late:
        published[letter["window_start_ms"], letter["key"]] -= 1
        sums[letter["window_start_ms"], letter["key"]] -= letter["value"]
    assert {cell: count for cell, count in published.items() if count} == {}
    assert {cell: value for cell, value in sums.items() if value} == {}
    assert len(letters) - len(too_late) == feed.invalid
    return len(too_late)


def stream_flags(folder: Path, url: str, *more: str) -> list[str]:
    """The flags of a job that reads a topic."""
    return [
        "--runner=PrismRunner",
        f"--input={url}",
        *FLAGS,
        "--too_late=emit",
        f"--output=sqlite:///{folder}/windows.db",
        f"--dead_letters={folder}/dead",
        *more,
    ]


class PubSubTopic:
    """A topic of Pub/Sub with a subscription of its own.

    Args:
        server: A `PubsubServer`.
        name: Names the topic, and the subscription.
        lease: The lease that the job asks for.
    """

    def __init__(self, server: Any, name: str, lease: str = "1s") -> None:
        self._server = server
        self._topic = f"projects/test/topics/{name}"
        self.subscription = f"projects/test/subscriptions/{name}"
        server.create_topic(self._topic)
        server.create_subscription(self.subscription, self._topic, ack_deadline_s=1)
        self.url = f"pubsub://{self.subscription}?lease={lease}"

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Publishes payloads, and waits until the server has them."""
        from google.cloud import pubsub_v1

        publisher = pubsub_v1.PublisherClient()
        try:
            for future in [publisher.publish(self._topic, payload) for payload in payloads]:
                future.result(timeout=30)
        finally:
            publisher.stop()

    def unsettled(self) -> int:
        """Gives how many messages are not acknowledged."""
        own = [m for m in self._server.messages() if m["topic"] == self._topic]
        return sum(message["acks"] == 0 for message in own)


class KafkaTopic:
    """A topic of Kafka.

    Args:
        broker: A `KafkaBroker`.
        name: The topic, and the group.
        partitions: How many it has.
    """

    def __init__(self, broker: Any, name: str, partitions: int = 2) -> None:
        self._bootstrap = broker.bootstrap
        self._name, self._partitions = name, partitions
        broker.create_topic(name, partitions=partitions)
        self.url = f"kafka://{self._bootstrap}/{name}?group={name}"
        self._published = 0

    def publish(self, payloads: Sequence[bytes]) -> None:
        """Publishes payloads to the partitions in turn, and waits until the broker has them."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        for payload in payloads:
            producer.produce(self._name, payload, partition=self._published % self._partitions)
            self._published += 1
        assert producer.flush(30) == 0

    def unsettled(self) -> int:
        """Gives how many messages are past the group's committed offsets."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._name})
        try:
            wanted = [TopicPartition(self._name, number) for number in range(self._partitions)]
            ends = [consumer.get_watermark_offsets(each, timeout=10)[1] for each in wanted]
            committed = consumer.committed(wanted, timeout=10)
            return sum(end - max(each.offset, 0) for end, each in zip(ends, committed, strict=True))
        finally:
            consumer.close()

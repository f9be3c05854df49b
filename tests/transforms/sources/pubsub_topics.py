"""Pub/Sub subscriptions for tests: published to, read by the connector, and looked into."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from google.cloud import pubsub_v1

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.pubsub import PubSub
from beam_lateness.transforms.sources.pubsub_reader import PubSubReader
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime, TimestampAssigner
from services.pubsub_server import PubsubMessage, PubsubServer
from tests.transforms.sources.memory import JSON
from tests.waiting import TIMEOUT_S, await_that

LONG_S = 60  # an ack deadline that no test sees the end of
SIZE = 1 << 20


class Subscribed:
    """A topic of its own, and a subscription to it.

    Args:
        server: Their server.
        deadline_s: The subscription's own ack deadline.
        ordered: Whether it orders messages by key.
    """

    def __init__(
        self, server: PubsubServer, deadline_s: int = LONG_S, *, ordered: bool = False
    ) -> None:
        name = f"t{uuid.uuid4().hex}"
        self.server = server
        self.topic = f"projects/test/topics/{name}"
        self.name = f"projects/test/subscriptions/{name}"
        server.create_topic(self.topic)
        with pubsub_v1.SubscriberClient() as client:
            client.create_subscription(
                request={
                    "name": self.name,
                    "topic": self.topic,
                    "ack_deadline_seconds": deadline_s,
                    "enable_message_ordering": ordered,
                }
            )

    def source(self, *others: Subscribed, **settings: Any) -> PubSub:
        """The connector of this subscription, and of others."""
        return PubSub([self.name, *(each.name for each in others)], JSON, **settings)

    def publish(self, *payloads: bytes, key: str = "", **attributes: str) -> list[str]:
        """Publishes messages, one after the other, and gives their ids."""
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=bool(key))
        client = pubsub_v1.PublisherClient(publisher_options=options)
        try:
            return [
                str(client.publish(self.topic, payload, key, **attributes).result(TIMEOUT_S))
                for payload in payloads
            ]
        finally:
            client.stop()
            client.transport.close()

    def told(self, message_id: str) -> PubsubMessage:
        """What the server tells of a message."""
        (found,) = (each for each in self.server.messages() if each["id"] == message_id)
        return found

    def acknowledged(self) -> set[str]:
        """The ids of the messages that were acknowledged."""
        own = (each for each in self.server.messages() if each["topic"] == self.topic)
        return {each["id"] for each in own if each["acks"]}

    def steal(self, reader: PubSubReader) -> None:
        """Lets the leases of a reader end, as if it had been too slow to extend them."""
        with pubsub_v1.SubscriberClient() as client:
            client.modify_ack_deadline(
                subscription=self.name,
                ack_ids=reader._leases.ack_ids(),
                ack_deadline_seconds=0,
            )

    def delete(self) -> None:
        """Deletes the subscription."""
        with pubsub_v1.SubscriberClient() as client:
            client.delete_subscription(subscription=self.name)


@contextmanager
def opened(source: PubSub, offset: int = 0) -> Iterator[PubSubReader]:
    """Reads the only subscription of a source."""
    (split,) = source.initial_positions()
    with closing(source.open(split, SplitPosition(offset))) as reader:
        yield reader


def take(reader: PubSubReader, count: int, seconds: float = TIMEOUT_S) -> dict[str, bytes]:
    """Waits for a number of messages; gives the payloads by their positions."""
    got: list[tuple[Any, Any]] = []

    def enough() -> bool:
        messages = reader.read(SIZE).messages
        if messages is not None:
            got.extend(zip(messages.positions, messages.payloads, strict=True))
        return len(got) >= count

    await_that(enough, seconds)
    assert len(got) == len(dict(got)) == count
    return dict(got)


def group_of(source: PubSub, timestamps: TimestampAssigner | None = None) -> GroupReader:
    """Reads all subscriptions of a source, stamped."""
    strategy = WatermarkStrategy(bound_ms=0).with_timestamp_assigner(
        timestamps or FieldTime("t", "ms")
    )
    return Group(source, strategy, [], ReadSettings(max_future_skew_ms=None)).open()


def polled(reader: GroupReader, count: int) -> list[Poll]:
    """Polls until a number of messages has come, records or not."""
    polls: list[Poll] = []

    def enough() -> bool:
        polls.append(reader.poll())
        records = sum(len(batch) for poll in polls for batch in poll.batches)
        return records + sum(len(poll.invalid) for poll in polls) >= count

    await_that(enough)
    return polls

"""`explain` on topics: it reads what is there, says what holds the watermark, and takes nothing."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from beam_lateness import FieldTime, JsonLines, Kafka, PubSub, WatermarkStrategy, explain
from tests.runners.feeds import BOUND_MS, Feed, KafkaTopic, PubSubTopic

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.pubsub_server import PubsubServer

pytestmark = pytest.mark.live

RECORDS = 500
LINES = JsonLines("k", "v", "id")
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_MS}ms").with_timestamp_assigner(
    FieldTime("event_time", "ms")
)


def test_explain_reads_a_topic_to_its_end_and_names_the_empty_partition(
    kafka_broker: KafkaBroker,
) -> None:
    """Which holds the watermark until it speaks; and the group's offsets stand where they were."""
    name, feed = f"explain-{uuid.uuid4().hex[:8]}", Feed(seed=1)
    topic = KafkaTopic(kafka_broker, name, partitions=2)
    topic.publish(feed.next(RECORDS))
    kafka_broker.add_partitions(name, 3)
    found = explain(Kafka(kafka_broker.bootstrap, name, LINES, group=name), STRATEGY)
    assert sum(split.records for split in found.splits) == RECORDS
    assert found.held_by == f"{name}-2"
    assert sum(found.invalid.values()) == feed.invalid
    assert topic.unsettled() == RECORDS + feed.invalid


def test_explain_gives_back_the_messages_that_it_has_looked_at(
    pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is acknowledged, and the next one reads all of them."""
    for key, value in pubsub_server.environment.items():
        monkeypatch.setenv(key, value)
    feed = Feed(seed=2)
    topic = PubSubTopic(pubsub_server, f"explain-{uuid.uuid4().hex[:8]}", lease="60s")
    topic.publish(feed.next(RECORDS))
    for _ in range(2):
        found = explain(PubSub([topic.subscription], LINES, lease="60s"), STRATEGY)
        assert [split.records for split in found.splits] == [RECORDS]
    assert topic.unsettled() == RECORDS + feed.invalid

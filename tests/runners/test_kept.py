"""A live input without `commits`: acknowledged by the engine's bundle finalization."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.runners.feeds import Feed
from tests.runners.process import running

if TYPE_CHECKING:
    from services.pubsub_server import PubsubServer

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("prism")]

RECORDS = 200
KEYS = 20


def test_an_ordered_subscription_is_read_in_order_and_acknowledged_by_finalization(
    tmp_path: Path, pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next message of a key comes only when the one before is acknowledged."""
    from google.cloud import pubsub_v1

    for variable, value in pubsub_server.environment.items():
        monkeypatch.setenv(variable, value)
    topic, subscription = "projects/kept/topics/t", "projects/kept/subscriptions/s"
    pubsub_server.create_topic(topic)
    with pubsub_v1.SubscriberClient() as client:
        client.create_subscription(
            request={
                "name": subscription,
                "topic": topic,
                "enable_message_ordering": True,
                "ack_deadline_seconds": 60,
            }
        )
    publisher = pubsub_v1.PublisherClient(
        publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    )
    feed = Feed(seed=3, broken=0)
    for number, payload in enumerate(feed.next(RECORDS)):
        publisher.publish(topic, payload, ordering_key=f"key-{number % KEYS}").result()
    publisher.stop()
    ids = tmp_path / "ids"
    with running([subscription, str(ids)], tmp_path / "log", "tests.runners.kept") as job:
        job.await_that(
            lambda: (
                sum(m["acks"] > 0 for m in pubsub_server.messages() if m["topic"] == topic)
                == RECORDS
            ),
            "acknowledgement of all",
        )
    read = [int(line.removeprefix("r")) for line in ids.read_text().splitlines()]
    assert sorted(read) == list(range(RECORDS))
    for key in range(KEYS):
        own = [number for number in read if number % KEYS == key]
        assert own == sorted(own)

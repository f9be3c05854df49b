"""Kafka and Pub/Sub on Flink: what checkpoints hold is acknowledged, and counted once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beam_lateness.pipelines.flink.cluster import Cluster, Jars
from tests.flink.jobs import (
    QUICK,
    await_on,
    await_running,
    flink_flags,
    kill_task_manager,
    submit,
)
from tests.runners.feeds import (
    FLAGS,
    Broker,
    Feed,
    KafkaTopic,
    Outcome,
    PubSubTopic,
    check_conservation,
)

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.pubsub_server import PubsubServer

pytestmark = pytest.mark.flink

PARTITIONS = 2


@pytest.fixture(params=["kafka", "pubsub"])
def topic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A topic that no other test has."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka_broker")
        return KafkaTopic(kafka, name, PARTITIONS)
    server: PubsubServer = request.getfixturevalue("pubsub_server")
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)
    return PubSubTopic(server, name, lease="3s")


@pytest.mark.usefixtures("ended")
def test_messages_are_counted_once_and_acknowledged_though_a_task_manager_is_killed(
    flink: Cluster, jars: Jars, topic: Broker, tmp_path: Path
) -> None:
    """Each of them is in a window or a dead letter; the broker is told of all but the last."""
    feed, outcome = Feed(seed=5, rate=200), Outcome(tmp_path)
    topic.publish(feed.next(400))
    job = submit(flink, flink_flags(flink, tmp_path, [topic.url], *FLAGS, *QUICK))
    for number in (1, 2):
        before = len(outcome.query("select key from windows"))
        topic.publish(feed.next(600))
        await_on(
            flink,
            job,
            lambda before=before: len(outcome.query("select key from windows")) > before,  # type: ignore[misc]
            "windows",
        )
        kill_task_manager(flink, number)
        topic.publish(feed.next(200))
        flink.start_task_manager(number, jars)
        await_running(flink, job)
    topic.publish(feed.closing(PARTITIONS))

    def whole() -> bool:
        try:
            check_conservation(feed, outcome)
        except AssertionError:
            return False
        return True

    await_on(flink, job, whole, "balance")
    await_on(flink, job, lambda: topic.unsettled() == 0, "acknowledgement of all")
    check_conservation(feed, outcome)
    assert flink.rest.checkpoints(job.id).restored > 0

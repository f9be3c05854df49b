"""Every test here runs on Prism; those on topics get one of their own."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.runners.feeds import Broker, KafkaTopic, PubSubTopic

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.pubsub_server import PubsubServer


@pytest.fixture(scope="session", autouse=True)
def with_prism(prism: str) -> None:
    """Makes Prism be there."""


class MakeTopic(Protocol):
    """Makes a topic on one server (`kafka`) or the other (`pubsub`)."""

    def __call__(self, kind: str, *, partitions: int = 2, lease: str = "60s") -> Broker:
        """Makes it."""


@pytest.fixture
def make_topic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeTopic:
    """Topics whose names no other has; clients find the Pub/Sub server by the environment."""

    def make(kind: str, *, partitions: int = 2, lease: str = "60s") -> Broker:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        if kind == "kafka":
            kafka: KafkaBroker = request.getfixturevalue("kafka_broker")
            return KafkaTopic(kafka, name, partitions)
        server: PubsubServer = request.getfixturevalue("pubsub_server")
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        return PubSubTopic(server, name, lease)

    return make

"""What all tests share: the engine and the servers, got once for those that ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.runners import PRISM_VARIABLE, find_prism, obtain_prism
from tests.topics import MockKafka, mock_kafka

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.postgres_server import PostgresServer
    from services.pubsub_server import PubsubServer


@pytest.fixture(scope="session")
def prism() -> Iterator[str]:
    """Where Prism is; jobs started by the test find the same one."""
    location = find_prism(PipelineOptions([])) or obtain_prism(print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRISM_VARIABLE, location)
        yield location


@pytest.fixture(scope="session")
def pubsub_server() -> Iterator[PubsubServer]:
    """A Pub/Sub server, whose subscriptions may have ack deadlines of a second."""
    from services.pubsub_server import PubsubServer

    with PubsubServer(min_ack_deadline_s=1) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A Kafka broker."""
    from services.kafka_broker import KafkaBroker

    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    from services.postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def cluster() -> Iterator[MockKafka]:
    """A Kafka cluster of the client library."""
    with mock_kafka() as mock:
        yield mock

"""Every test here runs on one Flink cluster of two task managers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_lateness.pipelines.flink.cluster import Cluster, Jars, find_jars, running
from beam_lateness.pipelines.flink.jars import FLINK_VERSION, JOB_SERVER_VERSION
from beam_lateness.pipelines.flink.nodes import Layout
from beam_lateness.pipelines.ports import free_ports
from services.pubsub_server import PubsubServer

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def jars() -> Jars:
    """What clusters are started from."""
    return find_jars(None, None, FLINK_VERSION, JOB_SERVER_VERSION, print)


@pytest.fixture(scope="session")
def flink(
    tmp_path_factory: pytest.TempPathFactory, jars: Jars, pubsub_server: PubsubServer
) -> Iterator[Cluster]:
    """The cluster; its workers know the Pub/Sub server, and these tests."""
    layout = Layout(tmp_path_factory.mktemp("flink"), *free_ports(4))
    environment = {**pubsub_server.environment, "PYTHONPATH": str(ROOT)}
    with running(layout, jars, environment) as cluster:
        yield cluster


@pytest.fixture
def ended(flink: Cluster) -> Iterator[None]:
    """No job runs afterwards."""
    yield
    for each in flink.rest.jobs():
        if not each.ended:
            flink.rest.cancel(each.id)
            flink.rest.await_state(each.id)

"""Nothing is acknowledged before its results are in the store, and everything afterwards."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.runners.conftest import MakeTopic
from tests.runners.feeds import (
    Broker,
    Feed,
    Outcome,
    check_conservation,
    stream_flags,
)
from tests.runners.process import JobProcess, running

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("prism")]

RECORDS = 400
CLOSING = 2
LOOK_S = 2.0  # acknowledgements follow the store within half a second


@pytest.fixture(params=["kafka", "pubsub"])
def broker(request: pytest.FixtureRequest, make_topic: MakeTopic) -> Broker:
    """A topic of its own, on one server or the other."""
    return make_topic(request.param)


@contextmanager
def job_with_locked_store(
    folder: Path, broker: Broker, feed: Feed, **more: str
) -> Iterator[tuple[JobProcess, sqlite3.Connection]]:
    """A job that has read all, and is about to write its results to a table that is locked."""
    trying = folder / "trying"
    checkpoint = f"--checkpoint=sqlite:///{folder}/checkpoint.db"
    environment = {"TRYING": str(trying), **more}
    flags = stream_flags(folder, broker.url, checkpoint)
    with running(flags, folder / "log", "tests.runners.swapping", environment) as job:
        job.await_that(lambda: has_begun(folder), "source")
        with closing(sqlite3.connect(folder / "windows.db", timeout=10)) as store:
            store.isolation_level = None
            store.execute("begin immediate")
            broker.publish(feed.next(RECORDS))
            job.await_that(trying.exists, "attempt to write")
            broker.publish(feed.closing(CLOSING))
            yield job, store


def acknowledged(broker: Broker) -> int:
    """How many messages the server would not give again."""
    return RECORDS + CLOSING - broker.unsettled()


def has_begun(folder: Path) -> bool:
    """Whether the job's checkpoint is there, and its table."""
    try:
        with closing(sqlite3.connect(folder / "checkpoint.db", timeout=10)) as checkpoint:
            return bool(checkpoint.execute("select runs from checkpoints").fetchall())
    except sqlite3.OperationalError:
        return False


def test_nothing_is_acknowledged_while_the_store_cannot_be_written(
    tmp_path: Path, broker: Broker
) -> None:
    """And when it can be, everything but what stands in an open window."""
    feed = Feed(seed=7, late=0, broken=0)
    with job_with_locked_store(tmp_path, broker, feed) as (job, store):
        end = time.monotonic() + LOOK_S
        while time.monotonic() < end:
            assert acknowledged(broker) <= len(Outcome(tmp_path).letters())
        store.execute("rollback")
        job.await_that(lambda: broker.unsettled() == CLOSING, "acknowledgement")
        job.signal(signal.SIGTERM)
        assert job.await_end(30) == 130, job.output
    check_conservation(feed, Outcome(tmp_path))


def test_an_acknowledgement_before_the_store_would_be_noticed(
    tmp_path: Path, broker: Broker
) -> None:
    """The test above fails where results count as written before they are."""
    feed = Feed(seed=7, late=0, broken=0)
    with job_with_locked_store(tmp_path, broker, feed, SWAPPED="1") as (job, _):
        job.await_that(
            lambda: acknowledged(broker) > len(Outcome(tmp_path).letters()), "early acknowledgement"
        )

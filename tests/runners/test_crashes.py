"""Jobs on topics, killed again and again: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runners import exiting
from tests.runners.conftest import MakeTopic
from tests.runners.feeds import (
    Broker,
    Feed,
    Outcome,
    check_conservation,
    stream_flags,
)
from tests.runners.process import JobProcess, running
from tests.waiting import await_that

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("prism")]

KILLS = 20
START_S = 60
RECORDS = 150  # published to each of the jobs
PLACES = [f"{name}:{when}" for name in exiting.PLACES for when in ("before", "after")]


@pytest.fixture(params=["kafka", "pubsub"])
def broker(request: pytest.FixtureRequest, make_topic: MakeTopic) -> Broker:
    """A topic of its own, on one server or the other."""
    return make_topic(request.param, lease="1s")


class Crashes:
    """One stream, read by one job after the other.

    Args:
        folder: What the jobs share: the store, the dead letters, the checkpoint.
        broker: What they read.
        seed: Of the stream, and of the moments at which they are killed.
    """

    def __init__(self, folder: Path, broker: Broker, seed: int) -> None:
        self.random = random.Random(seed)
        self.feed = Feed(seed)
        self.outcome = Outcome(folder)
        self._broker = broker
        self._folder = folder
        self._number = 0

    def start(self, **more: Any) -> Any:
        """Starts a job (a context)."""
        self._number += 1
        log = self._folder / f"log{self._number}"
        return running(stream_flags(self._folder, self._broker.url), log, **more)

    def feed_it(self, job: JobProcess, seconds: float) -> None:
        """Publishes the job's share, and leaves it alone for a time, or until it ends."""
        before = self.outcome.checkpoints_run
        await_that(
            lambda: job.ended or self.outcome.checkpoints_run != before,
            START_S,
            f"checkpoint of a new run:\n{job.output}",
        )
        self._broker.publish(self.feed.next(RECORDS))
        end = time.monotonic() + seconds
        while time.monotonic() < end and not job.ended:
            time.sleep(0.01)

    def finish(self) -> None:
        """Lets a last job read everything, and checks that all is there, once."""
        with self.start() as job:
            await_that(lambda: "engine: prism" in job.output, START_S, f"engine:\n{job.output}")
            self._broker.publish(self.feed.closing(splits=2))
            job.await_that(
                lambda: self.outcome.watermark_ms >= self.feed.closed_ms, "end of the stream"
            )
            job.await_that(lambda: len(self.outcome.letters()) > 0, "dead letters")
            job.signal(signal.SIGTERM)
            assert job.await_end(30) == 130, job.output
        assert check_conservation(self.feed, self.outcome), "nothing was too late"


def test_nothing_is_lost_when_the_worker_is_killed(tmp_path: Path, broker: Broker) -> None:
    """SIGKILL of the process in which source and sinks run."""
    crashes = Crashes(tmp_path, broker, seed=1)
    for _ in range(KILLS):
        with crashes.start() as job:
            crashes.feed_it(job, crashes.random.uniform(0, 4))
            assert not job.ended, job.output
            job.signal(signal.SIGKILL)
            assert job.await_end() == -signal.SIGKILL
    crashes.finish()


def test_nothing_is_lost_when_the_engine_is_killed(tmp_path: Path, broker: Broker) -> None:
    """SIGKILL of Prism; the job ends by itself then, and says so by its exit code."""
    crashes = Crashes(tmp_path, broker, seed=2)
    for _ in range(KILLS):
        with crashes.start() as job:
            crashes.feed_it(job, crashes.random.uniform(0, 4))
            job.kill_engine()
            assert job.await_end() == 1, job.output
    crashes.finish()


def test_nothing_is_lost_when_a_sink_exits(tmp_path: Path, broker: Broker) -> None:
    """`os._exit` before and after each step of writing, settling and acknowledging."""
    crashes = Crashes(tmp_path, broker, seed=3)
    exits = 0
    for number in range(KILLS):
        place = PLACES[number % len(PLACES)]
        after = crashes.random.randint(0, 3)
        chosen = {"EXIT_AT": place, "EXIT_AFTER": str(after)}
        with crashes.start(module="tests.runners.exiting", environment=chosen) as job:
            crashes.feed_it(job, 5)
            if job.ended:
                exits += 1
                assert job.await_end() == exiting.CODE, job.output
            job.kill()
    assert exits > KILLS // 2
    crashes.finish()

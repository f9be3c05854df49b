"""Fifty thousand messages through each source on Prism: balance, watermarks and verdicts."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from tests.runners.conftest import MakeTopic
from tests.runners.feeds import (
    BOUND_MS,
    LATENESS_MS,
    WINDOW_MS,
    Broker,
    Feed,
    Outcome,
    check_conservation,
    stream_flags,
)
from tests.runners.process import running

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("prism")]

MESSAGES = 50_000
AT_ONCE = 1_000
NONE = -(2**62)


class Read(NamedTuple):
    """A record as the source read it."""

    split: str
    event_time: int
    stamp: int


@pytest.fixture(params=["kafka 1", "kafka 4", "pubsub"])
def broker(request: pytest.FixtureRequest, make_topic: MakeTopic) -> Broker:
    """A topic of its own."""
    kind, _, partitions = request.param.partition(" ")
    return make_topic(kind, partitions=int(partitions or 1))


def stamps_of(records: list[Read], splits: set[str]) -> list[int | None]:
    """The sequential model: the lowest of the splits' `largest event time - bound`, never back."""
    largest: dict[str, int] = {}
    group = NONE
    stamps: list[int | None] = []
    for record in records:
        if len(largest) == len(splits):
            group = max(group, min(largest.values()) - BOUND_MS)
        stamps.append(None if group == NONE else group)
        largest[record.split] = max(largest.get(record.split, NONE), record.event_time)
    return stamps


def read_records(path: Path) -> list[Read]:
    """What the source wrote down."""
    return [
        Read(batch["split"], event_time, stamp)
        for batch in map(orjson.loads, path.read_bytes().splitlines())
        for event_time, stamp in zip(batch["event_times"], batch["stamps"], strict=True)
    ]


def test_fifty_thousand_messages_balance_and_are_judged_as_by_the_model(
    tmp_path: Path, broker: Broker
) -> None:
    """Each is in a window or a dead letter, as its split's largest event time before it says."""
    feed, outcome = Feed(seed=5), Outcome(tmp_path)
    recorded = tmp_path / "records"
    flags = stream_flags(tmp_path, broker.url)
    more = {"RECORD_TO": str(recorded)}
    with running(flags, tmp_path / "log", "tests.runners.recording", more) as job:
        job.await_that(lambda: outcome.checkpoints_run != "", "source")
        while len(feed.records) < MESSAGES:
            broker.publish(feed.next(AT_ONCE))
        broker.publish(feed.closing(splits=4))
        job.await_that(lambda: outcome.watermark_ms >= feed.closed_ms, "end of the stream")
        records = read_records(recorded)
        wanted = stamps_of(records, {record.split for record in records})
        late = Counter(
            record.event_time
            for record, stamp in zip(records, wanted, strict=True)
            if stamp is not None and stamp >= _closed_at(record.event_time)
        )
        job.await_that(
            lambda: sum(each["reason"] == "too_late" for each in outcome.letters()) >= late.total(),
            "dead letters",
        )
        job.signal(signal.SIGTERM)
        assert job.await_end(30) == 130, job.output
    assert len(records) == MESSAGES + 4
    known = [(r.stamp, w) for r, w in zip(records, wanted, strict=True) if w is not None]
    assert [stamp for stamp, _ in known] == [want for _, want in known]
    check_conservation(feed, outcome)
    too_late = [each for each in outcome.letters() if each["reason"] == "too_late"]
    assert Counter(each["event_time_ms"] for each in too_late) == late


def _closed_at(event_time: int) -> int:
    return event_time - event_time % WINDOW_MS + WINDOW_MS + LATENESS_MS

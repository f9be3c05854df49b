"""What happens to topics while a job reads them on Prism: it goes on, or ends and says why."""

from __future__ import annotations

import json
import signal
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runners.feeds import (
    Broker,
    Feed,
    KafkaTopic,
    Outcome,
    PubSubTopic,
    check_conservation,
    stream_flags,
)
from tests.runners.process import JobProcess, running
from tests.topics import read_topic

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker
    from services.pubsub_server import PubsubServer

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("prism")]

RECORDS = 200
MISUSED, FAILED, INTERRUPTED = 2, 1, 130


@pytest.fixture
def name() -> str:
    """A name that no other topic has."""
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pubsub(pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch) -> PubsubServer:
    """The Pub/Sub server, which clients find by the environment."""
    for key, value in pubsub_server.environment.items():
        monkeypatch.setenv(key, value)
    return pubsub_server


@contextmanager
def job_on(folder: Path, url: str, *more: str) -> Iterator[JobProcess]:
    """A job that has begun to read; it must end by SIGTERM in good order."""
    outcome = Outcome(folder)
    before = outcome.checkpoints_run
    log = folder / f"log-{uuid.uuid4().hex[:4]}"
    with running(stream_flags(folder, url, *more), log) as job:
        job.await_that(lambda: outcome.checkpoints_run != before, "source")
        yield job
        end(job)


def end(job: JobProcess) -> None:
    """Ends a job by SIGTERM; it must say so by its exit code, and show no stack."""
    job.signal(signal.SIGTERM)
    assert job.await_end(30) == INTERRUPTED, job.output
    assert "Traceback" not in job.output
    job.await_nobody()


def accounted(outcome: Outcome) -> int:
    """How many messages are in a row or a dead letter; those that close the windows are not."""
    found = outcome.query("select coalesce(sum(count), 0) from windows where key != 'end'")
    return sum(count for (count,) in found) + len(outcome.letters())


def await_all(job: JobProcess, feed: Feed, outcome: Outcome) -> None:
    """Waits until every window of a stream is settled, and each message is somewhere."""
    job.await_that(lambda: outcome.watermark_ms >= feed.closed_ms, "end of the stream")
    wanted = len(feed.records) + feed.invalid
    job.await_that(lambda: accounted(outcome) >= wanted, "dead letters")


def refused(folder: Path, url: str, *more: str) -> str:
    """Runs a job that must not begin; gives what it says, which is one line."""
    with running(stream_flags(folder, url, *more), folder / "log") as job:
        assert job.await_end() == MISUSED, job.output
        job.await_nobody()
        (line,) = (line for line in job.output.splitlines() if "error:" in line)
        assert "Traceback" not in job.output
        return line


def test_a_job_goes_on_when_its_broker_has_been_away(tmp_path: Path, name: str) -> None:
    """What was there before, and what comes after, is accounted for."""
    from services.kafka_broker import KafkaBroker

    feed, outcome = Feed(seed=11), Outcome(tmp_path)
    with KafkaBroker(tmp_path / "kafka") as broker:
        topic = KafkaTopic(broker, name)
        with job_on(tmp_path, topic.url) as job:
            topic.publish(feed.next(RECORDS))
            job.await_that(lambda: accounted(outcome) > 0, "results")
            broker.restart()
            topic.publish(feed.next(RECORDS))
            topic.publish(feed.closing(splits=2))
            await_all(job, feed, outcome)
    check_conservation(feed, outcome)


def test_a_job_can_be_ended_while_its_broker_is_away(tmp_path: Path, name: str) -> None:
    """In good order; when both are back, the same command goes on, and all is accounted for."""
    from services.kafka_broker import KafkaBroker

    feed, outcome = Feed(seed=12), Outcome(tmp_path)
    with KafkaBroker(tmp_path / "kafka") as broker:
        topic = KafkaTopic(broker, name)
        with job_on(tmp_path, topic.url) as job:
            topic.publish(feed.next(RECORDS))
            job.await_that(lambda: accounted(outcome) > 0, "results")
            broker.stop()
            job.await_that(lambda: "do not answer" in job.output, "note of it")
        broker.start()
        topic.publish(feed.next(RECORDS))
        with job_on(tmp_path, topic.url) as job:
            topic.publish(feed.closing(splits=2))
            await_all(job, feed, outcome)
    check_conservation(feed, outcome)


def test_a_partition_that_is_added_during_a_job_is_read(
    tmp_path: Path, name: str, kafka_broker: KafkaBroker
) -> None:
    """Its records are in the results like those of the first."""
    feed, outcome = Feed(seed=13), Outcome(tmp_path)
    topic = KafkaTopic(kafka_broker, name, partitions=1)
    with job_on(tmp_path, f"{topic.url}&discovery=200ms") as job:
        topic.publish(feed.next(RECORDS))
        job.await_that(lambda: accounted(outcome) > 0, "results")
        kafka_broker.add_partitions(name, 2)
        topic._partitions = 2
        topic.publish(feed.next(RECORDS))
        assert {got.partition for got in read_topic(topic.url.partition("?")[0])} == {0, 1}
        topic.publish(feed.closing(splits=2))
        await_all(job, feed, outcome)
    check_conservation(feed, outcome)


def test_a_job_whose_subscription_is_deleted_ends_and_says_what_to_do(
    tmp_path: Path, name: str, pubsub: PubsubServer
) -> None:
    """By itself, with exit code 1, in one line."""
    from google.cloud import pubsub_v1

    outcome = Outcome(tmp_path)
    topic = PubSubTopic(pubsub, name)
    with running(stream_flags(tmp_path, topic.url), tmp_path / "log") as job:
        job.await_that(lambda: outcome.checkpoints_run != "", "source")
        topic.publish(Feed(seed=14).next(RECORDS))
        job.await_that(lambda: accounted(outcome) > 0, "results")
        with pubsub_v1.SubscriberClient() as client:
            client.delete_subscription(subscription=topic.subscription)
        assert job.await_end() == FAILED, job.output
        job.await_nobody()
        told = [line for line in job.output.splitlines() if "beam-lateness stream:" in line]
    (line,) = told
    assert topic.subscription in line
    assert "mend --input or create it, and start the job again" in line


def test_credentials_that_are_refused_end_the_job_before_it_begins(
    tmp_path: Path, name: str, kafka_broker: KafkaBroker
) -> None:
    """It names the flag, and shows no password."""
    kafka_broker.create_topic(name)
    properties = tmp_path / "kafka.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=PLAIN\n"
        f"sasl.username={kafka_broker.user}\n"
        "sasl.password=hunter2\n"
    )
    url = f"kafka://{kafka_broker.sasl_bootstrap}/{name}?group={name}"
    line = refused(tmp_path, url, f"--kafka_properties={properties}")
    assert "mend --kafka_properties" in line
    assert "hunter2" not in (tmp_path / "log").read_text()


def test_a_topic_that_is_not_there_ends_the_job_before_it_begins(
    tmp_path: Path, name: str, kafka_broker: KafkaBroker
) -> None:
    """It says what to do."""
    line = refused(tmp_path, f"kafka://{kafka_broker.bootstrap}/{name}")
    assert "mend --input or create it" in line


def test_a_subscription_that_is_not_there_ends_the_job_before_it_begins(
    tmp_path: Path, name: str, pubsub: PubsubServer
) -> None:
    """It says what to do."""
    line = refused(tmp_path, f"pubsub://projects/test/subscriptions/{name}")
    assert "mend --input or create it" in line


def test_an_empty_topic_is_read_when_records_come(
    tmp_path: Path, name: str, kafka_broker: KafkaBroker
) -> None:
    """Its time unit is declared."""
    feed, outcome = Feed(seed=15), Outcome(tmp_path)
    topic = KafkaTopic(kafka_broker, name)
    with job_on(tmp_path, topic.url, "--time_unit=ms") as job:
        assert topic.unsettled() == 0
        topic.publish([*feed.next(RECORDS), *feed.closing(splits=2)])
        await_all(job, feed, outcome)
    check_conservation(feed, outcome)


def test_an_empty_topic_has_no_time_unit_to_detect(
    tmp_path: Path, name: str, kafka_broker: KafkaBroker
) -> None:
    """It says what to declare."""
    topic = KafkaTopic(kafka_broker, name)
    line = refused(tmp_path, topic.url, "--time_unit=auto")
    assert "declare it with --time_unit" in line


def places_in(topic: Broker, name: str, payloads: set[bytes], pubsub: Any) -> set[Any]:
    """Gives where some payloads are, as the server has them: split and position."""
    if isinstance(topic, PubSubTopic):
        own = (each for each in pubsub.messages() if each["topic"].endswith(name))
        return {(topic.subscription, each["id"]) for each in own if each["data"] in payloads}
    places, offsets = set(), [0, 0]
    for got in read_topic(topic.url.partition("?")[0]):
        if got.data in payloads:
            places.add((f"{name}-{got.partition}", offsets[got.partition]))
        offsets[got.partition] += 1
    return places


@pytest.mark.parametrize("kind", ["kafka", "pubsub"])
def test_a_payload_that_is_no_record_is_a_dead_letter_with_its_place(
    tmp_path: Path, name: str, kind: str, pubsub: PubsubServer, kafka_broker: KafkaBroker
) -> None:
    """Partition and offset, or subscription and message id."""
    topic: Broker = (
        PubSubTopic(pubsub, name) if kind == "pubsub" else KafkaTopic(kafka_broker, name)
    )
    outcome = Outcome(tmp_path)
    feed = Feed(seed=16, late=0, broken=0)
    invalid = {b"no json", b'{"v":1}', b"[]", b"\xff\xfe"}
    with job_on(tmp_path, topic.url) as job:
        topic.publish([*feed.next(5), *invalid, *feed.next(5)])
        job.await_that(lambda: len(outcome.letters()) >= len(invalid), "dead letters")
    found = {(letter["split"], letter["position"]) for letter in outcome.letters()}
    assert len(found) == len(invalid)
    assert found == places_in(topic, name, invalid, pubsub)


def test_results_of_a_topic_may_go_to_topics(
    tmp_path: Path, name: str, kafka_broker: KafkaBroker
) -> None:
    """Each record is in the last pane of its key and window or a dead letter, even after a kill."""
    feed, outcome = Feed(seed=17), Outcome(tmp_path)
    topic = KafkaTopic(kafka_broker, name)
    urls = [f"kafka://{kafka_broker.bootstrap}/{name}-{kind}" for kind in ("panes", "letters")]
    for url in urls:
        kafka_broker.create_topic(url.rpartition("/")[2], 2)
    flags = (f"--output={urls[0]}", f"--dead_letters={urls[1]}")
    more = (*flags, f"--checkpoint=sqlite:///{tmp_path}/windows.db")
    with running(stream_flags(tmp_path, topic.url, *more), tmp_path / "log") as job:
        topic.publish(feed.next(RECORDS))
        job.await_that(lambda: len(read_topic(urls[0])) > 0, "panes")
        topic.publish(feed.next(RECORDS))
        job.kill()
    with job_on(tmp_path, topic.url, *more) as job:
        topic.publish(feed.next(RECORDS))
        topic.publish(feed.closing(splits=2))
        job.await_that(lambda: outcome.watermark_ms >= feed.closed_ms, "end of the stream")
        job.await_that(lambda: topic.unsettled() == 2, "settlement of all but the last two")
    keep_last(tmp_path, *map(read_topic, urls))
    check_conservation(feed, outcome)


def keep_last(folder: Path, panes: list[Any], letters: list[Any]) -> None:
    """Puts what a reader of the topics keeps where `Outcome` looks for it."""
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for pane in sorted(
        (got.json for got in panes), key=lambda each: (each["run"], each["pane_index"])
    ):
        last[pane["key"], pane["window_start_ms"]] = pane
    _store(folder / "windows.db", list(last.values()))
    (folder / "dead").mkdir()
    lines = "".join(json.dumps(got.json) + "\n" for got in letters)
    (folder / "dead" / "letters.jsonl").write_text(lines)


def _store(database: Path, panes: list[dict[str, Any]]) -> None:
    names = ("window_start_ms", "key", "value", "count")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f"create table windows ({', '.join(names)})")
        connection.executemany(
            "insert into windows values (?, ?, ?, ?)",
            [tuple(pane[each] for each in names) for pane in panes],
        )

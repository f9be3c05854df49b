"""The Kafka connector, against a broker, and where it can be against librdkafka's mock of one."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import confluent_kafka as kafka
import pytest

from beam_lateness.transforms.sources import kafka_lookup, kafka_reader
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.kafka import Kafka
from beam_lateness.transforms.sources.messages import TOMBSTONE
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import (
    FieldTime,
    MessageTime,
    TimestampAssigner,
)
from tests.model import Event
from tests.topics import MockKafka, mock_kafka
from tests.transforms.sources.kafka_topics import (
    Topic,
    numbered,
    opened,
    take,
    values,
)
from tests.transforms.sources.memory import expected, line_of, stamped
from tests.waiting import TIMEOUT_S, await_that, catch_up

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker

LINE = b'{"k":"a","v":1,"t":5}'
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    """A cluster within the client."""
    with mock_kafka() as cluster:
        yield cluster


@pytest.fixture
def mocked(mock: MockKafka) -> Topic:
    """A topic of it, of four partitions."""
    topic = Topic(mock.bootstrap)
    mock.create_topic(topic.name)
    return topic


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of one partition at the broker."""
    topic = Topic(kafka_broker.bootstrap)
    kafka_broker.create_topic(topic.name, 1)
    return topic


def group_of(
    source: Kafka, timestamps: TimestampAssigner | None = None, bound_ms: int = 0
) -> GroupReader:
    """Reads all splits of a source, stamped."""
    strategy = WatermarkStrategy(bound_ms=bound_ms).with_timestamp_assigner(
        timestamps or FieldTime("t", "ms")
    )
    return Group(source, strategy, [], ReadSettings(max_future_skew_ms=None)).open()


def polled(reader: GroupReader, count: int) -> list[Poll]:
    """Polls until a number of messages has come, records or not."""
    polls: list[Poll] = []

    def enough() -> bool:
        polls.append(reader.poll())
        return (
            sum(len(batch) for p in polls for batch in p.batches)
            + sum(len(p.invalid) for p in polls)
            >= count
        )

    await_that(enough)
    return polls


def test_each_partition_is_a_split_named_by_topic_and_number(mocked: Topic) -> None:
    """Whatever they hold."""
    assert list(mocked.source().initial_positions()) == [mocked.split(n) for n in range(4)]


def test_messages_come_in_the_order_of_their_offsets_which_are_their_positions(
    mocked: Topic,
) -> None:
    """Each partition apart, in blocks of whatever size."""
    source = mocked.source()
    for partition in range(2):
        mocked.produce(*numbered(500, 1000 * partition), partition=partition)
    with opened(source, mocked.split(0)) as one, opened(source, mocked.split(1)) as two:
        assert take(one, 500) == list(enumerate(numbered(500)))
        assert take(two, 500, size=7) == list(enumerate(numbered(500, 1000)))


def test_a_reader_goes_on_from_the_offset_at_which_it_is_opened(mocked: Topic) -> None:
    """As a checkpoint does."""
    mocked.produce(*numbered(10))
    with opened(mocked.source(), mocked.split(), 7) as reader:
        assert take(reader, 3) == list(enumerate(numbered(10)))[7:]


def test_a_source_that_reads_can_be_pickled(mocked: Topic) -> None:
    """And its copy has a client of its own."""
    mocked.produce(*numbered(3))
    source = mocked.source()
    with opened(source, mocked.split()) as one:
        copy = pickle.loads(pickle.dumps(source))
        with opened(copy, mocked.split()) as two:
            assert take(two, 3) == take(one, 3)


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 5), ("committed", 0)])
def test_reading_starts_where_it_is_told(mocked: Topic, start: str, first: int) -> None:
    """A group that has committed nothing starts at the beginning."""
    mocked.produce(*numbered(5))
    source = mocked.source(start=start)
    assert source.initial_positions()[mocked.split()].offset == first
    with opened(source, mocked.split()) as reader:
        mocked.produce(b"new")
        assert values(take(reader, 6 - first)) == [*numbered(5), b"new"][first:]


def test_a_start_of_committed_goes_on_from_the_groups_offsets(mocked: Topic) -> None:
    """In the partitions that have one."""
    mocked.produce(*numbered(5))
    mocked.produce(*numbered(5), partition=1)
    with opened(mocked.source(), mocked.split()) as reader:
        take(reader, 5)
        reader.acknowledge([0, 1, 2], 3)
    positions = mocked.source(start="committed").initial_positions()
    assert positions[mocked.split(0)].offset == 3
    assert positions[mocked.split(1)].offset == 0


def test_an_acknowledgement_commits_the_resume_offset_and_never_more(mocked: Topic) -> None:
    """Whatever the positions are; what is in flight is read again by who starts there."""
    mocked.produce(*numbered(10))
    with opened(mocked.source(), mocked.split()) as reader:
        take(reader, 10)
        assert reader.acknowledge([0, 1, 8, 9], 2) == []
        await_that(lambda: mocked.committed() == 2)
    assert mocked.committed() == 2


def test_close_commits_what_was_acknowledged_last(mocked: Topic) -> None:
    """Though offsets are committed once a second at most."""
    mocked.produce(*numbered(10))
    with opened(mocked.source(), mocked.split()) as reader:
        take(reader, 10)
        for resume in range(1, 8):
            reader.acknowledge([resume - 1], resume)
    assert mocked.committed() == 7


def test_close_commits_nothing_that_was_not_acknowledged(mocked: Topic) -> None:
    """Reading alone moves no offset."""
    mocked.produce(*numbered(10))
    with opened(mocked.source(), mocked.split()) as reader:
        take(reader, 10)
    assert mocked.committed() == kafka.OFFSET_INVALID


def test_the_head_is_the_payloads_of_all_partitions(mocked: Topic) -> None:
    """Tombstones are none; an empty topic has no head, and that is known at once."""
    assert list(mocked.source().head()) == []
    mocked.produce(b"one", None)
    mocked.produce(b"two", partition=3)
    assert sorted(mocked.source().head()) == [(b"", b"one"), (b"", b"two")]


def test_a_partition_that_is_not_read_is_held_in_bounds(
    mocked: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another one is read on; and none of it is lost."""
    monkeypatch.setattr(kafka_reader, "_BUFFERED", 1_000)
    monkeypatch.setattr(kafka_reader, "_MESSAGES_AT_ONCE", 100)
    source, count = mocked.source(), 2_000
    mocked.produce(*numbered(count))
    with opened(source, mocked.split(0)) as still, opened(source, mocked.split(1)) as other:
        (client,) = source._clients
        most = 0
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert other.read(1).empty
            most = max(most, client._bytes[0])
        assert 1_000 <= most < 1_000 + 100 * 300
        assert take(still, count) == list(enumerate(numbered(count)))


class NoMetadata:
    """A consumer to which messages come, but no answer to a question for partitions."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def list_topics(self, *_: Any, **__: Any) -> None:
        """Fails as with a broker that does not answer in time."""
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TRANSPORT))


def test_looking_for_partitions_takes_no_message(mocked: Topic) -> None:
    """Not if it fails, either: each message goes to the reader of its partition."""
    source = mocked.source(discovery="1ms")
    mocked.produce(*numbered(100))
    with opened(source, mocked.split()) as reader:
        known = source.initial_positions()
        (client,) = source._clients
        client._consumer = NoMetadata(client._consumer)
        client._errors.doubt = True
        end = time.monotonic() + 1  # the client fetches on its own, and tells nobody
        while time.monotonic() < end:
            assert source.initial_positions() == known
        assert take(reader, 100) == list(enumerate(numbered(100)))


def test_a_setting_that_the_client_does_not_know_is_refused_with_the_flag(mocked: Topic) -> None:
    """Before anything is asked of the brokers."""
    with pytest.raises(ValueError, match=r"--kafka_properties: .*no\.such\.thing"):
        mocked.source(options={"no.such.thing": "1"}).initial_positions()


@pytest.mark.live
def test_an_unknown_topic_is_told_with_the_remedy(kafka_broker: KafkaBroker) -> None:
    """And is not created by the question."""
    with pytest.raises(ValueError, match="never made: mend --input or create it"):
        Topic(kafka_broker.bootstrap).source().initial_positions()


@pytest.mark.live
def test_a_start_time_is_that_of_the_first_message_not_before_it(topic: Topic) -> None:
    """A time after all messages is the end."""
    for number in range(5):
        topic.produce(b"%d" % number, timestamp=DAY_MS + 10 * number)
    for start_ms, offset in ((0, 0), (DAY_MS + 20, 2), (DAY_MS + 21, 3), (2 * DAY_MS, 5)):
        positions = topic.source(start=start_ms).initial_positions()
        assert positions[topic.split()].offset == offset


@pytest.mark.live
def test_a_partition_that_is_added_later_is_read_from_its_beginning(
    topic: Topic, kafka_broker: KafkaBroker
) -> None:
    """Even where reading started at the end."""
    topic.produce(LINE)
    with closing(group_of(topic.source(start="latest", discovery="100ms"))) as reader:
        reader.poll()
        kafka_broker.add_partitions(topic.name, 2)
        topic.produce(LINE, LINE, partition=1)
        polls = polled(reader, 2)
    assert [record.split for record in stamped(polls)] == [topic.split(1)] * 2


@pytest.mark.live
def test_a_tombstone_is_an_invalid_record_at_its_offset(topic: Topic) -> None:
    """What has no value is no record; it is accounted for."""
    topic.produce(LINE, None, LINE, key=b"key")
    with closing(group_of(topic.source())) as reader:
        polls = polled(reader, 3)
    (invalid,) = [record for poll in polls for record in poll.invalid]
    assert (invalid.reason, invalid.split, invalid.position) == (TOMBSTONE, topic.split(), 1)
    assert len(stamped(polls)) == 2


@pytest.mark.live
@pytest.mark.parametrize(
    ("unit", "value"), [("ms", "86400000"), ("s", "86400"), ("iso", "1970-01-02T00:00:00Z")]
)
def test_a_header_may_hold_the_event_time(topic: Topic, unit: str, value: str) -> None:
    """In its unit; the last one of that name counts, and a message without is invalid."""
    topic.produce(LINE, headers=[("at", b"1"), ("at", value.encode())])
    topic.produce(LINE, headers=[("other", b"1")])
    topic.produce(LINE, headers={"at": b"soon"})
    with closing(group_of(topic.source(), MessageTime("at", unit=unit))) as reader:
        polls = polled(reader, 3)
    assert [record.ts for record in stamped(polls)] == [DAY_MS]
    reasons = {invalid.position: invalid.reason for poll in polls for invalid in poll.invalid}
    assert reasons == {1: "missing_event_time", 2: "bad_event_time"}


@pytest.mark.live
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_the_time_of_a_message_may_be_the_event_time(kafka_broker: KafkaBroker, kind: str) -> None:
    """That of its producer, or that of the broker, whichever the topic keeps."""
    topic = Topic(kafka_broker.bootstrap)
    kafka_broker.create_topic(topic.name, 1, {"message.timestamp.type": kind})
    before = int(time.time() * 1000)
    topic.produce(LINE, timestamp=DAY_MS)
    after = int(time.time() * 1000)
    with closing(group_of(topic.source(), MessageTime())) as reader:
        (record,) = stamped(polled(reader, 1))
    assert record.ts == DAY_MS if kind == "CreateTime" else before <= record.ts <= after


@pytest.mark.live
def test_only_committed_transactions_are_read(topic: Topic) -> None:
    """An aborted one leaves nothing, and its end is no reason to wait."""
    producer = kafka.Producer(
        {"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name, "log_level": 0}
    )
    producer.init_transactions(TIMEOUT_S)
    for value, end in (
        (b"kept", producer.commit_transaction),
        (b"gone", producer.abort_transaction),
        (b"kept too", producer.commit_transaction),
        (b"gone too", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic.name, value, partition=0)
        producer.flush(TIMEOUT_S)
        end(TIMEOUT_S)
    with opened(topic.source(), topic.split()) as reader:
        assert values(take(reader, 2)) == [b"kept", b"kept too"]
        catch_up(reader)


@pytest.mark.live
def test_offsets_that_are_gone_are_told_with_the_remedy(topic: Topic) -> None:
    """Retention took what a checkpoint would go on with: nothing is passed over in silence."""
    topic.produce(*numbered(10))
    admin = kafka.admin.AdminClient({"bootstrap.servers": topic.bootstrap})
    place = kafka.TopicPartition(topic.name, 0, 6)
    admin.delete_records([place])[place].result(TIMEOUT_S)
    with (
        opened(topic.source(), topic.split(), 3) as reader,
        pytest.raises(ValueError, match=r"(?s)partition 0 of topic .*name another --checkpoint"),
    ):
        take(reader, 1)
    with opened(topic.source(), topic.split()) as reader:
        assert take(reader, 4) == list(enumerate(numbered(10)))[6:]


@pytest.mark.live
def test_a_topic_that_is_deleted_while_it_is_read_is_told(
    topic: Topic, kafka_broker: KafkaBroker
) -> None:
    """With what to do; what was written before is given first or not at all."""
    topic.produce(LINE)
    with closing(group_of(topic.source(discovery="100ms"))) as reader:
        polled(reader, 1)
        kafka_broker.delete_topic(topic.name)
        with pytest.raises(ValueError, match="the topic was deleted"):
            await_that(lambda: reader.poll().finished)


@pytest.mark.live
def test_a_wrong_password_is_told_with_the_flag_and_is_not_shown(
    kafka_broker: KafkaBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one than brokers that cannot be reached; the right one reads."""
    monkeypatch.setattr(kafka_lookup, "REQUEST_S", 3.0)
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": kafka_broker.user,
    }
    topic.bootstrap = kafka_broker.sasl_bootstrap
    right = {**options, "sasl.password": kafka_broker.password}
    assert topic.source(options=right).initial_positions()
    with pytest.raises(ValueError, match="mend --kafka_properties") as raised:
        topic.source(options={**options, "sasl.password": "hunter2"}).initial_positions()
    assert "hunter2" not in str(raised.value)


@pytest.mark.live
def test_stamps_of_a_partition_are_those_of_the_sequential_model(topic: Topic) -> None:
    """20,000 records out of order, each by the watermark that the model has before it."""
    chance = random.Random(7)
    events = [
        Event("k", 1, max(0, 10 * n - chance.choice([0, 0, 3, 40, 900])), f"e{n}")
        for n in range(20_000)
    ]
    topic.produce(*(line_of(event).rstrip() for event in events))
    with closing(group_of(topic.source(), bound_ms=50)) as reader:
        records = stamped(polled(reader, len(events)))
    assert {topic.split(): records} == expected({topic.split(): events}, bound=50)

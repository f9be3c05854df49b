"""A Kafka broker that goes away while it is read, and comes back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from beam_lateness.transforms.sources import kafka_lookup, kafka_reader
from beam_lateness.transforms.sources.connector import Block
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.transforms.sources.kafka_topics import (
    SIZE,
    Topic,
    each,
    numbered,
    opened,
    take,
)
from tests.transforms.sources.memory import Clock, states_of
from tests.waiting import await_that, catch_up

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of these tests alone."""
    from services.kafka_broker import KafkaBroker

    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def broker(own_broker: KafkaBroker) -> KafkaBroker:
    """It runs, whatever the test before did with it."""
    own_broker.restart()
    return own_broker


@pytest.fixture
def topic(broker: KafkaBroker) -> Topic:
    """A topic of one partition."""
    topic = Topic(broker.bootstrap)
    broker.create_topic(topic.name, 1)
    return topic


@pytest.fixture
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions to a broker that is down take a second."""
    monkeypatch.setattr(kafka_lookup, "REQUEST_S", 1.0)


def test_after_a_restart_reading_goes_on_with_nothing_lost_or_doubled(
    topic: Topic, broker: KafkaBroker
) -> None:
    """And while the broker is away nobody says that there is nothing more."""
    with opened(topic.source(), topic.split()) as reader:
        topic.produce(*numbered(100))
        assert take(reader, 100) == list(enumerate(numbered(100)))
        catch_up(reader)
        broker.stop()
        catch_up(reader, caught_up=False)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert not reader.read(SIZE).caught_up
        broker.start()
        topic.produce(*numbered(100, 100))
        assert take(reader, 100) == list(enumerate(numbered(200)))[100:]
        catch_up(reader)


def test_what_was_fetched_before_the_broker_went_away_is_not_lost(
    topic: Topic, broker: KafkaBroker, short_requests: None
) -> None:
    """Not by looking for new partitions meanwhile, either."""
    source = topic.source(discovery="1ms")
    topic.produce(*numbered(1_000))
    with opened(source, topic.split()) as reader:
        got = take(reader, 1, size=1)
        topic.produce(*numbered(1_000, 1_000))
        end = time.monotonic() + 1  # the client fetches ahead on its own, and tells nobody
        while time.monotonic() < end:
            source.initial_positions()
        broker.stop()
        assert list(source.initial_positions()) == [topic.split()]
        broker.start()
        got += take(reader, 1_999)
    assert got == list(enumerate(numbered(2_000)))


def test_looking_for_partitions_survives_that_the_broker_is_away(
    topic: Topic, broker: KafkaBroker, short_requests: None
) -> None:
    """The known ones stand; a partition that was added is found when the broker is back."""
    source = topic.source(discovery="1ms")
    with opened(source, topic.split()) as reader:
        known = source.initial_positions()
        catch_up(reader)
        broker.stop()
        for _ in range(3):
            assert source.initial_positions() == known
        broker.start()
        broker.add_partitions(topic.name, 2)

        def found() -> bool:
            reader.read(SIZE)
            return topic.split(1) in source.initial_positions()

        await_that(found)


@pytest.mark.parametrize("look_again_s", [1.0, 0.01], ids=["polled-often", "polled-rarely"])
def test_an_answer_from_before_an_outage_is_no_answer_after_it(
    topic: Topic, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, look_again_s: float
) -> None:
    """What was written meanwhile comes before anybody says that there is nothing more."""
    monkeypatch.setattr(kafka_reader, "_LOOK_AGAIN_S", look_again_s)
    with opened(topic.source(), topic.split()) as reader:
        catch_up(reader)
        broker.stop()
        catch_up(reader, caught_up=False)
        broker.start()
        topic.produce(b"written meanwhile")
        blocks: list[Block] = []

        def arrived() -> bool:
            blocks.append(reader.read(SIZE))
            return not blocks[-1].empty

        await_that(arrived)
    assert each(blocks[-1].messages) == [(0, b"written meanwhile")]
    assert not any(block.caught_up for block in blocks[:-1])


def test_an_outage_that_the_client_library_does_not_tell_is_noticed(
    topic: Topic, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves out what it has told before, and connections that a broker has closed."""
    monkeypatch.setattr(kafka_lookup.Errors, "__call__", lambda self, error: None)
    monkeypatch.setattr(kafka_reader, "_SILENCE_S", 1.0)
    with opened(topic.source(), topic.split()) as reader:
        catch_up(reader)
        broker.stop()
        catch_up(reader, caught_up=False)
        broker.start()
        catch_up(reader)


def test_an_outage_before_partitions_were_ever_looked_for_is_told_once(
    topic: Topic, broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """What is read is known; nothing is asked for again and again."""
    source = topic.source(discovery="1ms")
    with opened(source, topic.split()) as reader:
        broker.stop()
        caplog.set_level(logging.WARNING)
        assert list(source.initial_positions()) == [topic.split()]
        catch_up(reader, caught_up=False)
        (told,) = [record.getMessage() for record in caplog.records]
        assert "the brokers do not answer" in told
        broker.start()


def test_a_client_that_has_lost_its_brokers_for_good_is_replaced(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on where it stood: nothing is lost, nothing comes twice."""
    monkeypatch.setattr(kafka_reader, "_SILENCE_S", 0.0)
    monkeypatch.setattr(kafka_reader, "_RENEW_S", 1.0)
    with opened(topic.source(), topic.split()) as reader:
        topic.produce(*numbered(100))
        got = take(reader, 50, size=1)
        client = reader._client
        client._consumer.close()
        nowhere = replace(topic.source(), bootstrap="127.0.0.1:1")
        client._consumer = kafka_lookup.consumer_of(nowhere, client._errors)
        topic.produce(*numbered(100, 100))
        got += take(reader, 150)
        catch_up(reader)
    assert got == list(enumerate(numbered(200)))


@pytest.mark.parametrize("records", [0, 1])
def test_a_silent_partition_can_become_idle_but_not_while_the_broker_is_away(
    topic: Topic, broker: KafkaBroker, records: int
) -> None:
    """Idle is who is known to have nothing; the clock alone makes nobody so."""
    clock = Clock(1_000)
    strategy = (
        WatermarkStrategy(bound_ms=0)
        .with_timestamp_assigner(FieldTime("t", "ms"))
        .with_idleness("10s")
    )
    group = Group(topic.source(), strategy, [], ReadSettings(clock=clock))
    with closing(group.open()) as reader:

        def state() -> str:
            return states_of(reader.poll())[topic.split()]

        topic.produce(*[b'{"k":"a","v":1,"t":5}'] * records)
        await_that(lambda: reader.poll().status.splits[0].records == records)
        splits = reader.readers()
        await_that(lambda: reader.poll().wait_s > 0 and reader._splits[topic.split()].caught_up)
        broker.stop()
        catch_up(splits[topic.split()], caught_up=False)
        clock.sleep(60)
        assert [state() for _ in range(20)] == ["active"] * 20
        broker.start()

        def idle() -> bool:
            clock.sleep(1)
            return state() == "idle"

        await_that(idle)


@pytest.mark.parametrize("acknowledged", [False, True], ids=["nothing", "something"])
def test_closing_does_not_wait_for_a_broker_that_is_away(
    topic: Topic, broker: KafkaBroker, acknowledged: bool
) -> None:
    """The offsets are for who looks on: a job that is told to end ends."""
    with opened(topic.source(), topic.split()) as reader:
        topic.produce(*numbered(10))
        take(reader, 10)
        reader.acknowledge([], 5)
        await_that(lambda: topic.committed() == 5)
        if acknowledged:
            reader.acknowledge([], 6)
        broker.stop()
        catch_up(reader, caught_up=False)
        closing_ = threading.Thread(target=reader.close, daemon=True)
        closing_.start()
        closing_.join(10)
        ended = not closing_.is_alive()
        broker.start()
        closing_.join(60)
    assert ended


def test_an_outage_is_told_in_a_few_lines(
    topic: Topic, broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in one for each attempt to connect."""
    with opened(topic.source(), topic.split()) as reader:
        catch_up(reader)
        broker.stop()
        caplog.set_level(logging.WARNING)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            reader.read(SIZE)
        assert 1 <= len(caplog.records) < 10
        broker.start()

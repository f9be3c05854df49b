"""The Pub/Sub connector, against a server: what it reads, holds, lets go of and gives back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from beam_lateness.transforms.sources import pubsub_reader
from beam_lateness.transforms.watermarks.timestamps import MessageTime
from tests.transforms.sources.memory import stamped
from tests.transforms.sources.pubsub_topics import (
    SIZE,
    Subscribed,
    group_of,
    opened,
    polled,
    take,
)
from tests.waiting import await_that, catch_up

if TYPE_CHECKING:
    from services.pubsub_server import PubsubServer

pytestmark = pytest.mark.live

LINE = b'{"k":"a","v":1,"t":5,"id":"x"}'
DAY_MS = 86_400_000
METHODS = ("Pull", "Acknowledge", "ModifyAckDeadline", "GetSubscription")
LEASE_S = 2


@pytest.fixture(autouse=True)
def server(pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PubsubServer]:
    """The server, which clients find by the environment; no failure outlives a test."""
    for variable, value in pubsub_server.environment.items():
        monkeypatch.setenv(variable, value)
    yield pubsub_server
    for method in METHODS:
        pubsub_server.fail(method, times=0)


@pytest.fixture
def topic(server: PubsubServer) -> Subscribed:
    """A topic with a subscription, whose own deadline does not end within a test."""
    return Subscribed(server)


def test_a_message_is_named_by_its_id_and_offsets_count_on(topic: Subscribed) -> None:
    """From where the last run stood, in blocks of whatever size."""
    ids = topic.publish(b"one", b"two", b"three")
    got: dict[Any, Any] = {}
    offsets: list[int] = []
    with opened(topic.source(), offset=7) as reader:

        def enough() -> bool:
            messages = reader.read(1).messages
            if messages is not None:
                assert len(messages) == 1
                got.update(zip(messages.positions, messages.payloads, strict=True))
                offsets.extend([*messages.offsets, messages.stop])
            return len(got) == len(ids)

        await_that(enough)
    assert got == dict(zip(ids, (b"one", b"two", b"three"), strict=True))
    assert offsets == [7, 8, 8, 9, 9, 10]


def test_every_message_is_given_once(topic: Subscribed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many pulls."""
    monkeypatch.setattr(pubsub_reader, "_PULL_MESSAGES", 10)
    payloads = [b"%d" % number for number in range(100)]
    ids = topic.publish(*payloads)
    with opened(topic.source()) as reader:
        assert take(reader, len(ids)) == dict(zip(ids, payloads, strict=True))


@pytest.mark.parametrize(
    ("unit", "value"), [("ms", "86400000"), ("s", "86400"), ("iso", "1970-01-02T00:00:00Z")]
)
def test_an_attribute_may_hold_the_event_time(topic: Subscribed, unit: str, value: str) -> None:
    """In its unit; a message without it, or with something else in it, is invalid."""
    topic.publish(LINE, at=value)
    (without,) = topic.publish(LINE, other=value)
    (wrong,) = topic.publish(LINE, at="soon")
    with closing(group_of(topic.source(), MessageTime("at", unit=unit))) as reader:
        polls = polled(reader, 3)
    assert [record.ts for record in stamped(polls)] == [DAY_MS]
    reasons = {invalid.position: invalid.reason for poll in polls for invalid in poll.invalid}
    assert reasons == {without: "missing_event_time", wrong: "bad_event_time"}


def test_the_publish_time_may_be_the_event_time(topic: Subscribed) -> None:
    """Whatever the payload says."""
    before = int(time.time() * 1000)
    topic.publish(LINE)
    after = int(time.time() * 1000)
    with closing(group_of(topic.source(), MessageTime())) as reader:
        (record,) = stamped(polled(reader, 1))
    assert before <= record.ts <= after


def test_several_subscriptions_are_splits_of_one_group(server: PubsubServer) -> None:
    """Each with a watermark of its own, of which the group has the lowest."""
    one, two = Subscribed(server), Subscribed(server)
    with closing(group_of(one.source(two))) as reader:
        assert reader.positions.keys() == {one.name, two.name}
        one.publish(b'{"k":"a","v":1,"t":500,"id":"x"}')
        two.publish(b'{"k":"a","v":1,"t":300,"id":"y"}')
        records = stamped(polled(reader, 2))
        assert {(each.split, each.name) for each in records} == {(one.name, "x"), (two.name, "y")}
        reached = {split.split: split.watermark_ms for split in reader.status.splits}
        assert reached[two.name] == reader.status.watermark_ms
        assert reached[one.name] == 200 + (reached[two.name] or 0)
        assert {name: each.offset for name, each in reader.positions.items()} == dict.fromkeys(
            (one.name, two.name), 1
        )


def test_reading_acknowledges_nothing(topic: Subscribed) -> None:
    """Nor does closing."""
    topic.publish(LINE, b"no record")
    with closing(group_of(topic.source())) as reader:
        polled(reader, 2)
        assert topic.acknowledged() == set()
    assert topic.acknowledged() == set()


def test_exactly_the_messages_that_are_named_are_acknowledged(
    topic: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests it takes; those of an earlier run are none of this one's."""
    monkeypatch.setattr(pubsub_reader, "_IDS_AT_ONCE", 2)
    ids = topic.publish(*[LINE] * 7)
    with opened(topic.source()) as reader:
        take(reader, len(ids))
        assert reader.acknowledge([*ids[:5], "of an earlier run"], 0) == []
        assert topic.acknowledged() == set(ids[:5])
        assert reader.acknowledge([], 0) == []
    assert topic.acknowledged() == set(ids[:5])


def test_a_lease_is_extended_as_long_as_the_reader_is_open(server: PubsubServer) -> None:
    """For longer than three of them, and from the beginning for no longer than a lease."""
    topic = Subscribed(server, deadline_s=1)
    (held,) = topic.publish(LINE)
    with opened(topic.source(lease=f"{LEASE_S}s")) as reader:
        take(reader, 1)
        began = time.monotonic()
        await_that(lambda: len(topic.told(held)["modacks"]) > 3 * 3 + 2)  # three a lease
        assert time.monotonic() - began > 3 * LEASE_S
        told = topic.told(held)
        assert (told["deliveries"], told["acks"]) == (1, 0)
        assert {each["deadline_s"] for each in told["modacks"]} == {LEASE_S}
        assert reader.read(SIZE).empty


def test_close_gives_back_at_once(topic: Subscribed) -> None:
    """What was read, and what was only pulled: well before the subscription's deadline."""
    ids = topic.publish(b"a", b"b", b"c")
    with opened(topic.source()) as reader:
        await_that(lambda: len(reader._leases) == len(ids))
        assert len(reader.read(1).messages or ()) == 1
    with opened(topic.source()) as again:
        assert take(again, len(ids), seconds=5).keys() == set(ids)


def test_a_reader_that_gives_back_takes_no_more(
    topic: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last pull is over: what that got would be nobody's until the subscription's deadline."""
    (held,) = topic.publish(LINE)
    with opened(topic.source()) as reader:
        take(reader, 1)
        modify = reader._modify

        def give_back(ack_ids: list[str], seconds: int) -> None:
            modify(ack_ids, seconds)
            if held in {ack_id.rpartition(":")[0] for ack_id in ack_ids} and not seconds:
                end = time.monotonic() + 1  # as long as a pull takes here
                while time.monotonic() < end and topic.told(held)["deliveries"] == 1:
                    time.sleep(0.01)

        monkeypatch.setattr(reader, "_modify", give_back)
    assert topic.told(held)["deliveries"] == 1


def test_a_message_in_flight_that_comes_again_is_not_given_again(topic: Subscribed) -> None:
    """Its latest delivery is the one that is acknowledged."""
    (held,) = topic.publish(b"held")
    with opened(topic.source()) as reader:
        take(reader, 1)
        topic.steal(reader)
        await_that(lambda: topic.told(held)["deliveries"] == 2)
        (after,) = topic.publish(b"after")
        assert take(reader, 1) == {after: b"after"}
        assert reader.acknowledge([held], 0) == []
    assert topic.acknowledged() == {held}


def test_an_acknowledged_message_that_comes_again_is_acknowledged_again(
    topic: Subscribed,
) -> None:
    """And not given: the service took the first acknowledgement for that of an old delivery."""
    (held,) = topic.publish(b"held")
    with opened(topic.source(max_in_flight=1)) as reader:
        take(reader, 1)
        with opened(topic.source()) as thief:
            topic.steal(reader)  # and it pulls no more, since it holds all that it may
            take(thief, 1)
            assert reader.acknowledge([held], 0) == []
            assert topic.acknowledged() == set()
        await_that(lambda: topic.told(held)["deliveries"] == 3)
        (after,) = topic.publish(b"after")
        assert take(reader, 1) == {after: b"after"}
        assert reader.acknowledge([], 0) == []
    assert topic.acknowledged() == {held}


@pytest.mark.parametrize("method", ["Pull", "Acknowledge", "ModifyAckDeadline"])
def test_a_service_that_is_unavailable_for_a_while_is_asked_again(
    topic: Subscribed, server: PubsubServer, method: str
) -> None:
    """Nothing is lost, and nothing given twice."""
    server.fail(method, "UNAVAILABLE", 2)
    ids = topic.publish(b"a", b"b")
    with opened(topic.source()) as reader:
        assert take(reader, 2).keys() == set(ids)
        left: list[int | str] = list(ids)
        while left:  # as a session does, poll by poll
            left = reader.acknowledge(left, 0)
    assert topic.acknowledged() == set(ids)


def test_a_service_that_does_not_answer_is_no_silence(
    topic: Subscribed, server: PubsubServer
) -> None:
    """An empty block says so, and that it is over when it is."""
    with opened(topic.source()) as reader:
        catch_up(reader)
        server.fail("Pull", "UNAVAILABLE", 1000)
        catch_up(reader, caught_up=False)
        server.fail("Pull", times=0)
        catch_up(reader)


def test_what_could_not_be_acknowledged_is_told_and_can_be_tried_again(
    topic: Subscribed, server: PubsubServer
) -> None:
    """It stays in flight meanwhile."""
    ids = topic.publish(b"a", b"b", b"c")
    with opened(topic.source()) as reader:
        take(reader, 3)
        server.fail("Acknowledge", "INTERNAL")
        left = reader.acknowledge(ids[:2], 0)
        assert left == ids[:2]
        assert topic.acknowledged() == set()
        assert reader.acknowledge(left, 0) == []
    assert topic.acknowledged() == set(ids[:2])


def test_a_subscription_that_is_deleted_while_it_is_read_is_told(topic: Subscribed) -> None:
    """With what to do; what came before is given first."""
    ids = topic.publish(b"before")
    with opened(topic.source()) as reader:
        await_that(lambda: len(reader._leases) == 1)
        topic.delete()
        assert take(reader, 1).keys() == set(ids)
        with pytest.raises(ValueError, match=rf"{topic.name} .*mend --input or create it"):
            catch_up(reader, caught_up=False)


def test_a_subscription_that_is_not_there_is_told_before_and_when_it_is_read(
    topic: Subscribed,
) -> None:
    """With what to do."""
    topic.delete()
    message = rf"{topic.name} \(--input\).*never made: mend --input or create it"
    with pytest.raises(ValueError, match=message):
        topic.source().check(ordered_allowed=False)
    with opened(topic.source()) as reader, pytest.raises(ValueError, match=message):
        catch_up(reader, caught_up=False)


def test_a_denied_pull_is_told_with_the_role_that_is_needed(
    topic: Subscribed, server: PubsubServer
) -> None:
    """And is not tried again: time mends nothing."""
    server.fail("Pull", "PERMISSION_DENIED", 1000)
    with (
        opened(topic.source()) as reader,
        pytest.raises(ValueError, match=r"roles/pubsub\.subscriber"),
    ):
        catch_up(reader, caught_up=False)


def test_who_may_read_but_not_ask_is_let_in(topic: Subscribed, server: PubsubServer) -> None:
    """Reading needs less."""
    server.fail("GetSubscription", "PERMISSION_DENIED", 1)
    topic.source().check(ordered_allowed=False)


def test_a_subscription_that_orders_is_refused_where_results_come_first(
    server: PubsubServer, topic: Subscribed
) -> None:
    """With the remedy; where messages are acknowledged promptly it may be read."""
    source = topic.source(Subscribed(server, ordered=True))
    source.check(ordered_allowed=True)
    with pytest.raises(ValueError, match="Use a subscription without ordering on the same topic"):
        source.check(ordered_allowed=False)
    topic.source().check(ordered_allowed=False)


def test_prompt_acknowledgement_reads_each_key_in_its_order(server: PubsubServer) -> None:
    """The next of a key comes when the one before is acknowledged."""
    topic = Subscribed(server, ordered=True)
    wanted = {key: topic.publish(*(b"%d" % n for n in range(4)), key=key) for key in "ab"}
    got: list[str] = []
    with opened(topic.source()) as reader:

        def all_read() -> bool:
            messages = reader.read(SIZE).messages
            if messages is not None:
                positions = list(map(str, messages.positions))
                got.extend(positions)
                assert reader.acknowledge(positions, 0) == []
            return len(got) >= 8

        await_that(all_read)
    assert len(got) == 8
    for ids in wanted.values():
        assert [position for position in got if position in ids] == ids

"""The Pub/Sub connector: how much it holds, and when it knows that all has come again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from google.cloud import pubsub_v1

from beam_lateness.transforms.sources import pubsub_reader
from beam_lateness.transforms.sources.pubsub_reader import PubSubReader
from tests.transforms.sources.pubsub_topics import (
    SIZE,
    Subscribed,
    opened,
    take,
)
from tests.waiting import await_that, catch_up

if TYPE_CHECKING:
    from services.pubsub_server import PubsubServer

pytestmark = pytest.mark.live

LEASE_S = 2


@pytest.fixture(autouse=True)
def server(pubsub_server: PubsubServer, monkeypatch: pytest.MonkeyPatch) -> PubsubServer:
    """The server, which clients find by the environment."""
    for variable, value in pubsub_server.environment.items():
        monkeypatch.setenv(variable, value)
    return pubsub_server


@pytest.fixture
def topic(server: PubsubServer) -> Subscribed:
    """A topic with a subscription, whose own deadline does not end within a test."""
    return Subscribed(server)


def await_warning(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Waits until something was said."""
    await_that(lambda: any(text in record.getMessage() for record in caplog.records))


def test_at_the_limit_nothing_is_pulled_until_something_is_acknowledged(
    topic: Subscribed, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, with the name of the setting; then reading goes on by itself."""
    ids = topic.publish(b"a", b"b")
    with opened(topic.source(max_in_flight=2)) as reader:
        take(reader, 2)
        await_warning(caplog, "raise max_in_flight")
        (more,) = topic.publish(b"more")
        catch_up(reader)
        assert topic.told(more)["deliveries"] == 0
        reader.acknowledge(ids[:1], 0)
        assert take(reader, 1) == {more: b"more"}


def test_never_more_than_the_limit_are_held(topic: Subscribed) -> None:
    """However many are waiting."""
    topic.publish(*[b"x"] * 12)
    got = most = 0
    with opened(topic.source(max_in_flight=5)) as reader:
        while got < 12:
            await_that(lambda: len(reader._leases) > 0)
            most = max(most, len(reader._leases))
            positions = [str(each) for each in getattr(reader.read(SIZE).messages, "positions", ())]
            got += len(positions)
            reader.acknowledge(positions, 0)
    assert most <= 5


def recovery_of(reader: PubSubReader, *, clean: bool) -> tuple[float, float | None]:
    """Reads until all is said to have come again.

    Returns:
        After how many seconds that was, and after how many the first message came.
    """
    began = time.monotonic()
    came: list[float] = []

    def recovered() -> bool:
        if not reader.read(SIZE).empty:
            came.append(time.monotonic() - began)
        return reader.recovered(0, clean)

    await_that(recovered)
    return time.monotonic() - began, came[0] if came else None


def test_after_a_crash_recovery_ends_when_the_lease_has_and_nothing_more_is_there(
    topic: Subscribed,
) -> None:
    """Not before, though nothing was there all the time; and soon after."""
    began = time.monotonic()
    with opened(topic.source(lease=f"{LEASE_S}s")) as reader:
        catch_up(reader)
        assert not reader.recovered(0, clean=False)
        recovery_of(reader, clean=False)
    assert LEASE_S < time.monotonic() - began < LEASE_S + 3


def test_after_an_end_in_order_recovery_is_a_matter_of_a_moment(topic: Subscribed) -> None:
    """Whatever the lease is."""
    with opened(topic.source(lease="60s")) as reader:
        catch_up(reader)
        took, _ = recovery_of(reader, clean=True)
    assert took < LEASE_S + 1


def test_what_a_crashed_reader_held_comes_before_recovery_ends(topic: Subscribed) -> None:
    """Its lease began when it pulled, before the next reader was there."""
    (held,) = topic.publish(b"held")
    with opened(topic.source(lease=f"{LEASE_S}s")) as crashed:
        take(crashed, 1)
        with killed(crashed), opened(topic.source(lease=f"{LEASE_S}s")) as reader:
            took, came = recovery_of(reader, clean=False)
            assert topic.told(held)["deliveries"] == 2
    assert came is not None
    assert came < took


@contextmanager
def killed(reader: PubSubReader) -> Iterator[None]:
    """Stops a reader's threads, and gives nothing back."""
    with reader._changed:
        reader._stopped = True
        reader._changed.notify_all()
    for thread in reader._threads:
        thread.join(10)
    yield


@pytest.mark.parametrize("clean", [False, True])
def test_recovery_does_not_end_while_a_pull_is_unanswered(
    topic: Subscribed, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    """What comes again takes many pulls: between two of them the reader has nothing, either."""
    monkeypatch.setattr(pubsub_reader, "_PULL_MESSAGES", 1)
    topic.publish(b"a", b"b")
    second, answered = threading.Event(), threading.Event()
    pull: Any = pubsub_v1.SubscriberClient.pull
    first = threading.Event()

    def slow_pull(*arguments: Any, **named: Any) -> Any:
        if first.is_set():
            second.set()
            answered.wait(5)
        first.set()
        return pull(*arguments, **named)

    monkeypatch.setattr(pubsub_v1.SubscriberClient, "pull", slow_pull)
    with opened(topic.source(lease="1s")) as reader:
        try:
            take(reader, 1)
            await_that(second.is_set)
            began = time.monotonic()

            def waits_long_enough() -> bool:
                assert reader.read(SIZE).empty
                assert not reader.recovered(0, clean), "there is one more to come"
                return time.monotonic() - began > 1.5

            await_that(waits_long_enough)
        finally:
            answered.set()
        take(reader, 1)
        await_that(lambda: reader.read(SIZE).empty and reader.recovered(0, clean))


def test_recovery_ends_at_last_where_there_is_always_more(
    topic: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New messages must not hold the watermark for ever."""
    monkeypatch.setattr(pubsub_reader, "_RECOVERY_S", 1.0)
    ids = topic.publish(*[b"x"] * 60)
    monkeypatch.setattr(pubsub_reader, "_PULL_MESSAGES", 1)
    with opened(topic.source(lease="1s")) as reader:
        began = time.monotonic()
        await_that(lambda: reader.recovered(0, clean=False))
        assert 2 - 0.1 < time.monotonic() - began < 5
        assert len(ids) == 60

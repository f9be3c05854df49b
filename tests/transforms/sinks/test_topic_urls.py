"""The URLs of topics: what is wrong with one is told before anything runs."""

from __future__ import annotations

import pytest

from beam_lateness.transforms.sinks.topic_urls import (
    KafkaTopic,
    PubSubTopic,
    is_topic,
    parse_topic,
)


def test_a_pubsub_url_names_project_and_topic() -> None:
    """As the API does."""
    topic = parse_topic("pubsub://projects/shop-1/topics/panes")
    assert topic == PubSubTopic("shop-1", "panes")
    assert topic.path == "projects/shop-1/topics/panes"


@pytest.mark.parametrize("servers", ["a:9092", "a:1,b.example:65535", "[::1]:9092"])
def test_a_kafka_url_names_brokers_and_topic(servers: str) -> None:
    """One broker or several."""
    assert parse_topic(f"kafka://{servers}/panes.v1") == KafkaTopic(servers, "panes.v1")


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("pubsub://", "has no project"),
        ("pubsub://projects//topics/t", "has no project"),
        ("pubsub://topics/t", "has no project"),
        ("pubsub://projects/p", "has no topic"),
        ("pubsub://projects/p/topics", "has no topic"),
        ("pubsub://projects/p/topics/", "has no topic"),
        ("pubsub://projects/p/subscriptions/s", "names a subscription"),
        ("pubsub://projects/p/topics/t/more", "more than a project and a topic"),
        ("pubsub://projects/p/topics/t?x=1", "more than a project and a topic"),
        ("kafka://", "has no host"),
        ("kafka:///panes", "has no host"),
        ("kafka://a:9092", "has no topic"),
        ("kafka://a:9092/", "has no topic"),
        ("kafka://a/panes", "'a' where HOST:PORT"),
        ("kafka://a:9092,b/panes", "'b' where HOST:PORT"),
        ("kafka://a:9092,/panes", "'' where HOST:PORT"),
        ("kafka://a:70000/panes", "'a:70000' where HOST:PORT"),
        ("kafka://a:9092/panes/x", "'panes/x' where a topic"),
        ("kafka://a:9092/panes?x=1", "'panes?x=1' where a topic"),
    ],
)
def test_a_wrong_url_is_told_with_what_is_wrong_and_the_right_form(url: str, wrong: str) -> None:
    """With the flag and the value too."""
    with pytest.raises(ValueError, match="--to") as caught:
        parse_topic(url, "--to")
    scheme = url.partition("//")[0]
    assert wrong in str(caught.value)
    assert repr(url) in str(caught.value)
    assert f"give {scheme}//" in str(caught.value)


def test_a_login_in_a_url_is_refused() -> None:
    """URLs are logged: it belongs into the options."""
    with pytest.raises(ValueError, match="Kafka options"):
        parse_topic("kafka://me:secret@a:9092/panes")


def test_what_is_no_topic_at_all_is_told_both_forms() -> None:
    """Such as a file."""
    with pytest.raises(ValueError, match=r"pubsub://.* or kafka://"):
        parse_topic("sqlite:///windows.db")


def test_a_wrongly_written_topic_is_still_meant_as_one() -> None:
    """So that its own message is told, and not a database's."""
    wanted = {"kafka://": True, "pubsub://x": True, "sqlite:///kafka": False, "kafka": False}
    assert {url: is_topic(url) for url in wanted} == wanted

"""The URLs of topics."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

from beam_lateness.transforms.database import without_login

PUBSUB: Final = "pubsub://"
KAFKA: Final = "kafka://"
PUBSUB_FORM: Final = "pubsub://projects/PROJECT/topics/TOPIC"
KAFKA_FORM: Final = "kafka://HOST:PORT[,HOST:PORT]/TOPIC"

_KAFKA_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class PubSubTopic(NamedTuple):
    """A topic of Google Cloud Pub/Sub."""

    project: str
    topic: str

    @property
    def path(self) -> str:
        """Its name in the API."""
        return f"projects/{self.project}/topics/{self.topic}"


class KafkaTopic(NamedTuple):
    """A topic of Kafka, and the brokers to ask first (`HOST:PORT`, with commas)."""

    servers: str
    topic: str


Topic: TypeAlias = PubSubTopic | KafkaTopic


def is_topic(url: str) -> bool:
    """Says whether a URL is meant as a topic, rightly written or not.

    Example:
        >>> is_topic("kafka://localhost:9092/panes"), is_topic("sqlite:///windows.db")
        (True, False)
    """
    return url.startswith((PUBSUB, KAFKA))


def parse_topic(url: str, name: str = "url") -> Topic:
    """Reads a topic's URL.

    Args:
        url: `pubsub://projects/P/topics/T` or `kafka://HOST:PORT[,HOST:PORT]/TOPIC`.
        name: The parameter or flag, for the error message.

    Raises:
        ValueError: If it is no such URL; it says what is wrong.

    Example:
        >>> parse_topic("kafka://a:9092,b:9092/panes")
        KafkaTopic(servers='a:9092,b:9092', topic='panes')
        >>> parse_topic("pubsub://projects/shop/topics/panes").path
        'projects/shop/topics/panes'
    """
    try:
        if url.startswith(PUBSUB):
            return _parse_pubsub(url.removeprefix(PUBSUB))
        if url.startswith(KAFKA):
            return _parse_kafka(url.removeprefix(KAFKA))
    except ValueError as error:
        form = PUBSUB_FORM if url.startswith(PUBSUB) else KAFKA_FORM
        msg = f"{name} {without_login(url)!r} {error}; give {form}"
        raise ValueError(msg) from None
    msg = f"{name} must be a topic, got {without_login(url)!r}; give {PUBSUB_FORM} or {KAFKA_FORM}"
    raise ValueError(msg)


def _parse_pubsub(rest: str) -> PubSubTopic:
    parts = rest.split("/")
    kind, project, collection, topic = (*parts, "", "", "")[:4]
    if kind != "projects" or not project:
        msg = "has no project"
    elif collection == "subscriptions":
        msg = "names a subscription, which is read from, where a topic is needed"
    elif collection != "topics" or not topic:
        msg = "has no topic"
    elif len(parts) > 4 or re.search(r"[\s?#]", rest):
        msg = "holds more than a project and a topic"
    else:
        return PubSubTopic(project, topic)
    raise ValueError(msg)


def _parse_kafka(rest: str) -> KafkaTopic:
    servers, _, topic = rest.partition("/")
    if not servers:
        msg = "has no host"
        raise ValueError(msg)
    if "@" in servers:
        msg = "holds a login, which belongs into the Kafka options (URLs are logged)"
        raise ValueError(msg)
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            msg = f"has {server!r} where HOST:PORT is needed"
            raise ValueError(msg)
    if not topic:
        msg = "has no topic"
        raise ValueError(msg)
    if not _KAFKA_NAME.fullmatch(topic):
        msg = f"has {topic!r} where a topic is needed (letters, digits, '.', '_' and '-')"
        raise ValueError(msg)
    return KafkaTopic(servers, topic)

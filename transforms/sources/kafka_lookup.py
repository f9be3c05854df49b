"""What a Kafka topic holds, asked before it is read: partitions, offsets, first payloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from beam_lateness.transforms.kafka_metadata import ask_topic
from beam_lateness.transforms.times import Duration

_OURS: Final = {
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
}
REQUEST_S: Final = 15.0
_HEAD_MESSAGES: Final = 200
_HEAD_S: Final = 10.0
_REFUSED: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._SSL,
)


class Settings(Protocol):
    """What must be known of a topic (see `Kafka`)."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str | None: ...
    @property
    def start(self) -> str | int: ...
    @property
    def options(self) -> Mapping[str, str]: ...
    @property
    def batch(self) -> Duration: ...
    @property
    def discovery(self) -> Duration: ...


class Errors:
    """What the client library tells of its connections.

    Attributes:
        last: The latest.
        refused: The latest by which a broker refused the client.
        doubt: Whether there was one since a broker has answered.
    """

    def __init__(self) -> None:
        self.last: KafkaError | None = None
        self.refused: KafkaError | None = None
        self.doubt = False

    def __call__(self, error: KafkaError) -> None:
        self.last = error
        self.doubt = True
        if error.code() in _REFUSED:
            self.refused = error

    def is_refused(self) -> bool:
        """Whether a broker has refused the client."""
        return self.refused is not None


def consumer_of(
    source: Settings,
    errors: Errors,
    committed: Callable[[KafkaError | None, list[TopicPartition]], None] | None = None,
) -> Consumer:
    """Makes a consumer that commits nothing by itself.

    Args:
        source: The topic.
        errors: Told what goes wrong with connections.
        committed: Told how a commit went.

    Raises:
        ValueError: If a setting of the client library is wrong, or is not the user's to make.
    """
    if own := sorted(_OURS & source.options.keys()):
        msg = (
            f"--kafka_properties (options): {own[0]} is settled by the job itself; leave it out "
            "(the group stands in --input, as ?group=NAME)"
        )
        raise ValueError(msg)
    settings: dict[str, Any] = {
        "group.id": source.group or "beam-lateness",
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": "65536",
        "fetch.wait.max.ms": "100",
        "log_level": "2",  # what matters of it comes by `error_cb`, and is said once
        **source.options,
        "bootstrap.servers": source.bootstrap,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
        "error_cb": errors,
    }
    if committed is not None:
        settings["on_commit"] = committed
    try:
        return Consumer(settings)
    except KafkaException as error:
        msg = f"--kafka_properties: {error.args[0].str()}"
        raise ValueError(msg) from error


def partitions_of(consumer: Consumer, source: Settings, errors: Errors) -> list[int]:
    """Asks for the topic's partitions, with a consumer that reads nothing yet.

    Raises:
        ValueError: If the brokers cannot be reached, refuse, or have no such topic.
    """
    try:
        topic = ask_topic(confluent_kafka, consumer, source.topic, REQUEST_S, errors.is_refused)
    except KafkaException as error:
        why = errors.refused or errors.last or error.args[0]
        raise ValueError(explain(source, why)) from error
    return _partitions(source, topic)


def look_up(consumer: Consumer, source: Settings, timeout_s: float) -> list[int]:
    """Asks for the topic's partitions; takes no message.

    Raises:
        KafkaException: If no broker answers.
        ValueError: If there is no such topic, or it may not be read.
    """
    return _partitions(source, consumer.list_topics(source.topic, timeout_s).topics[source.topic])


def _partitions(source: Settings, topic: Any) -> list[int]:
    if topic.error is not None:
        raise ValueError(explain(source, topic.error))
    return sorted(topic.partitions)


def explain(source: Settings, error: KafkaError) -> str:
    """Says why a topic cannot be read, and what helps."""
    remedy = "see that --input names brokers that can be reached from here"
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        remedy = "the topic was deleted, or never made: mend --input or create it"
    elif error.code() in _REFUSED:
        remedy = "the brokers refuse these credentials: mend --kafka_properties"
    elif error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    ):
        remedy = "allow the job's user to read the topic, and to use the group"
    return f"topic {source.topic} at {source.bootstrap} cannot be read: {error.str()}; {remedy}"


def start_offsets(source: Settings) -> dict[int, int]:
    """Gives the partitions of a topic, and where to begin in each.

    Raises:
        ValueError: If they cannot be had.
    """
    errors = Errors()
    consumer = consumer_of(source, errors)
    try:
        wanted = [
            TopicPartition(source.topic, partition)
            for partition in partitions_of(consumer, source, errors)
        ]
        bounds = {
            each.partition: consumer.get_watermark_offsets(each, timeout=REQUEST_S)
            for each in wanted
        }
        if isinstance(source.start, int):
            for each in wanted:
                each.offset = source.start
            found = consumer.offsets_for_times(wanted, timeout=REQUEST_S)
            return {
                each.partition: each.offset if each.offset >= 0 else bounds[each.partition][1]
                for each in found
            }
        if source.start == "committed":
            found = consumer.committed(wanted, timeout=REQUEST_S)
            return {
                each.partition: each.offset if each.offset >= 0 else bounds[each.partition][0]
                for each in found
            }
        which = 1 if source.start == "latest" else 0
        return {partition: bound[which] for partition, bound in bounds.items()}
    except KafkaException as error:
        raise ValueError(explain(source, errors.refused or error.args[0])) from error
    finally:
        consumer.close()


def beginnings(source: Settings) -> dict[int, int]:
    """Gives the partitions of a topic, each at its beginning.

    Raises:
        ValueError: If they cannot be had.
    """
    errors = Errors()
    consumer = consumer_of(source, errors)
    try:
        return dict.fromkeys(partitions_of(consumer, source, errors), OFFSET_BEGINNING)
    finally:
        consumer.close()


def first_payloads(source: Settings) -> Iterator[bytes]:
    """Gives some payloads from the beginning of each partition, as far as there are any."""
    errors = Errors()
    consumer = consumer_of(source, errors)
    try:
        partitions = partitions_of(consumer, source, errors)
        consumer.assign([TopicPartition(source.topic, p, OFFSET_BEGINNING) for p in partitions])
        left = set(partitions)
        given, deadline = 0, time.monotonic() + _HEAD_S
        while left and given < _HEAD_MESSAGES and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                left.discard(message.partition())
            elif payload := message.value():
                given += 1
                yield payload
    finally:
        consumer.close()

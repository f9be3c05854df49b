"""Writes to a Kafka topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from beam_lateness.transforms.kafka_metadata import ask_topic
from beam_lateness.transforms.sinks.topic_messages import (
    CHECK_WITHIN_S,
    Message,
    PublishError,
    TopicWriter,
    load_client,
)
from beam_lateness.transforms.sinks.topic_urls import KafkaTopic

_LOG = logging.getLogger(__name__)
_QUIET = logging.getLogger(f"{__name__}.check")  # what fails while checking is told by the check
_QUIET.setLevel(logging.CRITICAL)

_STEP_S: Final = 1.0  # what blocks in C is done in steps, so that signals are seen between them
_OURS: Final = {"bootstrap.servers", "acks", "enable.idempotence"}


class KafkaWriter(TopicWriter):
    """Writes to a Kafka topic with an idempotent producer and acks=all.

    Args:
        url: The topic's URL, for messages.
        topic: The topic.
        options: Settings of librdkafka.
        log: Where the client logs.

    Raises:
        ValueError: If an option is wrong, or the library is missing.
    """

    def __init__(
        self, url: str, topic: KafkaTopic, options: Mapping[str, str], log: logging.Logger = _LOG
    ) -> None:
        super().__init__(url)
        self._kafka = load_client("confluent_kafka", "kafka", url)
        self._topic = topic.topic
        self._failure: PublishError | None = None
        self._heard = ""
        settings = {
            "partitioner": "murmur2_random",  # Java's, so that its writers share our partitions
            **_settings(topic, options),
            "acks": "all",
            "enable.idempotence": True,
            "error_cb": self._hear,
        }
        try:
            self._producer = self._kafka.Producer(settings, logger=log)
        except self._kafka.KafkaException as error:
            raise _bad_options(error) from error

    def _hear(self, error: Any) -> None:
        if error.code() != self._kafka.KafkaError._ALL_BROKERS_DOWN:  # which gives no cause
            self._heard = error.str()

    def _send(self, message: Message) -> None:
        stamp = message.timestamp_ms
        more = {"timestamp": stamp} if stamp is not None and stamp > 0 else {}
        headers = [(name, text.encode()) for name, text in message.attributes.items()]
        while self._failure is None:
            try:
                self._producer.produce(
                    self._topic,
                    message.data,
                    message.key,
                    headers=headers,
                    on_delivery=self._confirm,
                    **more,
                )
            except BufferError:  # the client's queue is full: until there is room
                self._producer.poll(_STEP_S)
            except self._kafka.KafkaException as error:
                self._failure = self._explain(error.args[0], message.data)
            else:
                self._producer.poll(0)
                break
        self._raise_failure()

    def _flush(self) -> None:
        while self._producer.flush(_STEP_S) and self._failure is None:
            continue
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _confirm(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = self._explain(error, message.value())

    def _explain(self, error: Any, data: bytes | None) -> PublishError:
        codes = self._kafka.KafkaError
        code, said = error.code(), error.str()
        if code == codes.MSG_SIZE_TOO_LARGE:
            return self._refused(
                f"a message of {len(data or b''):,} bytes is too large; raise message.max.bytes in "
                "the Kafka options and max.message.bytes of the topic"
            )
        if code in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION):
            return self._refused(f"the topic does not exist; create it ({said})")
        if code in _denials(codes):
            return self._refused(f"access is denied: {said}; mend the Kafka options or the ACLs")
        if code == codes.INVALID_TIMESTAMP:
            return self._refused(
                "the topic takes no message with such a timestamp, too far from the broker's clock "
                f"(its message.timestamp.after.max.ms and message.timestamp.before.max.ms): {said}"
            )
        heard = f"; last heard: {self._heard}" if self._heard else ""
        return self._refused(f"a message was not confirmed: {said}{heard}")

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(_STEP_S)


def check_kafka(url: str, topic: KafkaTopic, options: Mapping[str, str]) -> None:
    """Asks the brokers whether a topic is there; creates nothing.

    Raises:
        ValueError: If it is not, no broker answers within 10 s, or an option is wrong.
    """
    KafkaWriter(url, topic, options, _QUIET).close()
    kafka = load_client("confluent_kafka", "kafka", url)
    heard: list[Any] = []
    settings = {
        "group.id": "beam-lateness-check",
        **_settings(topic, options),
        "error_cb": heard.append,
    }

    def denied() -> bool:
        return any(each.code() in _denials(kafka.KafkaError) for each in heard)

    try:
        consumer = kafka.Consumer(settings, logger=_QUIET)
    except kafka.KafkaException as error:
        raise _bad_options(error) from error
    try:
        found = ask_topic(kafka, consumer, topic.topic, CHECK_WITHIN_S, denied)
    except kafka.KafkaException as error:
        causes = [each for each in heard if each.code() != kafka.KafkaError._ALL_BROKERS_DOWN]
        last = causes[-1] if causes else error.args[0]
        if last.code() in _denials(kafka.KafkaError):
            msg = f"{url}: access is denied: {last.str()}; mend the Kafka options"
        else:
            msg = f"{url} cannot be reached: {last.str()}"
        raise ValueError(msg) from error
    finally:
        consumer.close()
    if found is None or found.error is not None:
        said = "no such topic" if found is None else found.error.str()
        msg = f"{url}: the topic does not exist or is not ours to see; create it ({said})"
        raise ValueError(msg)


def _denials(codes: Any) -> tuple[int, ...]:
    return (
        codes._AUTHENTICATION,
        codes.SASL_AUTHENTICATION_FAILED,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
    )


def _settings(topic: KafkaTopic, options: Mapping[str, str]) -> dict[str, Any]:
    if taken := _OURS & options.keys():
        msg = f"the Kafka options must not hold {min(taken)!r}, which the URL or the sink decides"
        raise ValueError(msg)
    return {**options, "bootstrap.servers": topic.servers}


def _bad_options(error: Exception) -> ValueError:
    return ValueError(f"the Kafka options are wrong: {error.args[0].str()}")

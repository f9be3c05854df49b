"""`PublishPanes` and `PublishDeadLetters`: results as messages of a Pub/Sub or Kafka topic."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import orjson
from apache_beam.pvalue import PCollection

from beam_lateness.transforms.results import InvalidRecord, Pane, TooLateRecord, pane_fields
from beam_lateness.transforms.sinks.dead_letters import dead_letter, encode_letter
from beam_lateness.transforms.sinks.topic_messages import Message, TopicWriter
from beam_lateness.transforms.sinks.topic_urls import KafkaTopic, parse_topic
from beam_lateness.transforms.sinks.topic_writers import check_topic, open_writer


def pane_message(pane: Pane, run: str, *, kafka: bool = False) -> Message:
    """Gives a pane as a message.

    Its payload is JSON: key, window_start_ms, window_end_ms, value, count, pane_index, timing and
    run. A number that JSON has not (NaN, infinity) is text. The attributes repeat all but value
    and count, as text.

    Args:
        pane: The pane.
        run: The run that it is of.
        kafka: Whether it is for Kafka, where the key is in no header: the message key is JSON
            `[key, window_start_ms]`, so that compaction keeps the last pane of each key and window.

    Example:
        >>> message = pane_message(Pane("a", 0, 60_000, 7, 3, 0, "ON_TIME"), "run-1", kafka=True)
        >>> message.key
        b'["a",0]'
        >>> sorted(message.attributes)
        ['pane_index', 'run', 'timing', 'window_end_ms', 'window_start_ms']
    """
    key = _plain(pane.key)
    attributes = {
        "window_start_ms": str(pane.window_start),
        "window_end_ms": str(pane.window_end),
        "pane_index": str(pane.index),
        "timing": pane.timing,
        "run": run,
    }
    if not kafka:
        attributes["key"] = _text(key)
    payload = {**pane_fields(pane, run), "key": key, "value": _plain(pane.value)}
    return Message(_json(payload), _json([key, pane.window_start]), attributes)


def letter_message(record: TooLateRecord | InvalidRecord, run: str) -> Message:
    """Gives a dead letter as a message.

    Its payload is the letter's JSON (see `dead_letter`), its Kafka key the record's id. The
    attributes are run and reason, and record_id, key and window_start_ms where they are known.

    Example:
        >>> message = letter_message(
        ...     InvalidRecord("malformed_json", "...", "a.jsonl", 7, "a.jsonl:7", b"{"), "run-1"
        ... )
        >>> message.key, message.attributes["reason"]
        (b'a.jsonl:7', 'malformed_json')
    """
    letter = dead_letter(record)
    known = {
        name: _text(_plain(letter[name]))
        for name in ("reason", "record_id", "key", "window_start_ms")
        if letter[name] is not None
    }
    key = known["record_id"].encode() if "record_id" in known else None
    return Message(encode_letter(letter), key, {"run": run, **known})


def _plain(value: Any) -> Any:
    """Fits a value to JSON, so that it is the same whatever encodes it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {_text(_plain(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _text(value: Any) -> str:
    """Writes a plain value as text that UTF-8 can hold (a lone surrogate becomes its escape)."""
    text = value if isinstance(value, str) else _json(value).decode()
    return text.encode(errors="backslashreplace").decode()


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr)
    except TypeError:  # an integer beyond 64 bits, a lone surrogate
        return json.dumps(value, default=repr, separators=(",", ":")).encode()


@dataclass(eq=False)
class PublishPanes(beam.PTransform[PCollection[Pane], PCollection[Any]]):
    """Publishes each pane as a message (see `pane_message`).

    A bundle is done when the broker has confirmed all its messages: Kafka by an idempotent producer
    with acks=all, Pub/Sub by the id of each. A bundle that an engine repeats publishes its panes
    again, with the same `run` and `pane_index`: of a key and window, consumers take the message of
    the largest run and, in it, of the largest pane_index. Pub/Sub keeps no order, so that a pane
    may come after its correction.

    Watermark: takes a `PCollection[Pane]`, gives nothing.

    Args:
        url: `pubsub://projects/PROJECT/topics/TOPIC` or `kafka://HOST:PORT[,HOST:PORT]/TOPIC`.
        run: Names this run; a later run's name must sort after it (`runs.new_run`).
        kafka_options: Settings of librdkafka, such as those of SASL and TLS; workers get them with
            the pipeline.
        written: Called with the panes that the broker has confirmed, at least once a bundle and
            every 5,000 panes; never with those of a flush in which one failed. It must be
            picklable; what it raises fails the bundle.

    Raises:
        ValueError: At construction, if the topic does not exist or cannot be reached within 10 s,
            the URL or an option is wrong, or the client's library is not installed.

    Example:
        panes | PublishPanes("kafka://localhost:9092/panes", run="2026-01-01T00:00")
    """

    url: str
    run: str
    kafka_options: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # may hold a password
    written: Callable[[Sequence[Pane]], None] | None = None

    def __post_init__(self) -> None:
        super().__init__()
        check_topic(self.url, self.kafka_options, "output (--output)")

    def expand(self, panes: PCollection[Pane]) -> PCollection[Any]:
        """Publishes bundle by bundle."""
        kafka = isinstance(parse_topic(self.url), KafkaTopic)
        encode = partial(pane_message, run=self.run, kafka=kafka)
        return panes | "Publish" >> beam.ParDo(
            _Publish(self.url, self.kafka_options, encode, self.written)
        )


@dataclass(eq=False)
class PublishDeadLetters(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """Publishes each too late or invalid record as a message (see `letter_message`).

    A bundle is done when the broker has confirmed all its messages. One that an engine repeats
    publishes its records again, under the same `record_id`: consumers count each id once.

    Watermark: takes a `PCollection` of `TooLateRecord` or `InvalidRecord`, gives nothing.

    Args:
        url: `pubsub://projects/PROJECT/topics/TOPIC` or `kafka://HOST:PORT[,HOST:PORT]/TOPIC`.
        run: Names this run; it is an attribute of each message.
        kafka_options: Settings of librdkafka, such as those of SASL and TLS; workers get them with
            the pipeline.
        written: Called with the records that the broker has confirmed, at least once a bundle and
            every 5,000 records; never with those of a flush in which one failed. It must be
            picklable; what it raises fails the bundle.

    Raises:
        ValueError: At construction, if the topic does not exist or cannot be reached within 10 s,
            the URL or an option is wrong, or the client's library is not installed.

    Example:
        too_late | PublishDeadLetters("pubsub://projects/shop/topics/late", run="2026-01-01T00:00")
    """

    url: str
    run: str
    kafka_options: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # may hold a password
    written: Callable[[Sequence[TooLateRecord | InvalidRecord]], None] | None = None

    def __post_init__(self) -> None:
        super().__init__()
        check_topic(self.url, self.kafka_options, "dead letters (--dead_letters)")

    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        """Publishes bundle by bundle."""
        encode = partial(letter_message, run=self.run)
        return records | "Publish" >> beam.ParDo(
            _Publish(self.url, self.kafka_options, encode, self.written)
        )


class _Publish(beam.DoFn):
    """Sends a bundle's elements, and waits for the broker."""

    def __init__(
        self,
        url: str,
        kafka_options: Mapping[str, str],
        encode: Callable[[Any], Message],
        written: Callable[[Sequence[Any]], None] | None,
    ) -> None:
        self._url = url
        self._kafka_options = dict(kafka_options)
        self._encode = encode
        self._written = written
        self._writer: TopicWriter | None = None

    def start_bundle(self) -> None:
        self._elements: list[Any] = []
        if self._writer is not None and self._writer.pending:  # of a bundle that failed elsewhere
            self._give_up()

    def process(self, element: Any) -> None:
        message = self._encode(element)
        if self._writer is None:
            self._writer = open_writer(self._url, self._kafka_options)
        try:
            self._writer.send(message)
        except Exception:
            self._give_up()
            raise
        self._elements.append(element)
        if self._writer.full:
            self._flush(self._writer)

    def finish_bundle(self) -> None:
        if self._writer is not None and self._elements:
            self._flush(self._writer)

    def _flush(self, writer: TopicWriter) -> None:
        try:
            writer.flush()
        except Exception:
            self._give_up()
            raise
        confirmed, self._elements = self._elements, []
        if self._written is not None:
            self._written(confirmed)

    def _give_up(self) -> None:
        """Closes the writer; after a failure it is of no more use."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def teardown(self) -> None:
        self._give_up()

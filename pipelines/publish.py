"""The command `beam-lateness publish`: a file becomes the live stream of a topic."""

from __future__ import annotations

import argparse
import codecs
import gzip
import itertools
import json
import math
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NoReturn

from rich.console import Console

from beam_lateness.pipelines.feed import (
    FAULTS,
    RECORD,
    UNREADABLE,
    FeedFields,
    Item,
    bind_time,
    feed,
    parse_faults,
)
from beam_lateness.pipelines.flags import refuse_unknown, whole
from beam_lateness.pipelines.inputs import read_kafka_options
from beam_lateness.pipelines.progress import Progress
from beam_lateness.pipelines.publisher import EVENT_TIME_ATTRIBUTE, Publisher
from beam_lateness.pipelines.report import format_time
from beam_lateness.pipelines.running import FAILED, INTERRUPTED, MISUSED, OK
from beam_lateness.transforms.sinks.topic_messages import PublishError
from beam_lateness.transforms.sinks.topic_urls import (
    KAFKA_FORM,
    PUBSUB_FORM,
    KafkaTopic,
    Topic,
    parse_topic,
)
from beam_lateness.transforms.sinks.topic_writers import check_topic, open_writer
from beam_lateness.transforms.watermarks.timestamps import TIME_UNITS, FieldTime

_PROGRAM: Final = "beam-lateness publish"
_HEAD_LINES: Final = 1000
_RETENTION_S: Final = 7 * 86_400  # Kafka's default, by message timestamp: log.retention.hours=168


class PublishOptions(argparse.ArgumentParser):
    """The flags of `beam-lateness publish`; it runs no pipeline, so that Beam's are not among them.

    Raises:
        ValueError: From `parse`, for a flag that is unknown, lacks its value or is required.
    """

    def __init__(self) -> None:
        super().__init__(
            prog=_PROGRAM,
            description="Publishes the lines of a file as messages of a topic, in their order and "
            "paced by their event times, with faults on demand. A message has its event time as "
            f"the attribute (Kafka: header) {EVENT_TIME_ATTRIBUTE}, on Kafka as its timestamp too "
            "(but for those of --inject future, which brokers refuse), and on Kafka the value of "
            "--key_field as its key.",
            allow_abbrev=False,
        )
        add = self.add_argument
        add("--input", help="file of JSON lines, plain or .gz")
        add("--to", help=f"{PUBSUB_FORM} or {KAFKA_FORM}")
        add(
            "--speed",
            default="1",
            help="pace by event time: 1 as it happened, 60 a minute a second, max as fast as "
            "possible",
        )
        add(
            "--inject",
            help=f"faults, with commas: {', '.join(FAULTS)}; each at 1%% of the records, or at a "
            "rate, such as late:0.05",
        )
        add("--time_field", default="event_time", help="field of the event time")
        add("--time_unit", default="auto", help=f"{', '.join(TIME_UNITS)} (auto: detected, once)")
        add("--key_field", help="field of the key, which is Kafka's message key")
        add("--id_field", help="field that identifies a record; a late one gets an id of its own")
        add("--limit", help="end after so many lines of the file")
        add("--seed", default="0", help="of the faults: the same seed gives the same stream")
        add("--kafka_properties", help="file of librdkafka settings, one name=value a line")
        add(
            "--now",
            action="store_true",
            help="move event times so that the first is now; with a --speed above 1 they run "
            "ahead of the clock",
        )

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Reads the flags."""
        options, unknown = self.parse_known_args(list(argv))
        refuse_unknown(self, unknown)
        return options


@dataclass(frozen=True)
class PublishConfig:
    """A checked configuration of the command."""

    path: str
    url: str
    topic: Topic
    kafka_options: Mapping[str, str]
    speed: float | None
    rates: Mapping[str, float]
    fields: FeedFields
    limit: int | None
    seed: int
    now: bool

    def lines(self) -> Iterator[bytes]:
        """Gives the lines of the file, without their line breaks."""
        return _lines(self.path, self.limit)

    def items(self) -> Iterator[Item]:
        """Gives the stream, which with `now` begins now."""
        begin_ms = int(time.time() * 1000) if self.now else None
        return feed(self.lines(), self.fields, self.rates, self.seed, begin_ms)


def read_config(argv: Sequence[str]) -> PublishConfig:
    """Checks the flags, all before anything runs; the topic itself is checked last.

    Raises:
        ValueError: For the first flag that is missing or wrong; it names the flag, the value, the
            rule and the remedy.
    """
    options = PublishOptions().parse(argv)
    for name, form in (
        ("input", "a file of JSON lines"),
        ("to", PUBSUB_FORM + " or " + KAFKA_FORM),
    ):
        if not getattr(options, name):
            msg = f"--{name} is required: {form}"
            raise ValueError(msg)
    topic = parse_topic(options.to, "--to")
    if options.kafka_properties is not None and not isinstance(topic, KafkaTopic):
        msg = f"--kafka_properties has no meaning with --to={options.to}; leave it out"
        raise ValueError(msg)
    time_field = FieldTime(options.time_field, options.time_unit)
    config = PublishConfig(
        path=options.input,
        url=options.to,
        topic=topic,
        kafka_options=read_kafka_options(options),
        speed=_speed(options.speed),
        rates={} if options.inject is None else parse_faults(options.inject),
        fields=FeedFields(
            bind_time(_head(options.input), time_field), options.key_field, options.id_field
        ),
        limit=None if options.limit is None else whole("--limit", options.limit),
        seed=whole("--seed", options.seed, least=0),
        now=options.now,
    )
    check_topic(config.url, config.kafka_options, "--to")
    return config


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < math.inf:
        msg = f"--speed must be a number above 0 or max, got {text!r}"
        raise ValueError(msg)
    return speed


def _lines(path: str, limit: int | None) -> Iterator[bytes]:
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        for number, line in enumerate(itertools.islice(file, limit)):
            text = line.rstrip(b"\r\n")
            yield text if number else text.removeprefix(codecs.BOM_UTF8)


def _head(path: str) -> list[bytes]:
    try:
        return list(_lines(path, _HEAD_LINES))
    except (OSError, EOFError, zlib.error) as error:
        msg = f"--input {path!r} cannot be read: {error}; give one local file of JSON lines"
        raise ValueError(msg) from error


class _PublishProgress(Progress):
    """Shows how fast a stream is sent, and where in event time it is."""

    def __init__(self, console: Console, publisher: Publisher) -> None:
        super().__init__(console)
        self._publisher = publisher
        self._last = (time.monotonic(), 0)

    def figures(self) -> dict[str, str]:
        now, count = time.monotonic(), self._publisher.counts.total()
        before, sent = self._last
        self._last = (now, count)
        return {
            "messages": f"{count:,}",
            "messages/s": f"{(count - sent) / max(now - before, 0.001):,.0f}",
            "event time": format_time(self._publisher.clock_ms),
        }


def run_publish(argv: Sequence[str], console: Console) -> int:
    """Publishes a file, as the command line's flags say.

    Args:
        argv: The flags.
        console: Where to report.

    Returns:
        0 if the file was published to its end, 1 if the broker or the file failed, 130 if it was
        interrupted.

    Raises:
        ValueError: If a flag, the input or the topic is wrong: nothing has been sent then.
    """
    config = read_config(argv)
    _warn(config, console)
    writer = open_writer(config.url, config.kafka_options)
    stop = threading.Event()
    publisher = Publisher(writer, config.speed, stop, keyed=isinstance(config.topic, KafkaTopic))
    try:
        with _stops(stop), _PublishProgress(console, publisher):
            publisher.run(config.items())
    except (PublishError, OSError, EOFError, zlib.error) as error:
        print(
            f"{_PROGRAM}: failed: {error}; {publisher.confirmed:,} messages had been confirmed",
            file=sys.stderr,
        )
        return FAILED
    finally:
        writer.close()
    kinds = (RECORD, UNREADABLE, *config.rates)
    counts = json.dumps({kind: publisher.counts[kind] for kind in kinds})
    console.print(counts, soft_wrap=True, highlight=False, markup=False)
    return INTERRUPTED if stop.is_set() else OK


def _warn(config: PublishConfig, console: Console) -> None:
    """Tells of event times that the broker or a reader may not like."""
    if config.now:
        if config.speed is None or config.speed > 1:
            console.print(
                "note: at this --speed event times run ahead of the clock, and readers may take "
                "them for invalid (--max_future_skew)",
                soft_wrap=True,
            )
        return
    if isinstance(config.topic, KafkaTopic):
        for line in _head(config.path):
            with suppress(ValueError):
                age_s = time.time() - config.fields.time_of(config.fields.read(line)) / 1000
                if age_s > _RETENTION_S:
                    console.print(
                        "note: Kafka deletes by message timestamp, which is the event time here: "
                        f"{age_s / 86_400:,.0f} days old, where topics keep 7 by default "
                        "(retention.ms); --now makes it new",
                        soft_wrap=True,
                    )
                return


@contextmanager
def _stops(stop: threading.Event) -> Iterator[None]:
    """Makes SIGTERM and Ctrl-C end the stream in good order; a second one ends it at once."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        for each in signals:
            signal.signal(each, _interrupt)

    before: list[Any] = [signal.signal(number, ask) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    """Runs the command, and turns a wrong flag into one line and an exit code."""
    if "--help" in argv or "-h" in argv:
        print(PublishOptions().format_help())
        return OK
    try:
        return run_publish(argv, Console())
    except ValueError as error:
        print(f"{_PROGRAM}: error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        print(f"{_PROGRAM}: interrupted; not all was confirmed", file=sys.stderr)
        return INTERRUPTED

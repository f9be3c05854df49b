"""The input that the flags name: files, subscriptions of Pub/Sub, or a topic of Kafka."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from beam_lateness.pipelines.flags import one_of, whole
from beam_lateness.transforms.database import without_login
from beam_lateness.transforms.sources.connector import Connector
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import Csv, JsonLines, LineFormat
from beam_lateness.transforms.sources.kafka import Kafka
from beam_lateness.transforms.sources.pubsub import PubSub

FORMATS: Final = ("auto", "jsonl", "csv")
_SCHEMES: Final = ("pubsub", "kafka")


def has_messages(options: Any) -> bool:
    """Says whether the input is messages of a broker."""
    return any(_scheme(name) in _SCHEMES for name in options.input or ())


def is_live(options: Any) -> bool:
    """Says whether the input is read as time goes by, without an end."""
    return bool(options.follow) or has_messages(options)


def read_connector(options: Any) -> Connector:
    """Makes the input that the flags describe.

    Raises:
        ValueError: If it cannot be.
    """
    schemes = {_scheme(name) for name in options.input}
    if options.kafka_properties is not None and not _names_kafka(options):
        msg = "--kafka_properties has no meaning without kafka://; leave it out"
        raise ValueError(msg)
    if not schemes & set(_SCHEMES):
        return Files(tuple(options.input), _line_format(options), options.follow)
    if len(schemes) > 1:
        names = ", ".join(map(without_login, options.input))
        msg = f"--input mixes kinds of input: {names}; run them apart"
        raise ValueError(msg)
    if options.follow:
        msg = "--follow is for files; a topic is followed anyway: leave it out"
        raise ValueError(msg)
    if one_of(options, "format", FORMATS) == "csv":
        msg = "--format=csv has no meaning for messages, which hold a JSON object each"
        raise ValueError(msg)
    line_format = JsonLines(options.key_field, options.value_field, options.id_field)
    make = _pubsub if schemes == {"pubsub"} else _kafka
    try:
        return make(options, line_format)
    except ValueError as error:
        if "(--input" in str(error) or str(error).startswith("--"):
            raise
        msg = f"--input={', '.join(map(without_login, options.input))}: {error}"
        raise ValueError(msg) from error


def _pubsub(options: Any, line_format: LineFormat) -> Connector:
    parsed = [urlsplit(url) for url in options.input]
    settings = {
        tuple(sorted(_query(each, ("lease", "batch", "max_in_flight")).items())) for each in parsed
    }
    if len(settings) > 1:
        msg = "--input names subscriptions with different settings; give them all the same"
        raise ValueError(msg)
    names = tuple(f"{each.netloc}{each.path}" for each in parsed)
    given: dict[str, Any] = dict(settings.pop())
    if "max_in_flight" in given:
        given["max_in_flight"] = whole("max_in_flight", given["max_in_flight"])
    return PubSub(names, line_format, **given)


def _kafka(options: Any, line_format: LineFormat) -> Connector:
    if len(options.input) > 1:
        msg = "--input takes one kafka:// topic; run topics apart"
        raise ValueError(msg)
    url = urlsplit(options.input[0])
    topic = url.path.strip("/")
    if not url.netloc or not topic or "/" in topic or url.username or url.password:
        msg = (
            "--input must be kafka://HOST:PORT/TOPIC (credentials go into --kafka_properties), "
            f"got {without_login(options.input[0])!r}"
        )
        raise ValueError(msg)
    given: dict[str, Any] = _query(url, ("group", "start", "batch", "discovery"))
    if given.get("start", "").isdecimal():
        given["start"] = int(given["start"])
    return Kafka(url.netloc, topic, line_format, options=read_kafka_options(options), **given)


def _query(url: SplitResult, known: Sequence[str]) -> dict[str, str]:
    found = {}
    for name, text in parse_qsl(url.query, keep_blank_values=True):
        if name not in known or not text:
            what = "needs a value" if name in known else f"is none of {', '.join(known)}"
            msg = f"setting {name!r} {what}"
            raise ValueError(msg)
        found[name] = text
    return found


def read_kafka_options(options: Any) -> dict[str, str]:
    """Reads `--kafka_properties`: a line `key=value` each, `#` begins a comment.

    Raises:
        ValueError: If it cannot be read; the message shows no value.
    """
    path = options.kafka_properties
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        msg = f"--kafka_properties {path!r} cannot be read: {error}"
        raise ValueError(msg) from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        key, sign, value = line.partition("=")
        if not sign or not key.strip():
            msg = f"--kafka_properties {path!r}, line {number}: must be key=value"
            raise ValueError(msg)
        found[key.strip()] = value.strip()
    return found


def _names_kafka(options: Any) -> bool:
    names = (*options.input, options.output, options.dead_letters)
    return any(_scheme(name or "") == "kafka" for name in names)


def _scheme(name: str) -> str:
    scheme, sign, _ = name.partition("://")
    return scheme if sign and scheme in _SCHEMES else ""


def _line_format(options: Any) -> LineFormat:
    name = one_of(options, "format", FORMATS)
    if name == "auto":
        unread = Files(tuple(options.input), JsonLines(options.key_field), options.follow)
        files = list(unread.initial_positions()) or options.input
        csv = [".csv" in os.path.basename(name).lower() for name in files]
        if any(csv) and not all(csv):
            msg = (
                "--input mixes CSV and other files, such as "
                f"{files[csv.index(True)]} and {files[csv.index(False)]}; run them apart"
            )
            raise ValueError(msg)
        name = "csv" if any(csv) else "jsonl"
    kind = Csv if name == "csv" else JsonLines
    return kind(options.key_field, options.value_field, options.id_field)

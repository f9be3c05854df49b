"""The flags of topics: each mistake names its flag, before anything is asked of a broker."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.inputs import read_connector, read_kafka_options
from beam_lateness.pipelines.options import StreamConfig, StreamOptions, read_config
from beam_lateness.pipelines.streaming import build
from beam_lateness.transforms.commits.checkpoints import Checkpoints
from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import JsonLines
from beam_lateness.transforms.sources.kafka import Kafka
from beam_lateness.transforms.sources.pubsub import PubSub
from beam_lateness.transforms.watermarks.timestamps import FieldTime, MessageTime

PUBSUB = "pubsub://projects/p/subscriptions/s"
KAFKA = "kafka://h1:9092,h2:9093/payments"
FORMAT = JsonLines("account", "amount", "id")
BASE = {
    "key_field": "account",
    "value_field": "amount",
    "id_field": "id",
    "time_unit": "ms",
    "window": "1m",
    "bound": "10s",
    "too_late": "drop",
    "output": "sqlite:///windows.db",
}

Change = dict[str, str | None]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory of its own, with files that flags may name."""
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"account":"a","amount":1,"id":"x","event_time":5}\n')
    Path("kafka.properties").write_text("security.protocol=SASL_SSL\n")
    Path("no.properties").write_text("sasl.password\n")


def options_of(*inputs: str, **change: str | None) -> StreamOptions:
    """Flags of a job that could run, changed; None leaves one out, "" stands for a switch."""
    flags = {**BASE, **change}
    argv = [f"--{name}={value}" for name, value in flags.items() if value]
    argv += [f"--{name}" for name, value in flags.items() if value == ""]
    return PipelineOptions([*argv, *(f"--input={name}" for name in inputs)]).view_as(StreamOptions)


def config(*inputs: str, **change: str | None) -> StreamConfig:
    """Reads flags as the job does."""
    return read_config(options_of(*inputs, **change))


MISTAKES: dict[str, tuple[list[str], Change, str]] = {
    # Subscriptions.
    "a topic of Pub/Sub": (["pubsub://projects/p/topics/t"], {}, "--input subscription"),
    "no subscription": (["pubsub://projects/p"], {}, "--input projects/P/subscriptions/S"),
    "nothing": (["pubsub://"], {}, "--input projects/P/subscriptions/S"),
    "more than one": ([f"{PUBSUB}/x"], {}, "--input projects/P/subscriptions/S"),
    "unknown setting": ([f"{PUBSUB}?leases=1s"], {}, "--input 'leases' lease, batch"),
    "Kafka's setting": ([f"{PUBSUB}?group=g"], {}, "--input 'group'"),
    "empty setting": ([f"{PUBSUB}?lease="], {}, "--input 'lease' needs a value"),
    "lease too long": ([f"{PUBSUB}?lease=1h"], {}, "--input lease 10m '1h'"),
    "lease too short": ([f"{PUBSUB}?lease=1ms"], {}, "--input lease 1s '1ms'"),
    "lease without unit": ([f"{PUBSUB}?lease=60"], {}, "--input lease '60' unit"),
    "batch without unit": ([f"{PUBSUB}?batch=1"], {}, "--input batch '1' unit"),
    "none in flight": ([f"{PUBSUB}?max_in_flight=0"], {}, "--input max_in_flight '0' at least 1"),
    "words in flight": ([f"{PUBSUB}?max_in_flight=x"], {}, "--input max_in_flight 'x'"),
    "settings that differ": (
        [f"{PUBSUB}?lease=20s", f"{PUBSUB}2?lease=30s"],
        {},
        "--input different settings",
    ),
    # Kafka.
    "no topic": (["kafka://h:1"], {}, "--input kafka://HOST:PORT/TOPIC"),
    "no topic behind the slash": (["kafka://h:1/"], {}, "--input kafka://HOST:PORT/TOPIC"),
    "no host": (["kafka:///t"], {}, "--input kafka://HOST:PORT/TOPIC"),
    "two topics in one": (["kafka://h:1/t/u"], {}, "--input kafka://HOST:PORT/TOPIC"),
    "two topics": ([KAFKA, f"{KAFKA}2"], {}, "--input one kafka:// topic"),
    "half an address": (["kafka://[::1/t"], {}, "--input"),
    "unknown Kafka setting": ([f"{KAFKA}?grp=g"], {}, "--input 'grp' group"),
    "empty group": ([f"{KAFKA}?group="], {}, "--input 'group' needs a value"),
    "unknown start": ([f"{KAFKA}?start=soon"], {}, "--input start 'soon' earliest latest"),
    "negative start": ([f"{KAFKA}?start=-5"], {}, "--input start '-5'"),
    "committed by nobody": ([f"{KAFKA}?start=committed"], {}, "--input start=committed group"),
    "no discovery": ([f"{KAFKA}?discovery=0s"], {}, "--input discovery '0s'"),
    "batch in words": ([f"{KAFKA}?batch=some"], {}, "--input batch 'some'"),
    # Combinations.
    "two kinds": ([PUBSUB, KAFKA], {}, "--input mixes apart"),
    "a file too": ([PUBSUB, "in.jsonl"], {}, "--input mixes apart"),
    "follow": ([PUBSUB], {"follow": ""}, "--follow files leave"),
    "CSV": ([KAFKA], {"format": "csv"}, "--format=csv JSON"),
    "unknown format": ([KAFKA], {"format": "xml"}, "--format 'xml' jsonl"),
    "speed": ([KAFKA], {"replay_speed": "2"}, "--replay_speed"),
    "properties of files": (
        ["in.jsonl"],
        {"kafka_properties": "kafka.properties"},
        "--kafka_properties kafka:// leave",
    ),
    "properties of Pub/Sub": (
        [PUBSUB],
        {"kafka_properties": "kafka.properties"},
        "--kafka_properties kafka:// leave",
    ),
    "properties nowhere": ([KAFKA], {"kafka_properties": "absent"}, "--kafka_properties 'absent'"),
    "a folder of properties": ([KAFKA], {"kafka_properties": "."}, "--kafka_properties '.'"),
    "no properties": (
        [KAFKA],
        {"kafka_properties": "no.properties"},
        "--kafka_properties 'no.properties' 1 key=value",
    ),
    # Times.
    "unknown time source": ([PUBSUB], {"time_source": "clock"}, "--time_source 'clock' attribute"),
    "message time of a file": (
        ["in.jsonl"],
        {"time_source": "message"},
        "--time_source=message files --time_field",
    ),
    "attribute of a file": (["in.jsonl"], {"time_source": "attribute"}, "--time_source=attribute"),
    "attribute in a unit to detect": (
        [PUBSUB],
        {"time_source": "attribute", "time_unit": "auto"},
        "--time_unit --time_source=attribute 'auto' iso",
    ),
    "no watermark": ([KAFKA], {"watermark": "none", "bound": None}, "--watermark=none topic"),
    # Checkpoints.
    "checkpoint of files": (["in.jsonl"], {"checkpoint": "sqlite:///c.db"}, "--checkpoint leave"),
    "topic to topic": (
        [PUBSUB],
        {"output": "pubsub://projects/p/topics/t"},
        "--checkpoint=sqlite:///FILE required --output",
    ),
}


@pytest.mark.parametrize(("inputs", "change", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_its_flag(inputs: list[str], change: Change, told: str) -> None:
    """Flag, value, rule and remedy, in one line."""
    with pytest.raises(ValueError, match=r".") as refused:
        config(*inputs, **change)
    message = str(refused.value)
    assert [word for word in told.split() if word not in message] == [], message
    assert "\n" not in message


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    """Errors are logged."""
    for url in ("kafka://me:secret@h:1/t", "kafka://me:secret@h:1/t?x=1", "kafka://me@h:1/t"):
        with pytest.raises(ValueError, match="--kafka_properties") as refused:
            config(url)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("line", ["secret", "=secret", " = secret"])
def test_a_wrong_line_of_properties_is_told_by_its_number_and_not_shown(line: str) -> None:
    """It may be half a password."""
    Path("mine").write_text(f"# mine\n\na=b\n{line}\n")
    with pytest.raises(ValueError, match=r"--kafka_properties 'mine', line 4") as refused:
        config(KAFKA, kafka_properties="mine")
    assert "secret" not in str(refused.value)


def test_properties_are_lines_of_keys_and_values() -> None:
    """A value may hold anything but a line break; the last of several counts."""
    Path("mine").write_text(" # comment\n\n a = b = c \nempty=\nx=1\r\nx=2\nü=é\n", "utf-8")
    options = read_kafka_options(options_of(KAFKA, kafka_properties="mine"))
    assert options == {"a": "b = c", "empty": "", "x": "2", "ü": "é"}
    assert read_kafka_options(options_of(KAFKA)) == {}


def test_properties_that_are_no_text_are_refused() -> None:
    """Such as a key store."""
    Path("mine").write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(ValueError, match=r"--kafka_properties 'mine' cannot be read"):
        config(KAFKA, kafka_properties="mine")


@pytest.mark.parametrize("name", ["output", "dead_letters"])
def test_properties_may_be_of_a_topic_that_is_written(name: str) -> None:
    """Whatever is read."""
    change = {name: "kafka://h:1/t", "kafka_properties": "kafka.properties"}
    assert config("in.jsonl", **change).outputs.kafka_options == {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("", {}),
        ("?lease=20s", {"lease": "20s"}),
        ("?batch=1s&max_in_flight=5", {"batch": "1s", "max_in_flight": 5}),
    ],
)
def test_a_subscription_may_have_settings(url: str, settings: dict[str, Any]) -> None:
    """Several subscriptions have the same."""
    wanted = PubSub(("projects/p/subscriptions/s",), FORMAT, **settings)
    assert read_connector(options_of(PUBSUB + url)) == wanted
    both = read_connector(options_of(PUBSUB + url, f"{PUBSUB}2{url}"))
    assert both.initial_positions().keys() == {
        "projects/p/subscriptions/s",
        "projects/p/subscriptions/s2",
    }


def test_settings_in_another_order_are_the_same_settings() -> None:
    """Of two subscriptions."""
    one, two = f"{PUBSUB}?lease=20s&batch=1s", f"{PUBSUB}2?batch=1s&lease=20s"
    assert isinstance(read_connector(options_of(one, two)), PubSub)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("", {}),
        ("?group=g&start=committed", {"group": "g", "start": "committed"}),
        ("?start=latest", {"start": "latest"}),
        ("?start=1357035300000", {"start": 1_357_035_300_000}),
        ("?batch=1s&discovery=5s", {"batch": "1s", "discovery": "5s"}),
    ],
)
def test_a_topic_may_have_settings(url: str, settings: dict[str, Any]) -> None:
    """Brokers with commas; a start may be a time in ms."""
    wanted = Kafka("h1:9092,h2:9093", "payments", FORMAT, **settings)
    assert read_connector(options_of(KAFKA + url)) == wanted


def test_properties_reach_the_client() -> None:
    """As librdkafka's settings."""
    connector = read_connector(options_of(KAFKA, kafka_properties="kafka.properties"))
    assert isinstance(connector, Kafka)
    assert connector.options == {"security.protocol": "SASL_SSL"}


def test_a_file_is_still_a_file() -> None:
    """Whatever stands in its name."""
    assert isinstance(read_connector(options_of("in.jsonl")), Files)
    Path("pubsub.jsonl").touch()
    assert isinstance(read_connector(options_of("pubsub.jsonl")), Files)


def test_a_live_input_keeps_its_checkpoint_with_the_results() -> None:
    """Unless it is told where; files have none."""
    assert config(PUBSUB).checkpoint == BASE["output"]
    assert config(PUBSUB, checkpoint="sqlite:///c.db").checkpoint == "sqlite:///c.db"
    output = {"output": "kafka://h:1/t", "checkpoint": "sqlite:///c.db"}
    assert config(KAFKA, **output).checkpoint == "sqlite:///c.db"
    assert config("in.jsonl").checkpoint is None


@pytest.mark.parametrize("inputs", [[PUBSUB], [KAFKA]])
def test_a_topic_is_endless_and_may_have_idle_splits(inputs: list[str]) -> None:
    """As a followed file."""
    flags = {"idle_timeout": "5s", "max_drift": "1m"}
    assert config(*inputs, **flags).endless


@pytest.mark.parametrize(
    ("change", "assigner"),
    [
        ({}, FieldTime("event_time", "ms")),
        ({"time_source": "field", "time_unit": "auto"}, FieldTime("event_time")),
        ({"time_source": "message", "time_unit": None}, MessageTime()),
        ({"time_source": "attribute", "time_field": "at"}, MessageTime("at", "ms")),
        (
            {"time_source": "attribute", "time_field": "at", "time_unit": "iso"},
            MessageTime("at", "iso"),
        ),
    ],
)
def test_the_time_source_makes_its_assigner(change: Change, assigner: object) -> None:
    """By default it is the field."""
    assert config(PUBSUB, **change).strategy.timestamps == assigner


def build_only(*inputs: str, **change: str | None) -> None:
    """Does all that the job does before it runs."""
    build(beam.Pipeline(), config(*inputs, **change), embedded=False, run="run-2")


@pytest.mark.parametrize(
    "url",
    ["c.db", "sqlite://", "postgresql://h/d", "sqlite:////no/such/c.db", "sqlite:///in.jsonl"],
)
def test_a_checkpoint_that_cannot_be_used_is_refused_before_anything_runs(url: str) -> None:
    """Not by a worker, of which the engine tells a traceback."""
    with pytest.raises(ValueError, match="--checkpoint"):
        build_only(PUBSUB, checkpoint=url)


def test_a_checkpoint_of_other_windows_is_refused_before_anything_runs() -> None:
    """It names the flags to keep."""
    kept = Checkpoints("sqlite:///windows.db")
    source = PubSub(("projects/p/subscriptions/s",), FORMAT).source_id
    InFlight(source, "run-1", Windows("2m"), kept, True, True).begin({})
    kept.close()
    with pytest.raises(ValueError, match=r"--window.*--checkpoint"):
        build_only(PUBSUB)
    with closing(sqlite3.connect("windows.db")) as reader:
        assert reader.execute("SELECT runs FROM checkpoints").fetchall() == [('["run-1"]',)]

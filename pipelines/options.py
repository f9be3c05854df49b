"""The flags of the streaming job, and the checked configuration they make."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.flags import one_of, refuse_strange, whole
from beam_lateness.pipelines.flink.options import FlinkOptions
from beam_lateness.pipelines.inputs import (
    FORMATS,
    has_messages,
    is_live,
    read_connector,
    read_kafka_options,
)
from beam_lateness.pipelines.outputs import Outputs, add_output_flags, read_outputs
from beam_lateness.pipelines.report import check_writable
from beam_lateness.pipelines.strategies import (
    FIELD,
    TIME_SOURCES,
    add_watermark_flags,
    read_strategy,
)
from beam_lateness.pipelines.watch import Watch, add_watch_flags, read_watch
from beam_lateness.transforms.database import is_database, without_login
from beam_lateness.transforms.lateness.aggregation import AGGREGATES, ColumnAggregation
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.sinks.window_table import TABLE_NAME
from beam_lateness.transforms.sources.connector import Connector
from beam_lateness.transforms.sources.read_settings import BLOCK_BYTES, ReadSettings
from beam_lateness.transforms.times import duration_ms
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import TIME_UNITS

EMIT, DROP = "emit", "drop"


class StreamOptions(PipelineOptions):
    """The flags of `beam-lateness stream`; Beam's own flags stand beside them."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        inputs = parser.add_argument_group("input")
        add = inputs.add_argument
        add(
            "--input",
            action="append",
            help="file or glob of JSON lines or CSV; "
            "pubsub://projects/P/subscriptions/S[?lease=60s]; "
            "kafka://HOST:PORT/TOPIC[?group=G&start=earliest|latest|committed|MS]; repeatable",
        )
        add("--kafka_properties", help="file of librdkafka settings (key=value), such as SASL's")
        add("--format", default="auto", help=f"{', '.join(FORMATS)} (auto: by the file's ending)")
        add("--key_field", help="field to group by")
        add("--value_field", help="number to aggregate (not needed for count)")
        add("--time_field", default="event_time", help="field of the event time")
        add(
            "--time_source",
            default=FIELD,
            help=f"{', '.join(TIME_SOURCES)}: whether the event time is the --time_field of the "
            "record, an attribute (Kafka: header) of that name, or the message's own time",
        )
        add("--time_unit", default="auto", help=f"{', '.join(TIME_UNITS)} (auto: detected, once)")
        add("--id_field", help="field that identifies a record, for dead letters")
        add("--follow", action="store_true", help="go on reading as files grow and appear")
        add("--replay_speed", help="pace by event time: 1 as it happened, 60 a minute a second")
        add(
            "--poll_interval",
            help="how long to wait after a live input had nothing new (0.2s)",
        )
        add("--num_readers", default="1", help="readers that share the splits, on Flink only")
        add(
            "--max_future_skew",
            help="records further ahead of the clock are invalid; off for "
            "replays, 5m with --follow",
        )
        add(
            "--block_bytes",
            default=str(BLOCK_BYTES),
            help="about how much is read between two "
            "watermarks; changes speed and memory, and no verdict of a replay",
        )

        add_watermark_flags(parser.add_argument_group("watermark"))

        lateness = parser.add_argument_group("windows and lateness")
        add = lateness.add_argument
        add("--window", help="size of the fixed windows, such as 1m")
        add("--window_offset", default="0s", help="where windows start, from the epoch")
        add("--aggregate", default="sum", help=f"one or more of {','.join(AGGREGATES)}")
        add("--allowed_lateness", default="0s", help="how long windows take corrections")
        add("--too_late", help="emit (as dead letters) or drop (and count) what comes after that")
        add("--num_shards", default="1", help="groups of keys that share state")

        outputs = parser.add_argument_group("output")
        add_output_flags(outputs.add_argument)
        outputs.add_argument(
            "--checkpoint",
            help="database for where a live input stands; by default that of --output",
        )
        outputs.add_argument("--report", help="file for the job's balance, as JSON")

        add_watch_flags(parser.add_argument_group("metrics and alerts").add_argument)

        profiles = parser.add_argument_group("profiles")
        add = profiles.add_argument
        add(
            "--profile",
            help="a named set of defaults for these flags, or FILE.toml[:NAME] (see `profiles`)",
        )
        add("--confirm", help="words for what is meant, though it loses or doubles records")


class SourceConfig(NamedTuple):
    """The checked configuration of an input and its watermark."""

    connector: Connector
    strategy: WatermarkStrategy
    settings: ReadSettings


@dataclass(frozen=True)
class StreamConfig:
    """A checked configuration of the streaming job."""

    connector: Connector
    strategy: WatermarkStrategy
    settings: ReadSettings
    windows: Windows
    aggregate: tuple[str, ...]
    num_shards: int
    emit_too_late: bool
    outputs: Outputs
    watch: Watch
    report: str | None
    checkpoint: str | None = field(repr=False)  # may hold a password
    num_readers: int
    confirmed: frozenset[str]

    @property
    def job(self) -> str:
        """Names the job among those that share its database; nothing for the usual table."""
        table = self.outputs.table
        return table if is_database(self.outputs.url) and table != TABLE_NAME else ""

    @property
    def endless(self) -> bool:
        """Whether the input is read as time goes by."""
        return self.connector.follows or self.settings.replay_speed is not None

    def input_bytes(self) -> int | None:
        """Gives the size of the input in bytes; None if it has no end, or part is compressed."""
        if self.connector.follows:
            return None
        ends = [position.end for position in self.connector.initial_positions().values()]
        return None if None in ends else sum(end for end in ends if end is not None)


def read_config(options: StreamOptions, *, engine_keeps: bool = False) -> StreamConfig:
    """Checks the flags, all before anything runs.

    Args:
        options: The flags.
        engine_keeps: Whether the engine has checkpoints of its own, so that a live input needs none
            in the store.

    Raises:
        ValueError: For the first flag that is missing or wrong; it names the flag, the value, the
            rule and the remedy.
    """
    aggregate = tuple(name.strip() for name in options.aggregate.split(","))
    ColumnAggregation(aggregate)
    _require(options, "input", "key_field", "window", "too_late", "output")
    if options.value_field is None and aggregate != ("count",):
        msg = f"--value_field is required for --aggregate={options.aggregate}"
        raise ValueError(msg)
    emit = one_of(options, "too_late", (EMIT, DROP)) == EMIT
    if emit and options.dead_letters is None:
        msg = "--too_late=emit needs --dead_letters DIR, the folder to emit to; or drop and count"
        raise ValueError(msg)
    source = read_source(options)
    return StreamConfig(
        connector=source.connector,
        strategy=source.strategy,
        settings=source.settings,
        windows=Windows(options.window, options.allowed_lateness, options.window_offset),
        aggregate=aggregate,
        num_shards=whole("--num_shards", options.num_shards),
        emit_too_late=emit,
        outputs=read_outputs(options, aggregate, read_kafka_options(options)),
        watch=read_watch(options),
        report=check_writable(options.report, options.output),
        checkpoint=_checkpoint(options, engine_keeps),
        num_readers=whole("--num_readers", options.num_readers),
        confirmed=frozenset(filter(None, (w.strip() for w in (options.confirm or "").split(",")))),
    )


def read_source(options: StreamOptions) -> SourceConfig:
    """Checks the flags of the input and its watermark.

    Raises:
        ValueError: For the first flag that is missing or wrong.
    """
    _require(options, "input", "key_field")
    return SourceConfig(read_connector(options), read_strategy(options), _settings(options))


def _checkpoint(options: StreamOptions, engine_keeps: bool) -> str | None:
    """Gives where a live input keeps its checkpoint; None for other inputs, and other keepers."""
    if engine_keeps:
        if options.checkpoint is not None:
            msg = (
                f"--checkpoint={without_login(options.checkpoint)} is for engines that keep "
                "nothing; Flink keeps where the input stands in its own checkpoints: leave it out"
            )
            raise ValueError(msg)
        return None
    if not has_messages(options):
        if options.checkpoint is not None:
            msg = (
                "--checkpoint is of inputs whose records are acknowledged (pubsub://, kafka://); "
                "files are read from the start: leave it out"
            )
            raise ValueError(msg)
        return None
    if options.checkpoint is None and not is_database(options.output):
        msg = (
            "--checkpoint=sqlite:///FILE is required where --output is a topic, or anything else "
            "but a database: what has been read and written must be kept somewhere"
        )
        raise ValueError(msg)
    return str(options.checkpoint or options.output)


def check_flags(
    argv: Sequence[str], own: Sequence[type[PipelineOptions]] = (StreamOptions, FlinkOptions)
) -> None:
    """Refuses flags that neither the streaming job nor Beam knows.

    Raises:
        ValueError: If there is one; it names the nearest known flag.
    """
    refuse_strange(argv, own)


def _require(options: StreamOptions, *names: str) -> None:
    why = {
        "too_late": "emit (keep too late records as dead letters) or drop (only count them): "
        "what happens to them is never silent",
        "window": "the window size, such as 1m",
        "output": "such as sqlite:///FILE",
    }
    for name in names:
        if not getattr(options, name):
            msg = f"--{name} is required" + (f": {why[name]}" if name in why else "")
            raise ValueError(msg)


def _settings(options: StreamOptions) -> ReadSettings:
    speed = None
    if options.replay_speed is not None:
        try:
            speed = float(options.replay_speed)
        except ValueError:
            speed = 0.0
        if not 0 < speed < float("inf"):
            msg = f"--replay_speed must be a number above 0, got {options.replay_speed!r}"
            raise ValueError(msg)
        if is_live(options):
            msg = "--replay_speed paces a replay; with --follow records come when they come"
            raise ValueError(msg)
    skew: int | Literal["live"] = "live"
    if options.max_future_skew is not None:
        skew = duration_ms(options.max_future_skew, name="--max_future_skew")
    if options.poll_interval is not None:
        duration_ms(options.poll_interval, name="--poll_interval")
        if not is_live(options):
            msg = "--poll_interval is for live inputs: a finite one is read on at once"
            raise ValueError(msg)
    return ReadSettings(
        whole("--block_bytes", options.block_bytes),
        skew,
        speed,
        poll_interval=options.poll_interval,
    )

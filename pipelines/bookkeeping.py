"""What a job notes of its runs beside its results, for those that come after it."""

from __future__ import annotations

import os

from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.contradictions import REPLACES_OTHERS
from beam_lateness.pipelines.flink.options import FlinkOptions
from beam_lateness.pipelines.options import StreamConfig
from beam_lateness.pipelines.outputs import remove_stale
from beam_lateness.transforms.commits.checkpoints import Checkpoints
from beam_lateness.transforms.commits.store import source_name
from beam_lateness.transforms.database import is_database
from beam_lateness.transforms.sinks.runs_table import Run, RunsTable
from beam_lateness.transforms.sources.connector import AcknowledgingConnector
from beam_lateness.transforms.sources.kafka import COMMITTED, LATEST, Kafka
from beam_lateness.transforms.times import (
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    format_duration,
)


def begin_run(options: PipelineOptions, config: StreamConfig, name: str) -> None:
    """Notes that a run is about to write to a database.

    Raises:
        ValueError: If the table holds results of other windows or aggregates, or of another input.
    """
    outputs = config.outputs
    if not is_database(outputs.url):
        return
    splits = {split: _full(split) for split in config.connector.initial_positions()}
    run = Run(splits, _reads_anew(options, config), _shape(config), config.aggregate)
    runs = RunsTable(outputs.table)
    with runs.opened(outputs.url) as engine:
        with engine.connect() as connection:
            for known in runs.with_rows(connection).values():
                _check(run, known, outputs.table, REPLACES_OTHERS in config.confirmed)
        runs.begin(engine, name, run)


def _check(run: Run, known: Run, table: str, confirmed: bool) -> None:
    """Refuses a run whose rows would stand beside, or replace, what an earlier one has to say."""
    for what, mine, theirs in (
        ("windows", run.windows, known.windows),
        ("aggregates", ",".join(run.aggregate), ",".join(known.aggregate)),
    ):
        if mine != theirs:
            msg = (
                f"table {table!r} (--table) holds results of other {what}, {theirs}; this job "
                f"has {mine}: together they say nothing right; name another table"
            )
            raise ValueError(msg)
    others = set(known.splits.values()) - set(run.splits.values())
    if run.anew and others and not confirmed:
        msg = (
            f"table {table!r} (--table) holds results of another input, {min(others)}: where both "
            "have records of a key and window, this run's row would replace the earlier one, and "
            "its records be in no result. Give one job all of the input, name another table, or "
            f"say that they share no window: --confirm={REPLACES_OTHERS}"
        )
        raise ValueError(msg)


def _shape(config: StreamConfig) -> str:
    size = format_duration(config.windows.size_ms)
    offset = config.windows.offset_ms
    return f"{size}+{format_duration(offset)}" if offset else size


def end_run(config: StreamConfig, name: str) -> None:
    """Notes that a run has come to its end, and removes what only runs before it have said.

    A row of an earlier run over the same input stands for records that this one has found too late:
    they are dead letters now, or dropped.
    """
    outputs = config.outputs
    if not is_database(outputs.url):
        return
    runs = RunsTable(outputs.table)
    with runs.opened(outputs.url) as engine:
        replaced = runs.end(engine, name).replaced_by(name)
    remove = remove_stale(outputs)
    if replaced and remove is not None:
        remove(replaced, MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS)


def _full(split: str) -> str:
    return split if "://" in split else os.path.abspath(split)


def _reads_anew(options: PipelineOptions, config: StreamConfig) -> bool:
    """Whether a run judges again what earlier ones have judged."""
    if options.view_as(FlinkOptions).savepoint_path is not None:
        return False
    connector = config.connector
    if not isinstance(connector, AcknowledgingConnector):
        return True
    if not isinstance(connector, Kafka):  # Pub/Sub does not give again what was acknowledged
        return False
    if config.checkpoint is not None:
        checkpoints = Checkpoints(config.checkpoint)
        try:
            if checkpoints.load(source_name(connector.source_id, config.job)) is not None:
                return False
        finally:
            checkpoints.close()
    return connector.start not in (COMMITTED, LATEST)

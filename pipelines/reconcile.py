"""The nightly job: brings dead letters of too late records into the windows they belong to.

python -m beam_lateness.pipelines.reconcile --help
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import apache_beam as beam
import orjson
from apache_beam.options.pipeline_options import PipelineOptions
from rich.console import Console

from beam_lateness.pipelines.flags import help_of, refuse_strange, truth
from beam_lateness.pipelines.flink.options import FlinkOptions, Job, asks_flink, in_job_server
from beam_lateness.pipelines.flink.run import ClusterRun
from beam_lateness.pipelines.report import check_writable
from beam_lateness.pipelines.runners import choose_engine
from beam_lateness.pipelines.running import INTERRUPTED, OK, outcome, run_to_end
from beam_lateness.pipelines.runs import new_run
from beam_lateness.transforms import metrics
from beam_lateness.transforms.database import looking, without_login
from beam_lateness.transforms.private_files import write_private
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import Ledger
from beam_lateness.transforms.reconcile.letters import run_of
from beam_lateness.transforms.reconcile.reconcile import ReadDeadLetters, Reconcile, find_letters
from beam_lateness.transforms.sinks.runs_table import RunsTable
from beam_lateness.transforms.sinks.window_table import TABLE_NAME

_PROGRAM: Final = "beam-lateness reconcile"


class ReconcileOptions:
    """The flags of `beam-lateness reconcile`; Beam's own flags stand beside them.

    They are none of `PipelineOptions`: Beam has one parser for all of these, and several have the
    names of flags of `stream`.
    """

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--dead_letters", help="the folder of the job's --dead_letters, or a glob of its files")
        add("--output", help="the database of the job's --output")
        add("--table", default=TABLE_NAME, help="the job's --table (%(default)s)")
        add("--aggregate", help="the job's --aggregate (as the job has noted it, or sum)")
        add("--from", dest="from_time", help="windows that start at this or later (ISO 8601 or ms)")
        add("--to", dest="to_time", help="windows that start before this")
        add("--run", help="dead letters of this run of the job only")
        add(
            "--dry_run",
            nargs="?",
            const="true",
            default="false",
            help="change nothing: true, false",
        )
        add("--report", help="file for what was done, JSON lines: a window, or what was left, each")


@dataclass(frozen=True)
class ReconcileConfig:
    """A checked configuration of the reconciliation."""

    files: tuple[str, ...]
    input_bytes: int
    output: str
    table: str
    aggregate: tuple[str, ...]
    start_ms: int | None
    end_ms: int | None
    of_run: str | None
    dry_run: bool
    report: str | None


def read_reconcile_config(options: Any) -> ReconcileConfig:
    """Checks the flags, all before anything runs.

    Raises:
        ValueError: For the first flag that is missing or wrong.
    """
    for name in ("dead_letters", "output"):
        if not getattr(options, name):
            msg = f"--{name} is required: that of the job whose dead letters these are"
            raise ValueError(msg)
    dry_run = truth("--dry_run", options.dry_run)
    aggregate = _aggregate(options)
    correction = Correction(aggregate)
    Ledger(options.output, "check", correction, options.table, dry_run=True).close()
    found = find_letters(options.dead_letters)
    if options.run is not None and options.run not in {run_of(path) for path, _ in found}:
        msg = f"--run={options.run}: none of the dead letter files in --dead_letters is of that run"
        raise ValueError(msg)
    return ReconcileConfig(
        files=tuple(path for path, _ in found),
        input_bytes=sum(size for _, size in found),
        output=options.output,
        table=options.table,
        aggregate=aggregate,
        start_ms=_time("--from", options.from_time),
        end_ms=_time("--to", options.to_time),
        of_run=options.run,
        dry_run=dry_run,
        report=check_writable(options.report, options.output),
    )


def _aggregate(options: Any) -> tuple[str, ...]:
    """Gives the job's aggregates: those that are given must be those that it has noted."""
    given = None
    if options.aggregate is not None:
        given = tuple(name.strip() for name in options.aggregate.split(","))
        Correction(given)
    with looking(options.output, "output (--output)") as connection:
        runs = RunsTable(options.table).with_rows(connection)
    noted = {run.aggregate for run in runs.values()}
    if given is not None and noted and given not in noted:
        shown = " or ".join(",".join(each) for each in sorted(noted))
        msg = f"--aggregate={options.aggregate}, but the job that wrote the table has {shown}"
        raise ValueError(msg)
    return given or (min(noted) if noted else ("sum",))


def _time(name: str, text: str | None) -> int | None:
    """Reads a time: ISO 8601 (UTC, if it names no zone) or ms since the epoch."""
    if text is None:
        return None
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        msg = (
            f"{name} must be a time such as 2026-01-31T18:00Z, or ms since the epoch, got {text!r}"
        )
        raise ValueError(msg) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


def build(pipeline: beam.Pipeline, config: ReconcileConfig, run: str) -> None:
    """Adds the job's steps to a pipeline."""
    read = pipeline | "ReadDeadLetters" >> ReadDeadLetters(
        list(config.files), config.start_ms, config.end_ms, config.of_run
    )
    done = read.letters | "Reconcile" >> Reconcile(
        config.output,
        run,
        config.aggregate,
        config.table,
        config.dry_run,
        superseded=config.of_run is not None,  # who names a run means it
    )
    if config.report is not None:
        lines = (
            done.corrected | "CorrectedLine" >> beam.Map(_line, "corrected"),
            done.left | "LeftLine" >> beam.Map(_line, "left"),
            read.left | "UnreadLine" >> beam.Map(_line, "left"),
        )
        _ = (
            lines
            | "Lines" >> beam.Flatten()
            | "Gather" >> beam.GroupByKey()
            | "WriteReport" >> beam.ParDo(_WriteReport(config.report))
        )


def _line(record: Any, what: str) -> tuple[int, bytes]:
    """Gives a line of the report, under the one key of all of them."""
    fields: Mapping[str, Any] = {"what": what, **record._asdict()}
    try:
        return 0, orjson.dumps(fields, default=repr)
    except TypeError:  # an integer beyond 64 bits
        return 0, json.dumps(fields, default=repr).encode()


class _WriteReport(beam.DoFn):
    """Writes the lines of the report, windows first, in the order of their keys."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        write_private(self._path, b"".join(line + b"\n" for line in sorted(element[1])))


def run_reconcile(argv: Sequence[str], console: Console) -> int:
    """Runs the job from the command line's flags.

    Raises:
        ValueError: If a flag, the dead letters or the database is wrong: nothing has run then.
        EngineError: If no engine can be had.
    """
    refuse_strange(argv, (ReconcileOptions, FlinkOptions))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ReconcileOptions._add_argparse_args(parser)
    own, beams = parser.parse_known_args(list(argv))
    options = PipelineOptions(beams)
    config = read_reconcile_config(own)
    run = f"reconcile-{new_run()}"
    engine = choose_engine(options, Job(False, False, 1, run), config.input_bytes, console.print)
    console.print(f"engine: {engine.name} ({engine.reason})")
    if config.report is not None:
        write_private(config.report, b"")  # nothing is gathered where nothing was found
    metrics.start_tally()
    pipeline = beam.Pipeline(runner=engine.runner, options=options)
    build(pipeline, config, run)
    if asks_flink(options) and not in_job_server(options):
        ended = ClusterRun(pipeline, engine.runner, options, False, console).await_end()
    else:
        ended = run_to_end(pipeline, engine)
    return _finish(ended.counts, config, console, run, interrupted=ended.interrupted)


def _finish(
    counts: Mapping[str, int],
    config: ReconcileConfig,
    console: Console,
    run: str,
    *,
    interrupted: bool,
) -> int:
    found = {
        name: counts.get(name, 0)
        for name in (
            metrics.DEAD_LETTERS,
            metrics.RECONCILED,
            metrics.CORRECTED_WINDOWS,
            metrics.ALREADY_RECONCILED,
            metrics.LEFT,
        )
    }
    would = "would be " if config.dry_run else ""
    console.print(
        f"too late records: {found[metrics.DEAD_LETTERS]:,} read; "
        f"{found[metrics.RECONCILED]:,} {would}added to {found[metrics.CORRECTED_WINDOWS]:,} "
        f"windows; {found[metrics.ALREADY_RECONCILED]:,} stood there already; "
        f"{found[metrics.LEFT]:,} left",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"windows: {without_login(config.output)} (table {config.table}, run {run})", soft_wrap=True
    )
    if found[metrics.LEFT] and config.report is None:
        console.print("why they were left: --report=FILE has a line for each")
    if config.report is not None and not interrupted:
        console.print(f"report: {config.report}", soft_wrap=True)
    if interrupted:
        console.print("interrupted: what was added stays; the same command again does the rest")
        return INTERRUPTED
    return OK


def main(argv: Sequence[str]) -> int:
    """Runs the command, and turns what goes wrong into one line and an exit code."""
    if "--help" in argv or "-h" in argv:
        text = (
            "Adds the too late records of a job's dead letters to the windows that they belong to, "
            "each record once: run twice, or at the same time, it changes nothing more. Beam's own "
            "flags, such as --runner, may follow."
        )
        print(help_of(_PROGRAM, text, ReconcileOptions))
        return OK
    return outcome(_PROGRAM, partial(run_reconcile, argv, Console()))


if __name__ == "__main__":
    from beam_lateness.pipelines.cli import run

    sys.argv.insert(1, "reconcile")
    run()

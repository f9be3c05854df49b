"""The main job: read, route what is too late, aggregate windows that correct themselves, upsert.

python -m beam_lateness.pipelines.streaming --help
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from rich.console import Console
from rich.text import Text

from beam_lateness.pipelines.bookkeeping import begin_run, end_run
from beam_lateness.pipelines.contradictions import REPLACES_OTHERS, check_contradictions
from beam_lateness.pipelines.ended import Ended
from beam_lateness.pipelines.flags import help_of
from beam_lateness.pipelines.flink.options import (
    FlinkOptions,
    Job,
    asks_flink,
    in_job_server,
    jar_path,
    make_absolute,
)
from beam_lateness.pipelines.flink.run import ClusterRun
from beam_lateness.pipelines.options import StreamConfig, StreamOptions, check_flags, read_config
from beam_lateness.pipelines.outputs import dead_letters, remove_stale, write_panes
from beam_lateness.pipelines.profiles import Profile, apply_profile, stream_flags
from beam_lateness.pipelines.progress import Progress
from beam_lateness.pipelines.report import Report, format_time
from beam_lateness.pipelines.runners import choose_engine
from beam_lateness.pipelines.running import FAILED, INTERRUPTED, OK, outcome, run_to_end
from beam_lateness.pipelines.runs import new_run
from beam_lateness.transforms import metrics
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.database import is_database, without_login
from beam_lateness.transforms.lateness.aggregate import AggregateWindows
from beam_lateness.transforms.lateness.classify import RouteTooLate
from beam_lateness.transforms.sinks.alerts import masked
from beam_lateness.transforms.sinks.audit_check import audit_head
from beam_lateness.transforms.sources.pubsub import PubSub
from beam_lateness.transforms.sources.reader import ReadEvents
from beam_lateness.transforms.sources.sessions import close_sessions, open_sessions
from beam_lateness.transforms.sources.status import unpublish

_PROGRAM: Final = "beam-lateness stream"


def build(pipeline: beam.Pipeline, config: StreamConfig, *, embedded: bool, run: str) -> None:
    """Adds the job's steps to a pipeline.

    Args:
        pipeline: An empty pipeline.
        config: The checked configuration.
        embedded: Whether the engine is Beam's Python DirectRunner.
        run: The run's name.

    Raises:
        ValueError: If the input or an output cannot be used.
    """
    commits = _commits(config, run)
    read = pipeline | "ReadEvents" >> ReadEvents(
        config.connector, config.strategy, config.settings, embedded, commits, config.num_readers
    )
    # Each reader stamps by its own splits; where there are several, the engine knows the lowest.
    verdict = "stamp" if config.num_readers == 1 else "engine"
    routed = read.events | "RouteTooLate" >> RouteTooLate(config.windows, verdict)
    panes = routed.accepted | "AggregateWindows" >> AggregateWindows(
        config.windows, config.aggregate, config.num_shards, trace=config.outputs.audit
    )
    # Made before the table, so that a folder that cannot be written leaves no empty table behind.
    letters = dead_letters(config.outputs, run, commits)
    write_panes(panes, config.outputs, run, commits)
    if letters is not None:
        _ = read.invalid | "WriteInvalid" >> letters
        if config.emit_too_late:
            _ = routed.too_late | "WriteTooLate" >> letters
    config.watch.add_alerts(read.events, config.windows)


def _commits(config: StreamConfig, run: str) -> CommitAfterStore | None:
    """How a live input is acknowledged: this job's engines keep nothing when they die."""
    if config.checkpoint is None:
        return None
    kept = config.outputs.dead_letters is not None
    stale = remove_stale(config.outputs)
    return CommitAfterStore(
        run, config.windows, config.checkpoint, config.emit_too_late, kept, stale, config.job
    )


def run_stream(argv: Sequence[str], console: Console) -> int:
    """Runs the job from the command line's flags.

    Args:
        argv: The flags.
        console: Where to report.

    Returns:
        0 if the job ended and balances (or was submitted, and left), 1 if not, 130 if it was
        interrupted.

    Raises:
        ValueError: If a flag, the input or an output is wrong: nothing has run then.
        EngineError: If no engine can be had.
    """
    argv, profile = apply_profile(argv, stream_flags())
    check_flags(argv)
    options = PipelineOptions(list(argv))
    stream = options.view_as(StreamOptions)
    on_flink = asks_flink(options)
    if on_flink:
        make_absolute(stream)
    else:
        _check_elsewhere(options)
    config = read_config(stream, engine_keeps=on_flink)
    _check_meaning(profile, config, console)
    _hide_passwords(stream)
    detach = options.view_as(FlinkOptions).detach
    _check_detached(detach, config)
    run = new_run()
    config.connector.initial_positions()
    if isinstance(config.connector, PubSub):
        config.connector.check(ordered_allowed=on_flink)
    job = Job(config.endless, config.connector.follows, config.num_readers, run)
    engine = choose_engine(options, job, config.input_bytes(), console.print)
    console.print(f"engine: {engine.name} ({engine.reason})")
    metrics.start_tally()
    unpublish()
    open_sessions()
    pipeline = beam.Pipeline(runner=engine.runner, options=options)
    build(pipeline, config, embedded=engine.embedded, run=run)
    begin_run(options, config, run)
    if jar_path(options) is not None:
        pipeline.run().wait_until_finish()
        engine.stop()
        console.print(f"job jar: {jar_path(options)}", soft_wrap=True)
        return OK
    if detach:
        ClusterRun(pipeline, engine.runner, options, job.live, console).leave()
        console.print(f"windows: {without_login(config.outputs.url)} (run {run})", soft_wrap=True)
        return OK
    shown = sys.stderr
    try:
        if on_flink and not in_job_server(options):
            cluster = ClusterRun(pipeline, engine.runner, options, job.live, console)
            with config.watch.counting(cluster.counts, run, engine.name, console):
                ended = cluster.await_end()
        else:
            with (
                config.watch.counting(metrics.tally, run, engine.name, console),
                Progress(console),
            ):
                ended = run_to_end(pipeline, engine)
    finally:
        try:
            close_sessions()
        finally:
            sys.stderr = shown
    report = Report.of(ended.counts, engine.name, run)
    code = _code(report, ended)
    if code == OK:
        end_run(config, run)
    _tell(report, config, console, ended)
    return code


def _check_meaning(profile: Profile | None, config: StreamConfig, console: Console) -> None:
    """Refuses settings that contradict each other, and warns of those that are confirmed."""
    for warning in check_contradictions(
        profile,
        config.outputs.mode,
        config.windows.allowed_lateness_ms,
        config.emit_too_late,
        config.outputs.audit,
        is_database(config.outputs.url),
        set(config.confirmed - {REPLACES_OTHERS}),
    ):
        console.print(Text(warning), style="bold red", soft_wrap=True)


def _hide_passwords(stream: StreamOptions) -> None:
    """Takes passwords out of the options, which engines show; the steps have them already."""
    for name in ("output", "checkpoint", "alert_to"):
        value = getattr(stream, name)
        if value is not None:
            hide = masked if name == "alert_to" else without_login
            setattr(stream, name, hide(value))


def _check_elsewhere(options: PipelineOptions) -> None:
    """Refuses flags of Flink on other engines: they would not go on where a savepoint says."""
    flink = options.view_as(FlinkOptions)
    for name, value in (
        ("savepoint_path", flink.savepoint_path),
        ("output_executable_path", jar_path(options)),
        ("detach", flink.detach),
    ):
        if value:
            flag = "resume --from" if name == "savepoint_path" else f"--{name}"
            msg = f"{flag} is of Flink only; give --runner=FlinkRunner, or leave it out"
            raise ValueError(msg)


def _check_detached(detach: bool, config: StreamConfig) -> None:
    if detach and config.watch.counts:
        msg = (
            "--metrics_port and --metrics_file show counts as long as this command waits for the "
            "job, which --detach does not: leave them out; Flink has metrics reporters of its own"
        )
        raise ValueError(msg)
    if detach and config.report is not None:
        msg = (
            f"--report={config.report} is written at the job's end, which --detach does not wait "
            "for: leave it out; `beam-lateness status` tells the counts"
        )
        raise ValueError(msg)


def _code(report: Report, ended: Ended) -> int:
    if ended.interrupted:
        return INTERRUPTED
    return OK if report.balanced or not ended.whole else FAILED


def _tell(report: Report, config: StreamConfig, console: Console, ended: Ended) -> None:
    judged = "balance" if ended.whole else "since the job began anew"
    console.print(f"{judged}: {report.balance()}", highlight=False, soft_wrap=True)
    watermark = format_time(report.watermark_ms)
    console.print(f"watermark: {watermark}; panes: {report.panes:,}", highlight=False)
    url, table = config.outputs.url, config.outputs.table
    where = f"table {table}, run" if is_database(url) else "run"
    console.print(f"windows: {without_login(url)} ({where} {report.run})", soft_wrap=True)
    if config.outputs.audit:
        console.print(f"audit trail: {audit_head(url, table)}", highlight=False, soft_wrap=True)
    if config.outputs.dead_letters is not None:
        console.print(f"dead letters: {config.outputs.dead_letters}", soft_wrap=True)
    elif report.invalid:
        console.print(f"{report.invalid:,} invalid lines were only counted: no --dead_letters")
    if config.report is not None:
        report.write(config.report)
    if ended.interrupted:
        again = ended.remark or (
            _again(config)
            if config.checkpoint is None
            else "they were given back, and the same command again goes on with them"
        )
        open_records = f"{report.unaccounted:,} records were" if ended.whole else "records are"
        console.print(f"interrupted: {open_records} in windows still open; {again}", soft_wrap=True)


def _again(config: StreamConfig) -> str:
    if is_database(config.outputs.url):
        return "the same command again reads from the start and corrects the table"
    return (
        "the same command again reads from the start and writes all panes again, of a later run: "
        "of a key and window take the largest run"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job, and turns what goes wrong into one line and an exit code."""
    flags = list(sys.argv[1:] if argv is None else argv)
    if "--help" in flags or "-h" in flags:
        print(usage())
        return OK
    return outcome(_PROGRAM, partial(run_stream, flags, Console()))


def usage() -> str:
    """Gives the help text of the job's own flags."""
    return help_of(
        _PROGRAM,
        "Aggregates a stream of events in windows that correct themselves, and keeps what comes "
        "too late. Beam's own flags, such as --runner, may follow.",
        StreamOptions,
    )


if __name__ == "__main__":
    from beam_lateness.pipelines.cli import run

    sys.argv.insert(1, "stream")
    run()

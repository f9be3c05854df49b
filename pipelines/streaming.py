"""The main job: read, route what is too late, aggregate windows that correct themselves, upsert.

python -m beam_lateness.pipelines.streaming --help
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineState
from rich.console import Console

from beam_lateness.pipelines.causes import cause_of
from beam_lateness.pipelines.ended import Ended
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.options import (
    FlinkOptions,
    Job,
    asks_flink,
    in_job_server,
    jar_path,
    make_absolute,
)
from beam_lateness.pipelines.flink.run import ClusterRun
from beam_lateness.pipelines.interrupts import interrupts
from beam_lateness.pipelines.options import StreamConfig, StreamOptions, check_flags, read_config
from beam_lateness.pipelines.progress import Progress
from beam_lateness.pipelines.report import Report, format_time
from beam_lateness.pipelines.runners import Engine, choose_engine
from beam_lateness.pipelines.runs import new_run
from beam_lateness.transforms import metrics
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.lateness.aggregate import AggregateWindows
from beam_lateness.transforms.lateness.classify import RouteTooLate
from beam_lateness.transforms.sinks.dead_letters import WriteDeadLetters
from beam_lateness.transforms.sinks.topic_urls import KAFKA, is_topic
from beam_lateness.transforms.sinks.topics import PublishDeadLetters, PublishPanes
from beam_lateness.transforms.sinks.upsert import RemoveStale, UpsertPanes
from beam_lateness.transforms.sources.pubsub import PubSub
from beam_lateness.transforms.sources.reader import ReadEvents
from beam_lateness.transforms.sources.sessions import close_sessions, open_sessions
from beam_lateness.transforms.sources.status import unpublish

OK, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

_LOG = logging.getLogger(__name__)

_END_WITHIN_S: Final = 5.0

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
        config.windows, config.aggregate, config.num_shards
    )
    # Made before the table, so that a folder that cannot be written leaves no empty table behind.
    dead_letters = _dead_letters(config, run, commits)
    written = None if commits is None else commits.panes_written
    if is_topic(config.output):
        publish = PublishPanes(config.output, run, _options(config, config.output), written)
        _ = panes | "PublishPanes" >> publish
    else:
        _ = panes | "UpsertPanes" >> UpsertPanes(config.output, run, written)
    if dead_letters is not None:
        _ = read.invalid | "WriteInvalid" >> dead_letters
        if config.emit_too_late:
            _ = routed.too_late | "WriteTooLate" >> dead_letters


def _options(config: StreamConfig, url: str) -> Mapping[str, str]:
    return config.kafka_options if url.startswith(KAFKA) else {}


def _commits(config: StreamConfig, run: str) -> CommitAfterStore | None:
    """How a live input is acknowledged: this job's engines keep nothing when they die."""
    if config.checkpoint is None:
        return None
    retract = None if is_topic(config.output) else RemoveStale(config.output)
    kept = config.dead_letters is not None
    return CommitAfterStore(
        run, config.windows, config.checkpoint, config.emit_too_late, kept, retract
    )


def _dead_letters(config: StreamConfig, run: str, commits: CommitAfterStore | None) -> Any:
    if config.dead_letters is None:
        return None
    written = None if commits is None else commits.letters_written
    if is_topic(config.dead_letters):
        return PublishDeadLetters(
            config.dead_letters, run, _options(config, config.dead_letters), written
        )
    return WriteDeadLetters(config.dead_letters, run, written)


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
    check_flags(argv)
    options = PipelineOptions(list(argv))
    stream = options.view_as(StreamOptions)
    on_flink = asks_flink(options)
    if on_flink:
        make_absolute(stream)
    else:
        _check_elsewhere(options)
    config = read_config(stream, engine_keeps=on_flink)
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
    if jar_path(options) is not None:
        pipeline.run().wait_until_finish()
        engine.stop()
        console.print(f"job jar: {jar_path(options)}", soft_wrap=True)
        return OK
    if detach:
        ClusterRun(pipeline, engine.runner, options, job.live, console).leave()
        console.print(f"windows: {config.output} (run {run})", soft_wrap=True)
        return OK
    shown = sys.stderr
    try:
        if on_flink and not in_job_server(options):
            ended = ClusterRun(pipeline, engine.runner, options, job.live, console).await_end()
        else:
            with Progress(console):
                ended = _run_to_end(pipeline, engine)
    finally:
        try:
            close_sessions()
        finally:
            sys.stderr = shown
    return _finish(Report.of(ended.counts, engine.name, run), config, console, ended)


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
    if detach and config.report is not None:
        msg = (
            f"--report={config.report} is written at the job's end, which --detach does not wait "
            "for: leave it out; `beam-lateness status` tells the counts"
        )
        raise ValueError(msg)


def _run_to_end(pipeline: beam.Pipeline, engine: Engine) -> Ended:
    """Runs a pipeline whose workers are in this process."""
    result = None
    try:
        with interrupts():
            result = pipeline.run()
        with interrupts():  # once more: Beam has set its own handler meanwhile
            result.wait_until_finish()
    except KeyboardInterrupt:
        # Neither cancelling nor stopping is sure to come back once threads are cut off.
        ending = threading.Thread(target=_end, args=[result, engine], daemon=True)
        ending.start()
        ending.join(_END_WITHIN_S)
        return Ended(_counts(result, engine, True), interrupted=True)
    if result.state != PipelineState.DONE:
        msg = f"the job ended in state {result.state}"
        raise RuntimeError(msg)
    return Ended(_counts(result, engine, False))


def _end(result: PipelineResult | None, engine: Engine) -> None:
    try:
        if result is not None:
            result.cancel()
    except Exception:  # a runner raises what it likes
        _LOG.debug("while cancelling", exc_info=True)
    engine.stop()


def _counts(result: PipelineResult | None, engine: Engine, interrupted: bool) -> dict[str, int]:
    if engine.embedded or interrupted or result is None:
        return metrics.tally()
    return metrics.committed(result.metrics())


def _finish(report: Report, config: StreamConfig, console: Console, ended: Ended) -> int:
    judged = "balance" if ended.whole else "since the job began anew"
    console.print(f"{judged}: {report.balance()}", highlight=False, soft_wrap=True)
    watermark = format_time(report.watermark_ms)
    console.print(f"watermark: {watermark}; panes: {report.panes:,}", highlight=False)
    where = "run" if is_topic(config.output) else "table windows, run"
    console.print(f"windows: {config.output} ({where} {report.run})", soft_wrap=True)
    if config.dead_letters is not None:
        console.print(f"dead letters: {config.dead_letters}", soft_wrap=True)
    elif report.invalid:
        console.print(f"{report.invalid:,} invalid lines were only counted: no --dead_letters")
    if config.report is not None:
        report.write(config.report)
    if ended.interrupted:
        again = ended.remark or (
            "the same command again reads from the start and corrects the table"
            if config.checkpoint is None
            else "they were given back, and the same command again goes on with them"
        )
        open_records = f"{report.unaccounted:,} records were" if ended.whole else "records are"
        console.print(f"interrupted: {open_records} in windows still open; {again}", soft_wrap=True)
        return INTERRUPTED
    return OK if report.balanced or not ended.whole else FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job, and turns what goes wrong into one line and an exit code."""
    flags = list(sys.argv[1:] if argv is None else argv)
    if "--help" in flags or "-h" in flags:
        print(usage())
        return OK
    try:
        return run_stream(flags, Console())
    except (ValueError, EngineError) as error:
        print(f"{_PROGRAM}: error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        print(f"{_PROGRAM}: interrupted before the job ran", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # by a function of the user's: its code is not the job's
        print(f"{_PROGRAM}: the job failed: something in it called exit({error})", file=sys.stderr)
        return FAILED
    except Exception as error:  # a runner raises what it likes
        _LOG.info("%s", error)
        print(f"{_PROGRAM}: the job failed: {cause_of(str(error))}", file=sys.stderr)
        return FAILED


def usage() -> str:
    """Gives the help text of the job's own flags."""
    import argparse

    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Aggregates a stream of events in windows that correct themselves, and keeps "
        "what comes too late. Beam's own flags, such as --runner, may follow.",
        allow_abbrev=False,
    )
    StreamOptions._add_argparse_args(parser)
    return parser.format_help()


if __name__ == "__main__":
    from beam_lateness.pipelines.cli import run

    sys.argv.insert(1, "stream")
    run()

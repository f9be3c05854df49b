"""The command `beam-lateness explain`: what holds the watermark of an input back."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from apache_beam.options.pipeline_options import PipelineOptions
from rich.console import Console
from rich.table import Table
from rich.text import Text

from beam_lateness.pipelines.flags import help_of
from beam_lateness.pipelines.flink.options import FlinkOptions
from beam_lateness.pipelines.options import (
    StreamOptions,
    check_flags,
    read_source,
)
from beam_lateness.pipelines.profiles import apply_profile, stream_flags
from beam_lateness.pipelines.report import check_writable, format_time
from beam_lateness.transforms.private_files import write_private
from beam_lateness.transforms.sources.explain import Explanation, explain
from beam_lateness.transforms.times import format_duration

_PROGRAM: Final = "beam-lateness explain"


class ExplainOptions(PipelineOptions):
    """The flag that only `explain` has; it takes those of `stream` too."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--watch", help="live: how long to look, such as 1m (until all has been read)"
        )


def run_explain(argv: Sequence[str], console: Console) -> int:
    """Reads the input that the flags describe, and shows where its watermark stands.

    Args:
        argv: The flags of `stream`; those of windows and outputs are not looked at, but
            `--report`, to which the explanation is written as JSON.
        console: Where to show it.

    Returns:
        0.

    Raises:
        ValueError: If a flag or the input is wrong.
    """
    argv, _ = apply_profile(argv, stream_flags())
    check_flags(argv, (StreamOptions, FlinkOptions, ExplainOptions))
    options = PipelineOptions(list(argv))
    stream = options.view_as(StreamOptions)
    source = read_source(stream)
    watch = options.view_as(ExplainOptions).watch
    if watch is not None and not source.connector.follows:
        msg = f"--watch={watch} needs --follow or a topic: a finite input is read to its end"
        raise ValueError(msg)
    report = check_writable(stream.report, stream.output)
    found = explain(source.connector, source.strategy, source.settings, watch)
    show(found, console)
    if report is not None:
        write_private(report, f"{json.dumps(as_json(found), indent=1)}\n".encode())
    return 0


def as_json(found: Explanation) -> dict[str, object]:
    """Gives an explanation as JSON values."""
    return {**asdict(found), "splits": [split._asdict() for split in found.splits]}


def show(found: Explanation, console: Console) -> None:
    """Prints an explanation: a table over the splits, and the reasons."""
    folder = _folder_of([split.split for split in found.splits])
    day = _day_of(found)
    table = Table(box=None, pad_edge=False)
    table.add_column("split", overflow="fold", min_width=10)
    for column in ("state", "records", "largest event time", "watermark", "behind"):
        right = column in ("records", "behind")
        # Without a common day, times are long: they may break where the date ends.
        whole = bool(day) or column not in ("largest event time", "watermark")
        table.add_column(column, justify="right" if right else "left", no_wrap=whole)
    highest = max((s.watermark_ms for s in found.splits if s.watermark_ms is not None), default=0)
    for split in found.splits:
        behind = None if split.watermark_ms is None else highest - split.watermark_ms
        mark = " *" if split.split == found.held_by else ""
        cells = (
            split.split.removeprefix(folder) + mark,
            split.state,
            f"{split.records:,}",
            format_time(split.max_event_time_ms).removeprefix(day),
            format_time(split.watermark_ms).removeprefix(day),
            "-" if behind is None else format_duration(behind),
        )
        table.add_row(*map(Text, cells))  # no markup: a name may hold anything
    if folder or day:
        console.print(Text(", ".join(filter(None, (folder and f"in {folder}", day.strip())))))
    console.print(table)
    bound = "" if found.bound_ms is None else f" (bound {format_duration(found.bound_ms)})"
    console.print(f"\nwatermark: {format_time(found.watermark_ms)}{bound}", highlight=False)
    for reason in found.reasons:
        console.print(Text(f"- {reason}"), soft_wrap=True)


def _day_of(found: Explanation) -> str:
    """The day, if all times shown are of one: it is shown once then."""
    times = [ms for split in found.splits for ms in (split.max_event_time_ms, split.watermark_ms)]
    days = {format_time(ms)[: len("2026-01-01 ")] for ms in times if ms is not None}
    return days.pop() if len(days) == 1 else ""


def _folder_of(names: Sequence[str]) -> str:
    """The folder that all names are in, with its last separator; empty if there is none."""
    folders = {os.path.dirname(name) for name in names}
    folder = folders.pop() if len(folders) == 1 else ""
    return os.path.join(folder, "") if folder else ""


def main(argv: Sequence[str]) -> int:
    """Runs the command, and turns a wrong flag into one line and an exit code."""
    if "--help" in argv or "-h" in argv:
        text = (
            "Reads an input as `stream` would, and says what holds its watermark back, for how "
            "long, and what helps. It takes the flags of `stream` (those of windows and outputs "
            "are not looked at; --report writes JSON)."
        )
        print(help_of(_PROGRAM, text, ExplainOptions, StreamOptions))
        return 0
    try:
        return run_explain(argv, Console())
    except (ValueError, OSError) as error:
        print(f"{_PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130

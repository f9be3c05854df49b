"""The command `beam-lateness audit`: looks at an audit trail, and whether it is whole."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from beam_lateness.pipelines.flags import refuse_unknown
from beam_lateness.pipelines.report import format_time
from beam_lateness.pipelines.running import FAILED, OK, outcome
from beam_lateness.transforms.sinks.audit_check import reading_trail, verify_audit
from beam_lateness.transforms.sinks.audit_trail import Entry
from beam_lateness.transforms.sinks.window_table import TABLE_NAME

_PROGRAM: Final = "beam-lateness audit"
_MEANT: Final = {"head": "verify", "key": "show", "window_start_ms": "show"}


def main(argv: Sequence[str]) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="verify: finds entries of the audit trail that were changed, removed or "
        "inserted, and rows of the table that do not agree with it (exit code 1 then). "
        "show: shows how a window came to its value.",
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=["verify", "show"])
    parser.add_argument("--output", required=True, help="the database of the job's --output")
    parser.add_argument("--table", default=TABLE_NAME, help="the job's --table (%(default)s)")
    parser.add_argument("--head", help="verify: a head noted earlier, SEQ:HASH, must be in it")
    parser.add_argument("--key", help="show: entries of this key only")
    parser.add_argument("--window_start_ms", type=int, help="show: of the window that starts then")
    options, unknown = parser.parse_known_args(list(argv))

    def act() -> int:
        refuse_unknown(parser, unknown)
        for name, action in _MEANT.items():
            if options.action != action and getattr(options, name) is not None:
                msg = f"--{name} has no meaning with `{options.action}`; leave it out"
                raise ValueError(msg)
        return _verify(options) if options.action == "verify" else _show(options)

    return outcome(_PROGRAM, act)


def _verify(options: Any) -> int:
    console = Console()
    found = verify_audit(options.output, options.table, options.head)
    for problem in found.problems:
        console.print(Text(problem), soft_wrap=True)
    verdict = "whole" if not found.problems else "NOT whole"
    console.print(
        f"{found.entries:,} entries, {verdict}; head: {found.head}", highlight=False, soft_wrap=True
    )
    if not found.problems:
        console.print("keep the head elsewhere: --head proves later that nothing before it changed")
    return FAILED if found.problems else OK


def _show(options: Any) -> int:
    console, cell = Console(), {"key": options.key, "window_start_ms": options.window_start_ms}
    with reading_trail(options.output, options.table) as (trail, connection):
        for entry in trail.read(connection, **cell):
            console.print(Text(_line(entry)), soft_wrap=True)
    return OK


def _line(entry: Entry) -> str:
    change = entry.change
    watermark = "" if change.watermark_ms is None else f", {format_time(change.watermark_ms)}"
    return (
        f"#{entry.seq} {format_time(entry.at_ms)} {change.key} "
        f"[{format_time(change.window_start_ms)}, {format_time(change.window_end_ms)}): "
        f"{change.old_value or '-'} -> {change.new_value or '-'} "
        f"({change.old_count:,} -> {change.new_count:,} records; {change.cause}{watermark}, "
        f"run {change.run}){'' if change.source is None else f' {change.source}'}"
    )

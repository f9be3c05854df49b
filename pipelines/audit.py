"""The command `beam-lateness audit`: looks at an audit trail, and whether it is whole."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from sqlalchemy import inspect

from beam_lateness.pipelines.flags import refuse_unknown
from beam_lateness.pipelines.report import format_time
from beam_lateness.pipelines.running import FAILED, OK, outcome
from beam_lateness.transforms.database import open_database, without_login
from beam_lateness.transforms.sinks.audit_check import verify_audit
from beam_lateness.transforms.sinks.audit_trail import AuditTrail, Entry
from beam_lateness.transforms.sinks.window_table import TABLE_NAME

_PROGRAM: Final = "beam-lateness audit"


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
    console, engine = Console(), open_database(options.output, "output (--output)")
    trail = AuditTrail.of(options.table)
    try:
        if not inspect(engine).has_table(trail.entries.name):
            msg = (
                f"{without_login(options.output)!r} has no audit trail of {options.table!r} "
                "(--table); one is written with --audit=true"
            )
            raise ValueError(msg)
        with engine.connect() as connection:
            for entry in trail.read(
                connection, key=options.key, window_start_ms=options.window_start_ms
            ):
                console.print(Text(_line(entry)), soft_wrap=True)
    finally:
        engine.dispose()
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

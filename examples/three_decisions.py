"""Three decisions over one stream: settlement, a dashboard and an audit, each right in its way.

    python examples/three_decisions.py

The events of `timeline.py`, read once. How long a result waits, and what becomes of records that
come later than that, is a decision for each use of it: that of the built-in profiles.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from sqlalchemy import MetaData, Table, create_engine, select

from beam_lateness import (
    AggregateWindows,
    AppendPanes,
    FieldTime,
    Files,
    JsonLines,
    Pane,
    ReadEvents,
    ReadSettings,
    RouteTooLate,
    TooLateRecord,
    UpsertPanes,
    WatermarkStrategy,
    Windows,
    verify_audit,
)

RUN: Final = "run-1"

# A marker at T completes everything up to and including T: the watermark is then T + 1 ms.
STEPS = """\
{"id": "one", "account": "ACC-001", "amount": 50000, "at": "2026-01-01T10:00:30Z"}
{"id": "two", "account": "ACC-001", "amount": 30000, "at": "2026-01-01T10:00:45Z"}
{"marker": true, "at": "2026-01-01T10:00:59.999Z"}
{"id": "late", "account": "ACC-001", "amount": 5000, "at": "2026-01-01T10:00:35Z"}
{"marker": true, "at": "2026-01-01T10:02:29.999Z"}
{"id": "later", "account": "ACC-001", "amount": 700, "at": "2026-01-01T10:00:50Z"}
{"marker": true, "at": "2026-01-01T10:02:59.999Z"}
{"id": "last", "account": "ACC-001", "amount": 40, "at": "2026-01-01T10:00:40Z"}
"""


def show_kept(record: TooLateRecord) -> None:
    """Prints a record that came too late for settlement, which keeps it."""
    print(f"settlement    kept for the night: {record.value:,} of {record.key}")


def show_missed(record: TooLateRecord) -> None:
    """Prints a record that came too late for the dashboard, which does without it."""
    print(f"ops_dashboard missed: {record.value:,} of {record.key}")


def decide(
    events: PCollection[Any],
    name: str,
    allowed_lateness: str,
    write: beam.PTransform[PCollection[Pane], Any],
    *,
    trace: bool = False,
) -> PCollection[TooLateRecord]:
    """Adds a decision; gives what comes too late for it."""
    windows = Windows("1m", allowed_lateness=allowed_lateness)
    routed = events | f"{name}/Route" >> RouteTooLate(windows)
    panes = routed.accepted | f"{name}/Aggregate" >> AggregateWindows(windows, "sum", trace=trace)
    _ = panes | f"{name}/Write" >> write
    return routed.too_late


def show(url: str, name: str, line: Callable[[Any], str]) -> None:
    """Prints the rows of a table."""
    engine = create_engine(url)
    rows = Table(name, MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        for row in connection.execute(select(rows)):
            print(line(row))
    engine.dispose()


def value_of(row: Any) -> str:
    """Tells a row of a table."""
    return f"  {row.key}: {row.value:,} of {row.count} records"


def change_of(row: Any) -> str:
    """Tells an entry of the audit trail."""
    return (
        f"  #{row.seq} {row.cause}: {row.old_value or '-'} -> {row.new_value}, watermark "
        f"{row.watermark_ms}, records {row.source or 'in time'}"
    )


def main() -> None:
    """Runs the three decisions on Beam's Python DirectRunner, and prints what each has."""
    strategy = WatermarkStrategy.for_markers("marker").with_timestamp_assigner(
        FieldTime("at", unit="iso")
    )
    with tempfile.TemporaryDirectory() as folder:
        path, url = Path(folder, "payments.jsonl"), f"sqlite:///{folder}/results.db"
        path.write_text(STEPS)
        with beam.Pipeline(runner=BundleBasedDirectRunner()) as pipeline:
            read = pipeline | ReadEvents(
                Files([str(path)], JsonLines(key="account", value="amount", id="id")),
                strategy,
                ReadSettings(block_bytes=1),  # a line a block, to see each correction by itself
                embedded=True,
            )
            settled = UpsertPanes(url, RUN, table="settlement")
            kept = decide(read.events, "Settlement", "2m", settled)
            _ = kept | "ShowKept" >> beam.Map(show_kept)
            shown = AppendPanes(url, RUN, table="ops_dashboard")
            missed = decide(read.events, "Dashboard", "0s", shown)
            _ = missed | "ShowMissed" >> beam.Map(show_missed)
            audited = UpsertPanes(url, RUN, table="regulatory_audit", audit=True)
            decide(read.events, "Audit", "5m", audited, trace=True)
        for name in ("settlement", "ops_dashboard", "regulatory_audit"):
            print(f"\n{name}")
            show(url, name, value_of)
        show(url, "regulatory_audit_audit", change_of)
        found = verify_audit(url, "regulatory_audit")
        print(f"  the trail is {'NOT ' if found.problems else ''}whole: {found.entries} entries")


if __name__ == "__main__":
    main()

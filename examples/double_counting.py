"""Append double-counts: the same panes in a table that grows, and in one that is corrected.

    python examples/double_counting.py

A window fires with 80,000, and a late record corrects it to 85,000. Where each pane is a row of its
own, both stand, and who sums up the rows counts two payments twice. So a profile that appends is
refused with an allowed lateness.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from sqlalchemy import create_engine, text

from beam_lateness import (
    AggregateWindows,
    AppendPanes,
    FieldTime,
    Files,
    JsonLines,
    ReadEvents,
    ReadSettings,
    RouteTooLate,
    UpsertPanes,
    WatermarkStrategy,
    Windows,
)
from beam_lateness.pipelines.cli import main as beam_lateness

RUN: Final = "run-1"
PANES: Final = "select pane_index, timing, value from panes order by pane_index"
WINDOWS: Final = "select pane_index, timing, value from windows"

# A marker at T completes everything up to and including T: the watermark is then T + 1 ms.
STEPS: Final[list[dict[str, Any]]] = [
    {"account": "ACC-001", "amount": 50_000, "at": "2026-01-01T10:00:30Z"},
    {"account": "ACC-001", "amount": 30_000, "at": "2026-01-01T10:00:45Z"},
    {"marker": True, "at": "2026-01-01T10:00:59.999Z"},
    {"account": "ACC-001", "amount": 5_000, "at": "2026-01-01T10:00:35Z"},
]


def write_both(folder: Path) -> str:
    """Writes the panes of `STEPS` to an append and an upsert table; gives their database."""
    url = f"sqlite:///{folder / 'results.db'}"
    path = folder / "payments.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
    windows = Windows("1m", allowed_lateness="2m")
    strategy = WatermarkStrategy.for_markers("marker").with_timestamp_assigner(
        FieldTime("at", unit="iso")
    )
    with beam.Pipeline(runner=BundleBasedDirectRunner()) as pipeline:
        read = pipeline | ReadEvents(
            Files([str(path)], JsonLines(key="account", value="amount")),
            strategy,
            ReadSettings(block_bytes=1),  # a line a block, to see the correction by itself
            embedded=True,
        )
        routed = read.events | RouteTooLate(windows)
        panes = routed.accepted | AggregateWindows(windows, "sum")
        _ = panes | AppendPanes(url, RUN)
        _ = panes | UpsertPanes(url, RUN)
    return url


def read_rows(url: str, query: str) -> list[tuple[int, str, int]]:
    """Reads pane index, timing and value of each row."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [(row[0], row[1], row[2]) for row in connection.execute(text(query))]
    finally:
        engine.dispose()


def show(kind: str, rows: list[tuple[int, str, int]]) -> None:
    """Prints the rows of a table, and their sum."""
    for index, timing, value in rows:
        print(f"{kind}: pane {index} {timing:8} {value:,}")
    print(f"{kind}: sum {sum(value for _, _, value in rows):,}")


def refuse(folder: Path) -> int:
    """Asks for a profile that appends, with corrections; the command says why it does not run."""
    return beam_lateness(
        [
            "stream",
            "--profile=ops_dashboard",
            "--allowed_lateness=2m",
            f"--input={folder / 'payments.jsonl'}",
            "--key_field=account",
            "--value_field=amount",
            "--time_field=at",
            f"--output=sqlite:///{folder / 'dashboard.db'}",
        ]
    )


def main() -> None:
    """Shows both tables, and the refusal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = write_both(folder)
        show("append", read_rows(url, PANES))
        show("upsert", read_rows(url, WINDOWS))
        print(f"exit code {refuse(folder)}")


if __name__ == "__main__":
    main()

"""Late events, layer by layer: the README's timeline, as a pipeline of one's own.

    python examples/timeline.py

One account, windows of a minute, two minutes of allowed lateness. The watermark is moved by markers
in the input, so that it stands exactly where the story needs it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import apache_beam as beam
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from beam_lateness import (
    AggregateWindows,
    FieldTime,
    Files,
    JsonLines,
    Pane,
    ReadEvents,
    ReadSettings,
    RouteTooLate,
    TooLateRecord,
    WatermarkStrategy,
    Windows,
)

# A marker at T completes everything up to and including T: the watermark is then T + 1 ms.
STEPS = [
    {"account": "ACC-001", "amount": 50_000, "at": "2026-01-01T10:00:30Z"},
    {"account": "ACC-001", "amount": 30_000, "at": "2026-01-01T10:00:45Z"},
    {"marker": True, "at": "2026-01-01T10:00:59.999Z"},
    {"account": "ACC-001", "amount": 5_000, "at": "2026-01-01T10:00:35Z"},
    {"marker": True, "at": "2026-01-01T10:02:29.999Z"},
    {"account": "ACC-001", "amount": 700, "at": "2026-01-01T10:00:50Z"},
    {"marker": True, "at": "2026-01-01T10:02:59.999Z"},
    {"account": "ACC-001", "amount": 40, "at": "2026-01-01T10:00:40Z"},
]


def show_pane(pane: Pane) -> None:
    """Prints a pane."""
    print(f"pane {pane.index} {pane.timing:8} {pane.key} {pane.value:,}")


def show_too_late(record: TooLateRecord) -> None:
    """Prints a record that came too late."""
    print(f"too late by {record.late_by_ms} ms: {record.key} {record.value:,}")


def main() -> None:
    """Runs the timeline on Beam's Python DirectRunner."""
    windows = Windows("1m", allowed_lateness="2m")
    strategy = WatermarkStrategy.for_markers("marker").with_timestamp_assigner(
        FieldTime("at", unit="iso")
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "payments.jsonl")
        path.write_text("".join(json.dumps(step) + "\n" for step in STEPS))
        with beam.Pipeline(runner=BundleBasedDirectRunner()) as pipeline:
            read = pipeline | ReadEvents(
                Files([str(path)], JsonLines(key="account", value="amount")),
                strategy,
                ReadSettings(block_bytes=1),  # a line a block, to see each correction by itself
                embedded=True,
            )
            routed = read.events | RouteTooLate(windows)
            panes = routed.accepted | AggregateWindows(windows, "sum")
            _ = panes | "ShowPanes" >> beam.Map(show_pane)
            _ = routed.too_late | "ShowTooLate" >> beam.Map(show_too_late)


if __name__ == "__main__":
    main()

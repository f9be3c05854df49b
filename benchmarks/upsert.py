"""What upserting panes costs: `WindowTable.write` beside the driver's own `executemany`.

Both write the same rows to a table of the same shape with the same INSERT ... ON CONFLICT, in
transactions of 5,000 rows, as `UpsertPanes` does; first fresh rows, then a correction of each. They
take turns, and the best of the repeats counts. The driver gets its rows ready-made, as tuples.

    python -m benchmarks.upsert
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import psycopg

from beam_lateness import Pane
from beam_lateness.transforms.sinks.window_table import WindowTable
from services.postgres_server import PostgresServer

AT_ONCE: Final = 5_000
KEYS: Final = 1_000
MINUTE_MS: Final = 60_000
RUN: Final = "run-1"
COLUMNS: Final = (
    "key, window_start_ms, window_end_ms, value, count, reconciled, pane_index, timing, run"
)
FRESH, UPDATES = "fresh rows", "updates"


class Writer(Protocol):
    """Writes batches of panes, or of ready-made rows."""

    def write(self, batch: Sequence[Any]) -> None:
        """Writes a batch, in a transaction."""

    def close(self) -> None:
        """Closes the connection."""


class Ours:
    """The table of windows.

    Args:
        url: The database.
        name: The table's name.
        audit: Whether it has an audit trail.
    """

    def __init__(self, url: str, name: str, *, audit: bool) -> None:
        self._table = WindowTable(url, name, audit=audit)

    def write(self, batch: Sequence[Pane]) -> None:
        """Writes panes."""
        if self._table.write(batch, RUN):
            msg = "the table refuses panes of the benchmark"
            raise RuntimeError(msg)

    def close(self) -> None:
        """Closes the connections."""
        self._table.close()


class Plain:
    """The driver alone, on a table that `WindowTable` has made.

    Args:
        connection: The driver's connection.
        name: The table's name.
        mark: How the driver marks a parameter.
    """

    def __init__(self, connection: Any, name: str, mark: str) -> None:
        self._connection = connection
        self._statement = statement(name, mark)

    def write(self, batch: Sequence[tuple[Any, ...]]) -> None:
        """Writes rows."""
        cursor = self._connection.cursor()
        cursor.executemany(self._statement, batch)
        cursor.close()
        self._connection.commit()

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def statement(name: str, mark: str) -> str:
    """Writes the upsert of `WindowTable` by hand."""
    columns = COLUMNS.split(", ")
    replaced = ", ".join(f"{column} = excluded.{column}" for column in columns[2:])
    return (
        f"INSERT INTO {name} ({COLUMNS}) VALUES ({', '.join([mark] * len(columns))}) "  # noqa: S608
        f"ON CONFLICT (key, window_start_ms) DO UPDATE SET {replaced} WHERE excluded.run > "
        f"{name}.run OR excluded.run = {name}.run AND (excluded.count > {name}.count - "
        f"{name}.reconciled OR excluded.count = {name}.count - {name}.reconciled AND "
        f"excluded.pane_index > {name}.pane_index)"
    )


def open_sqlite(url: str, name: str) -> Plain:
    """Opens a SQLite file as `WindowTable` does: what is committed outlives a loss of power."""
    WindowTable(url, name).close()
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return Plain(connection, name, "?")


def open_postgres(url: str, name: str) -> Plain:
    """Opens a PostgreSQL database; psycopg sends the rows of `executemany` as a pipeline."""
    WindowTable(url, name).close()
    return Plain(psycopg.connect(url), name, "%s")


def panes(rows: int, index: int) -> list[Pane]:
    """Panes of 1,000 keys, window by window; a later index has more records."""
    timing = "LATE" if index else "ON_TIME"
    found = []
    for number in range(rows):
        window, key = divmod(number, KEYS)
        start, count = window * MINUTE_MS, 20 + index
        end = start + MINUTE_MS
        found.append(Pane(f"ACC-{key:04}", start, end, 1_000 * count, count, index, timing))
    return found


def row(pane: Pane) -> tuple[Any, ...]:
    """A pane as the driver takes it."""
    key, start, end, value, count, index, timing = pane[:7]
    return key, start, end, value, count, 0, index, timing, RUN


def seconds(writer: Writer, elements: Sequence[Any]) -> float:
    """Seconds to write all, batch by batch."""
    began = time.perf_counter()
    for low in range(0, len(elements), AT_ONCE):
        writer.write(elements[low : low + AT_ONCE])
    return time.perf_counter() - began


def shown(spent: Sequence[float], rows: int) -> str:
    """Rows a second by the least time, and by how much the longest is above it."""
    return f"{rows / min(spent):,.0f} (+{max(spent) / min(spent) - 1:.0%})"


def measure(
    name: str, url: str, plainly: Callable[[str, str], Plain], rows: int, repeats: int
) -> None:
    """Measures a database, and prints its lines of the table."""
    steps = {FRESH: panes(rows, 0), UPDATES: panes(rows, 1)}
    ready = {step: [row(pane) for pane in found] for step, found in steps.items()}
    spent: dict[tuple[str, str], list[float]] = {}
    for repeat in range(repeats):
        writers: dict[str, tuple[Writer, dict[str, Any]]] = {
            "plain": (plainly(url, f"plain{repeat}"), ready),
            "ours": (Ours(url, f"ours{repeat}", audit=False), steps),
            "audited": (Ours(url, f"audited{repeat}", audit=True), steps),
        }
        for kind, (writer, elements) in writers.items():
            for step in steps:
                spent.setdefault((kind, step), []).append(seconds(writer, elements[step]))
            writer.close()
    for step in steps:
        plain, ours, audited = (spent[kind, step] for kind in ("plain", "ours", "audited"))
        print(
            f"| {name}, {step} | {shown(plain, rows)} | {shown(ours, rows)} | "
            f"{min(plain) / min(ours):.2f} | {shown(audited, rows)} | "
            f"{min(plain) / min(audited):.2f} |",
            flush=True,
        )


def main() -> None:
    """Measures both databases, and prints a table."""
    parser = argparse.ArgumentParser(description="Upserts beside the driver's executemany.")
    parser.add_argument("--rows", type=int, default=20_000, help="rows (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats (%(default)s)")
    asked = parser.parse_args()
    print("| rows a second | executemany | ours | ratio | with audit | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/windows.db"
        measure("SQLite", url, open_sqlite, asked.rows, asked.repeats)
    with PostgresServer() as server:
        measure("PostgreSQL", server.url(), open_postgres, asked.rows, asked.repeats)


if __name__ == "__main__":
    main()

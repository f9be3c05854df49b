"""What a user would write by hand: one loop over the lines, the same rule, sums in a dictionary.

    python benchmarks/loop.py PAYMENTS.jsonl FOLDER

It keeps no panes and survives no restart; it is the yardstick for speed, not an alternative.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import orjson

WINDOW_MS, LATENESS_MS, BOUND_MS = 60_000, 120_000, 10_000


def main(source: Path, folder: Path) -> None:
    """Aggregates a file of payments."""
    sums: dict[tuple[str, int], list[int]] = {}
    too_late = []
    largest = -(2**62)
    records = 0
    with source.open("rb") as file:
        for line in file:
            record = orjson.loads(line)
            records += 1
            time = record["event_time"]
            start = time - time % WINDOW_MS
            if largest - BOUND_MS >= start + WINDOW_MS + LATENESS_MS:
                too_late.append(line)
            else:
                cell = sums.get((record["account"], start))
                if cell is None:
                    sums[record["account"], start] = [record["amount_cents"], 1]
                else:
                    cell[0] += record["amount_cents"]
                    cell[1] += 1
            if time > largest:
                largest = time
    with sqlite3.connect(folder / "windows.db") as database:
        database.execute("create table windows (key, start, value, count)")
        rows = [(key, start, value, count) for (key, start), (value, count) in sums.items()]
        database.executemany("insert into windows values (?, ?, ?, ?)", rows)
    (folder / "too-late.jsonl").write_bytes(b"".join(too_late))
    aggregated = sum(count for _, _, _, count in rows)
    report = {"input": records, "aggregated": aggregated, "too_late": len(too_late)}
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

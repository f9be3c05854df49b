"""Above the threshold: 2% of a minute's records are too late, an alert says so, the night mends it.

    python examples/above_the_threshold.py

Two terminals send 500 payments a minute each. In one minute, terminal B delivers some that it has
kept for long: they are too late for their windows, and become dead letters. With a threshold of 1%,
20 of 1,000 bring one alert, and 5 bring none. Either way `reconcile` adds each of them to its
window, and the store is then what the input says.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, text

from beam_lateness.pipelines.cli import main as beam_lateness

TEN: Final = 1_767_261_600_000  # 2026-01-01T10:00:00Z
MINUTE_MS: Final = 60_000
STEP_MS: Final = 120  # so 500 a minute
MINUTES: Final = 7
KEPT_FROM: Final = TEN + 5 * MINUTE_MS + MINUTE_MS // 2  # when B delivers what it has kept
KEPT_FOR: Final = 5 * MINUTE_MS
ACCOUNTS: Final = 4


def write_stream(folder: Path, kept: int) -> list[Path]:
    """Writes the payments of both terminals; B has kept so many of them for five minutes."""
    files = []
    for terminal in ("A", "B"):
        lines = []
        for number in range(MINUTES * MINUTE_MS // STEP_MS):
            time = TEN + number * STEP_MS
            since = (time - KEPT_FROM) // STEP_MS
            is_kept = terminal == "B" and 0 <= since < kept
            payment = {
                "payment_id": f"{terminal}{number}",
                "account": f"ACC-{number % ACCOUNTS:03}",
                "amount_cents": 100 + number,
                "event_time": time - KEPT_FOR if is_kept else time,
            }
            lines.append(json.dumps(payment) + "\n")
        files.append(folder / f"terminal-{terminal}.jsonl")
        files[-1].write_text("".join(lines))
    return files


def stream(folder: Path) -> list[dict[str, Any]]:
    """Runs the job on the payments of a folder; gives the alerts."""
    alerts = folder / "alerts.jsonl"
    code = beam_lateness(
        [
            "stream",
            "--profile=settlement",  # 1 min windows, lateness 2 min, too late records are kept
            "--bound=10s",
            f"--input={folder / 'terminal-*.jsonl'}",
            "--key_field=account",
            "--value_field=amount_cents",
            "--id_field=payment_id",
            f"--output=sqlite:///{folder / 'windows.db'}",
            f"--dead_letters={folder / 'dead-letters'}",
            "--alert_threshold=0.01",
            f"--alert_to=file:{alerts}",
            "--runner=BundleBasedDirectRunner",
        ]
    )
    if code != 0:
        raise SystemExit(code)
    return [json.loads(line) for line in alerts.read_text().splitlines()]


def reconcile(folder: Path) -> None:
    """Adds the dead letters of a folder to their windows."""
    code = beam_lateness(
        [
            "reconcile",
            f"--dead_letters={folder / 'dead-letters'}",
            f"--output=sqlite:///{folder / 'windows.db'}",
            "--runner=BundleBasedDirectRunner",
        ]
    )
    if code != 0:
        raise SystemExit(code)


def read_store(folder: Path) -> dict[tuple[str, int], int]:
    """Gives the sums of the store, by account and start of the window."""
    engine = create_engine(f"sqlite:///{folder / 'windows.db'}")
    try:
        with engine.connect() as connection:
            rows = connection.execute(text("select key, window_start_ms, value from windows"))
            return {(key, start): value for key, start, value in rows}
    finally:
        engine.dispose()


def sum_up(files: list[Path]) -> dict[tuple[str, int], int]:
    """Gives the sums of the input, by account and minute."""
    sums: Counter[tuple[str, int]] = Counter()
    for file in files:
        for line in file.read_text().splitlines():
            payment = json.loads(line)
            minute = payment["event_time"] // MINUTE_MS * MINUTE_MS
            sums[payment["account"], minute] += payment["amount_cents"]
    return dict(sums)


def show(alert: dict[str, Any]) -> None:
    """Prints an alert."""
    print(
        f"ALERT: {alert['too_late']} of {alert['records']:,} ({alert['rate']:.1%}) too late, "
        f"{alert['split_too_late']} of them from {Path(alert['split']).name}; an allowed lateness "
        f"of {alert['suggested_allowed_lateness_ms'] // 1000} s would have kept enough of them"
    )


def main() -> None:
    """Runs a day above the threshold and one below it, and the night after each."""
    for kept in (20, 5):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            print(f"--- {kept} of 1,000 records of a minute are too late")
            files = write_stream(folder, kept)
            alerts = stream(folder)
            for alert in alerts:
                show(alert)
            print(f"alerts: {len(alerts)}")
            wanted = sum_up(files)
            print(f"by day: {sum(read_store(folder).values()):,} of {sum(wanted.values()):,}")
            reconcile(folder)
            store = read_store(folder)
            print(f"by night: {sum(store.values()):,}; equal to the input: {store == wanted}")


if __name__ == "__main__":
    main()

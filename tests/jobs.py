"""Runs the streaming job as its users do, by the command line, and reads what it leaves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from beam_lateness.pipelines.cli import main
from beam_lateness.transforms.sinks.window_table import WindowTable
from tests.model import Event

FLIGHTS: Final = Path(__file__).parent.parent / "examples" / "data" / "flights-2013-week1.jsonl"
EMBEDDED: Final = "BundleBasedDirectRunner"
PRISM: Final = "PrismRunner"
HOUR_MS: Final = 3_600_000
NEW_YORK_MS: Final = 5 * HOUR_MS  # behind UTC, in January

FLIGHT_FLAGS: Final = (
    "--key_field=origin",
    "--value_field=distance",
    "--id_field=event_id",
    "--window=1h",
)
PAYMENT_FLAGS: Final = (
    "--key_field=account",
    "--value_field=amount_cents",
    "--id_field=event_id",
    "--window=1m",
)


class Row(NamedTuple):
    """A row of the table `windows`, but for its run."""

    key: str
    start: int
    end: int
    value: Any
    records: int
    pane_index: int
    timing: str


class Setting(NamedTuple):
    """A setting of the flights, with its right values (issue 3)."""

    bound_m: int
    lateness_m: int
    by_origin: bool
    aggregated: int
    total: int
    too_late: int

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags."""
        return (f"--bound={self.bound_m}m", f"--allowed_lateness={self.lateness_m}m")


SETTINGS: Final = (
    Setting(15, 60, False, 5_935, 6_214_842, 129),
    Setting(0, 0, False, 4_933, 5_162_871, 1_131),
    Setting(60, 120, False, 6_041, 6_311_072, 23),
    Setting(15, 60, True, 5_946, 6_222_002, 118),
)


@dataclass(frozen=True)
class Outcome:
    """What a job left in its folder."""

    code: int
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        """The report."""
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return report

    @property
    def rows(self) -> list[Row]:
        """The table, in the order of its key."""
        return read_rows(self.folder / "windows.db")

    @property
    def runs(self) -> set[str]:
        """The runs that stand in the table."""
        return {run for (run,) in query(self.folder / "windows.db", "select run from windows")}

    @property
    def letters(self) -> list[dict[str, Any]]:
        """The dead letters, in the order of split and position."""
        letters = read_letters(self.folder)
        return sorted(letters, key=lambda letter: (letter["split"], letter["position"]))

    @property
    def too_late(self) -> list[dict[str, Any]]:
        """The dead letters that came too late."""
        return [letter for letter in self.letters if letter["reason"] == "too_late"]

    @property
    def invalid(self) -> list[dict[str, Any]]:
        """The dead letters that are no records."""
        return [letter for letter in self.letters if letter["reason"] != "too_late"]

    @property
    def too_late_ids(self) -> list[str]:
        """The ids of the records that came too late, sorted."""
        return sorted(letter["record_id"] for letter in self.too_late)

    @property
    def finals(self) -> dict[tuple[str, int], tuple[Any, int]]:
        """Final value and count of each key and window."""
        return {(row.key, row.start): (row.value, row.records) for row in self.rows}

    @property
    def totals(self) -> dict[tuple[str, int], Any]:
        """Final value of each key and window."""
        return {cell: value for cell, (value, _) in self.finals.items()}


def job_flags(
    folder: Path, inputs: Iterable[Path | str], *flags: str, runner: str = EMBEDDED
) -> list[str]:
    """Gives the flags of a job that writes everything to `folder` and emits what is too late."""
    return [
        *(f"--input={path}" for path in inputs),
        "--too_late=emit",
        f"--output=sqlite:///{folder / 'windows.db'}",
        f"--dead_letters={folder / 'dead'}",
        f"--report={folder / 'report.json'}",
        f"--runner={runner}",
        *flags,
    ]


def run_job(
    folder: Path, inputs: Iterable[Path | str], *flags: str, runner: str = EMBEDDED
) -> Outcome:
    """Runs a job in this process and gives what it left; it must have counted and balanced."""
    folder.mkdir(parents=True, exist_ok=True)
    code = main(["stream", *job_flags(folder, inputs, *flags, runner=runner)])
    outcome = Outcome(code, folder)
    if code == 0:
        check_conservation(outcome)
    return outcome


def read_letters(folder: Path) -> list[dict[str, Any]]:
    """Reads the dead letters that a job has left in its folder so far.

    A line without its end is none: the job is within the write, or was killed there.
    """
    return [
        json.loads(line)
        for file in sorted((folder / "dead").glob("*.jsonl"))
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def check_conservation(outcome: Outcome) -> None:
    """The law of conservation, by the report and by what stands in the outputs."""
    for file in (outcome.folder / "dead").glob("*.jsonl"):
        assert file.read_bytes().endswith(b"\n"), "a job that has ended leaves whole lines"
    report = outcome.report
    assert report["input"] == report["aggregated"] + report["too_late"] + report["invalid"]
    assert report["balanced"] is True
    assert sum(row.records for row in outcome.rows) == report["aggregated"]
    assert len({letter["record_id"] for letter in outcome.too_late}) == report["too_late"]
    assert len(outcome.invalid) == report["invalid"]


def check_equal(outcome: Outcome, other: Outcome) -> None:
    """Holds two outcomes to each other: final windows and too late records, record for record."""
    assert outcome.finals == other.finals
    assert outcome.too_late_ids == other.too_late_ids
    stamps = [
        [
            (x["record_id"], x["watermark_ms"], x["late_by_ms"])
            for x in sorted(each.too_late, key=lambda letter: str(letter["record_id"]))
        ]
        for each in (outcome, other)
    ]
    assert stamps[0] == stamps[1]


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    """Reads from a SQLite file."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def read_rows(database: Path) -> list[Row]:
    """Reads the table `windows`, in the order of its key."""
    rows = query(
        database,
        "select key, window_start_ms, window_end_ms, value, count, pane_index, timing "
        "from windows order by key, window_start_ms",
    )
    return [Row(*row) for row in rows]


def keep_history(folder: Path) -> None:
    """Makes the table of a job to come, and lets it log each pane that it takes in."""
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "windows.db"
    WindowTable(f"sqlite:///{database}").close()
    connection = sqlite3.connect(database)
    columns = "key, window_start_ms, value, count, pane_index, timing"
    news = ", ".join(f"new.{name}" for name in columns.split(", "))
    with connection:
        connection.execute(f"create table history ({columns})")
        for event in ("insert", "update"):
            connection.execute(
                f"create trigger log_{event} after {event} on windows begin "
                f"insert into history values ({news}); end"
            )
    connection.close()


def read_history(folder: Path) -> list[tuple[Any, ...]]:
    """Gives the panes that the table took in, in order: value, count, pane index, timing."""
    return query(
        folder / "windows.db",
        "select value, count, pane_index, timing from history order by rowid",
    )


def write_lines(path: Path, lines: Sequence[bytes | Mapping[str, Any]]) -> Path:
    """Writes lines, given raw or as records."""
    with path.open("wb") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else json.dumps(dict(line)).encode())
            file.write(b"\n")
    return path


def read_flights(path: Path = FLIGHTS) -> list[Event]:
    """Reads flights as the model takes them."""
    return read_events(path, "origin", "distance")


def read_payments(path: Path) -> list[Event]:
    """Reads payments as the model takes them."""
    return read_events(path, "account", "amount_cents")


def read_events(path: Path, key: str, value: str) -> list[Event]:
    """Reads a file of JSON lines as the model takes them."""
    with path.open() as file:
        lines = map(json.loads, file)
        return [Event(x[key], x[value], x["event_time"], x["event_id"]) for x in lines]


def cut(folder: Path, by: str) -> list[Path]:
    """Cuts the flights into files by `origin` or by local `day`, lines in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[str]] = {}
    for line in FLIGHTS.read_text().splitlines(keepends=True):
        record = json.loads(line)
        day = (record["event_time"] - NEW_YORK_MS) // (24 * HOUR_MS)
        parts.setdefault(str(record[by] if by == "origin" else day), []).append(line)
    paths = []
    for name, lines in sorted(parts.items()):
        paths.append(folder / f"{by}-{name}.jsonl")
        paths[-1].write_text("".join(lines))
    return paths

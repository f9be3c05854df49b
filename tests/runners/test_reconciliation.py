"""A year of flights, settled and reconciled: the sum of the whole input, whatever is killed."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from tests.flights_year import RECORDS, year_archive
from tests.jobs import EMBEDDED, FLIGHT_FLAGS, HOUR_MS, PRISM, Outcome, job_flags, query
from tests.runners.killing import Killed

pytestmark = [pytest.mark.prism, pytest.mark.slow]

KILLS = 20
FLAGS: Final = (*FLIGHT_FLAGS, "--bound=15m", "--allowed_lateness=60m")
NEW_YORK: Final = ZoneInfo("America/New_York")

Totals = dict[tuple[str, int], tuple[int, int]]


class Flights(NamedTuple):
    """Flights in a file, and the batch sum and count of each key and window."""

    path: Path
    totals: Totals


def read_year() -> Iterator[dict[str, Any]]:
    """Reads the departures of the data set, with the fields of `examples/data`."""
    with (
        zipfile.ZipFile(year_archive()) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, "utf-8") as text,
    ):
        for row in csv.DictReader(text):
            if row["dep_time"] not in ("", "NA"):  # the others were cancelled
                yield _flight(row)


def _flight(row: dict[str, str]) -> dict[str, Any]:
    hour, minute = divmod(int(row["sched_dep_time"]), 100)
    day = (int(row["year"]), int(row["month"]), int(row["day"]))
    scheduled = datetime(*day, hour, minute, tzinfo=NEW_YORK)
    event_time = int(scheduled.timestamp() * 1000)
    return {
        "event_id": f"{row['carrier']}{row['flight']}-{row['origin']}-{scheduled:%Y%m%d%H%M}",
        "origin": row["origin"],
        "carrier": row["carrier"],
        "distance": int(float(row["distance"])),
        "event_time": event_time,
        "arrival_time": event_time + int(float(row["dep_delay"])) * 60_000,
    }


def write(path: Path, flights: list[dict[str, Any]]) -> Flights:
    """Writes flights, and sums them up in the plainest way."""
    totals: Totals = {}
    with path.open("w") as file:
        for flight in flights:
            file.write(json.dumps(flight, separators=(",", ":")) + "\n")
            cell = (flight["origin"], flight["event_time"] // HOUR_MS * HOUR_MS)
            total, count = totals.get(cell, (0, 0))
            totals[cell] = (total + flight["distance"], count + 1)
    return Flights(path, totals)


@pytest.fixture(scope="module")
def in_order() -> list[dict[str, Any]]:
    """The year's departures, in the order in which they happened."""
    flights = sorted(
        read_year(), key=lambda each: (each["arrival_time"], each["event_time"], each["event_id"])
    )
    assert len(flights) == RECORDS
    return flights


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory, in_order: list[dict[str, Any]]) -> Flights:
    """The year."""
    return write(tmp_path_factory.mktemp("year") / "year.jsonl", in_order)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory, year: Flights) -> Path:
    """What the job leaves of the year, not reconciled."""
    folder = tmp_path_factory.mktemp("settled")
    Killed(folder).run(settle(folder, year))
    return folder


def settle(folder: Path, flights: Flights, *flags: str) -> list[str]:
    """The settlement, as a command."""
    folder.mkdir(exist_ok=True)
    return ["stream", *job_flags(folder, [flights.path], *FLAGS, *flags)]


def reconcile(folder: Path, runner: str = EMBEDDED) -> list[str]:
    """The reconciliation, as a command."""
    return [
        "reconcile",
        f"--dead_letters={folder / 'dead'}",
        f"--output=sqlite:///{folder / 'windows.db'}",
        f"--report={folder / 'reconciled.jsonl'}",
        f"--runner={runner}",
    ]


def double(folder: Path) -> None:
    """Puts every dead letter file there once more, under another name."""
    for path in list((folder / "dead").glob("*.jsonl")):
        shutil.copy(path, path.with_name(f"again-{path.name}"))


def entries(folder: Path) -> int:
    """How many records are in the ledger."""
    tables = [name for (name,) in query(folder / "windows.db", "select name from sqlite_master")]
    if "windows_ledger" not in tables:  # killed before it was made
        return 0
    ((count,),) = query(folder / "windows.db", "select count(*) from windows_ledger")
    return int(count)


def check_whole(folder: Path, flights: Flights) -> None:
    """Holds the store to the batch sum, and the ledger to the records that came too late."""
    outcome = Outcome(0, folder)
    assert outcome.finals == flights.totals
    ids = [name for (name,) in query(folder / "windows.db", "select record_id from windows_ledger")]
    assert set(ids) == set(outcome.too_late_ids)
    assert sum(row.records for row in outcome.rows) == sum(n for _, n in flights.totals.values())


def points(seed: int, steps: int) -> list[int]:
    """Draws the steps at which commands are killed, in ascending order."""
    dice = random.Random(seed)
    return sorted(dice.randint(1, steps * 19 // 20) for _ in range(KILLS))


def kill_again_and_again(killed: Killed, folder: Path, seed: int) -> list[int]:
    """Kills a reconciliation at seeded steps; gives how full the ledger was each time."""
    trial = Path(shutil.copytree(folder, folder.with_name("trial of the reconciliation")))
    steps = killed.run(reconcile(trial))
    assert steps is not None
    filled = []
    for point in points(seed, steps):
        assert killed.run(reconcile(folder), kill_at=point) is None
        filled.append(entries(folder))
    return filled


def kill_the_job(killed: Killed, parent: Path, flights: Flights, *flags: str) -> Path:
    """Kills a settlement at seeded steps, then lets it run to its end; gives its folder."""
    steps = killed.run(settle(parent / "trial of the job", flights, *flags))
    assert steps is not None
    folder = parent / "killed"
    for point in random.Random(2).sample(points(2, steps), KILLS):
        assert killed.run(settle(folder, flights, *flags), kill_at=point) is None
    killed.run(settle(folder, flights, *flags))
    assert len(list((folder / "dead").glob("*.jsonl"))) > 2, "killed runs left some"
    return folder


def check_doubled(killed: Killed, folder: Path, runner: str = EMBEDDED) -> None:
    """Doubles the dead letters: another reconciliation must change no row."""
    double(folder)
    before = Outcome(0, folder).rows
    killed.run(reconcile(folder, runner))
    assert Outcome(0, folder).rows == before


def test_the_year_settled_and_reconciled_is_its_batch_sum(
    settled: Path, year: Flights, tmp_path: Path
) -> None:
    """Every window of 328,521 departures, of which 11,618 came too late; once more on Prism."""
    report = Outcome(0, settled).report
    assert (report["aggregated"], report["too_late"]) == (316_903, 11_618)
    folder = Path(shutil.copytree(settled, tmp_path / "year"))
    killed = Killed(tmp_path)
    killed.run(reconcile(folder))
    check_whole(folder, year)
    check_doubled(killed, folder, PRISM)


def test_a_reconciliation_of_the_year_killed_twenty_times_adds_each_record_once(
    settled: Path, year: Flights, tmp_path: Path
) -> None:
    """Within transactions and between them; once more with the dead letters doubled."""
    killed = Killed(tmp_path)
    folder = Path(shutil.copytree(settled, tmp_path / "year"))
    filled = kill_again_and_again(killed, folder, seed=1)
    assert filled == sorted(filled), "what is committed stays"
    assert len(set(filled)) > 3, "some were killed later than others"
    killed.run(reconcile(folder))
    check_whole(folder, year)
    check_doubled(killed, folder)


def test_the_year_of_a_job_killed_twenty_times_then_reconciled_is_its_batch_sum(
    year: Flights, tmp_path: Path
) -> None:
    """Killed runs leave rows, and dead letters of the same records."""
    killed = Killed(tmp_path)
    folder = kill_the_job(killed, tmp_path, year)
    killed.run(reconcile(folder))
    check_whole(folder, year)


def test_a_killed_job_may_have_a_killed_reconciliation(
    in_order: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A fortnight; each is killed twenty times, then the dead letters are doubled."""
    fortnight = write(tmp_path / "fortnight.jsonl", in_order[: len(in_order) // 24])
    killed = Killed(tmp_path)
    folder = kill_the_job(killed, tmp_path, fortnight, "--block_bytes=100000")
    kill_again_and_again(killed, folder, seed=3)
    killed.run(reconcile(folder))
    check_whole(folder, fortnight)
    check_doubled(killed, folder)

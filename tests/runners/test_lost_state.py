"""The watch over Prism's lost state: many keys in one window, and nothing lost.

Prism (2.77) splits slow bundles of stateful stages, frees keys that are being processed and loses
their state updates, unless `prism_disable_sdf_split` is set. It takes bundles of many keys: with
1,000 shards and small blocks, runs without that option lost 4 to 600 records in 6 of 7; with few
shards none did (5 of 5).
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.jobs import PRISM, job_flags, query
from tests.runners.process import running

pytestmark = [pytest.mark.prism, pytest.mark.slow]

MANY = 200_000
TEN = 1_767_261_600_000
LARGEST_MB = 2_000  # measured 550 to 880; a prototype took 3,300
FLAGS = (
    "--key_field=account",
    "--value_field=amount_cents",
    "--window=1h",
    "--bound=5s",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the inputs are."""
    return tmp_path_factory.mktemp("keys")


def write_keys(folder: Path, records: int) -> Path:
    """Writes payments of as many accounts, within one hour, and little out of order."""
    path = folder / f"payments-{records}.jsonl"
    if not path.exists():
        with path.open("w") as file:
            file.writelines(
                f'{{"account":"ACC-{i * 7919 % records:07d}","amount_cents":{i % 1000},'
                f'"event_time":{TEN + i * 3 + i % 7}}}\n'
                for i in range(records)
            )
    return path


def resident_mb(group: int) -> int:
    """Memory in use by a process group, in MB."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group:
            total += int(fields[21]) * 4096
    return total >> 20


def check_nothing_lost(path: Path, records: int, out: Path, *flags: str) -> int:
    """Runs a job; every record must stand in the table. Gives the most memory it took, in MB."""
    command = job_flags(out, [path], *FLAGS, *flags, runner=PRISM)
    largest = 0
    pause = threading.Event()
    with running(command, out / "log") as job:
        while not job.ended:
            largest = max(largest, resident_mb(job.group))
            pause.wait(0.2)
        code, output = job.await_end(), job.output
    counted = query(out / "windows.db", "select count(*), sum(count), sum(value) from windows")
    assert counted == [(records, records, sum(i % 1000 for i in range(records)))], output
    assert code == 0, output
    report = json.loads((out / "report.json").read_text())
    assert (report["input"], report["aggregated"]) == (records, records)
    return largest


def test_nothing_is_lost_of_a_million_keys_in_a_window(tmp_path: Path, folder: Path) -> None:
    """As many rows and counts as records, the sum of all amounts, and memory within bounds."""
    path = write_keys(folder, 1_000_000)
    flags = ("--num_shards=4", "--block_bytes=2000000")
    assert check_nothing_lost(path, 1_000_000, tmp_path, *flags) < LARGEST_MB
    (tmp_path / "windows.db").unlink()


@pytest.mark.parametrize("attempt", range(2))  # six of seven would lose some
def test_nothing_is_lost_where_bundles_hold_a_thousand_keys_of_state(
    tmp_path: Path, folder: Path, attempt: int
) -> None:
    """Slow bundles of many keys: what Prism would split."""
    path = write_keys(folder, MANY)
    check_nothing_lost(path, MANY, tmp_path, "--num_shards=1000", "--block_bytes=200000")

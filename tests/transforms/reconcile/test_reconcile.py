"""`ReadDeadLetters` and `Reconcile`: from files to corrected windows, on an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that

from beam_lateness import Corrected, Left, ReadDeadLetters, Reconcile, TooLateRecord
from beam_lateness.transforms import metrics
from beam_lateness.transforms.reconcile.letters import NOT_TOO_LATE, UNREADABLE
from beam_lateness.transforms.reconcile.reconcile import find_letters
from beam_lateness.transforms.results import InvalidRecord
from beam_lateness.transforms.sinks.dead_letters import dead_letter, encode_letter
from tests.cases.engine import direct_pipeline
from tests.jobs import run_job, write_lines
from tests.transforms.reconcile.stores import MINUTE_MS, RUN, Store, pane


class Found(NamedTuple):
    """What a pipeline gave."""

    corrected: list[Corrected]
    left: list[Left]
    counts: dict[str, int]


def too_late(name: str, value: Any = 1, key: str = "a", start: int = 0) -> TooLateRecord:
    """Makes a too late record."""
    end = start + MINUTE_MS
    return TooLateRecord(key, value, start, start, end, end, 0, "s", 1, name, b"{}")


def write(folder: Path, run: str, *records: Any) -> str:
    """Writes dead letters of a run."""
    path = folder / f"dead-letters-{run}-0123abcd.jsonl"
    path.write_bytes(b"".join(encode_letter(dead_letter(each)) + b"\n" for each in records))
    return str(path)


class _Keep:
    """Keeps what comes out; the engine is in this process."""

    kept: dict[str, list[Any]]

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, found: list[Any]) -> None:
        self.kept[self._name] = sorted(found)


def run(url: str, files: list[str], *, dry_run: bool = False, **which: Any) -> Found:
    """Reads files and reconciles them."""
    _Keep.kept = {}
    metrics.start_tally()
    with direct_pipeline() as pipeline:
        read = pipeline | "Read" >> ReadDeadLetters(files, **which)
        done = read.letters | "Reconcile" >> Reconcile(url, "r", dry_run=dry_run)
        left = (done.left, read.left) | "Flatten" >> beam.Flatten()
        assert_that(done.corrected, _Keep("corrected"), label="KeepCorrected")
        assert_that(left, _Keep("left"), label="KeepLeft")
    return Found(_Keep.kept["corrected"], _Keep.kept["left"], metrics.tally())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a row."""
    store = Store(f"sqlite:///{tmp_path / 'windows.db'}")
    store.write([pane(1)])
    return store


def test_records_of_many_files_are_added_and_accounted_for(store: Store, tmp_path: Path) -> None:
    """Read = added + stood there + left; a record in two files counts once."""
    first = write(tmp_path, RUN, too_late("x", 5), too_late("y", 6, "b"), too_late("z", "no"))
    second = write(tmp_path, "run-2", too_late("x", 5), InvalidRecord("malformed_json", "..."))
    with Path(second).open("ab") as file:
        file.write(b'{"reason": "too_la')
    found = run(store.url, [first, second])
    assert store.rows == {("a", 0): (6, 2, 1), ("b", 0): (6, 1, 1)}
    assert [each.key for each in found.corrected] == ["a", "b"]
    reasons = ["already_applied", "not_too_late", "unfinished_line", "unfit"]
    assert sorted(each.reason for each in found.left) == reasons
    assert found.counts == {
        metrics.DEAD_LETTERS: 5,
        metrics.RECONCILED: 2,
        metrics.CORRECTED_WINDOWS: 2,
        metrics.ALREADY_RECONCILED: 1,
        metrics.LEFT: 2,
    }


def test_what_was_never_too_late_is_no_concern(store: Store, tmp_path: Path) -> None:
    """It is given out, and not counted: it is for someone else."""
    found = run(store.url, [write(tmp_path, RUN, InvalidRecord("malformed_json", "..."))])
    assert [each.reason for each in found.left] == [NOT_TOO_LATE]
    assert found.counts == {}


def test_a_poisoned_line_ends_nothing(store: Store, tmp_path: Path) -> None:
    """Whatever no database and no coder takes is left, and the record beside it is added."""
    path = Path(write(tmp_path, RUN, too_late("x", 5)))
    letter = dead_letter(too_late("p"))
    poison: list[dict[str, Any]] = [
        {"key": "\ud800"},
        {"record_id": "\udfff"},
        {"window_start_ms": 10**30},
        {"window_end_ms": -(10**30)},
        {"value": 10**400},
        {"value": [[[1]]]},
    ]
    with path.open("ab") as file:
        file.write(b"[" * 100_000 + b"\n\xff\x00\n")
        file.writelines(json.dumps(letter | each).encode() + b"\n" for each in poison)
    found = run(store.url, [str(path)])
    assert store.rows == {("a", 0): (6, 2, 1)}
    assert len(found.left) == len(poison) + 2
    assert sum(each.reason == UNREADABLE for each in found.left) == 2


@pytest.mark.parametrize(
    ("which", "added"),
    [
        ({}, 15),
        ({"start_ms": MINUTE_MS}, 14),
        ({"end_ms": MINUTE_MS}, 1),
        ({"start_ms": MINUTE_MS, "end_ms": 2 * MINUTE_MS}, 2),
        ({"of_run": "run-2"}, 8),
        ({"of_run": "run-3"}, 0),
        ({"of_run": RUN, "start_ms": 2 * MINUTE_MS}, 4),
    ],
    ids=str,
)
def test_only_the_windows_and_the_run_asked_for_are_corrected(
    store: Store, tmp_path: Path, which: dict[str, Any], added: int
) -> None:
    """From a start, inclusive, to another, exclusive."""
    first = [too_late(f"x{n}", 2**n, "b", n * MINUTE_MS) for n in range(3)]
    files = [
        write(tmp_path, RUN, *first),
        write(tmp_path, "run-2", too_late("x3", 8, "b", 3 * MINUTE_MS)),
    ]
    run(store.url, files, **which)
    assert sum(value for (key, _), (value, _, _) in store.rows.items() if key == "b") == added


def test_more_windows_than_are_applied_at_once_are_all_corrected(
    store: Store, tmp_path: Path
) -> None:
    """In several transactions; a dry run before reports the same."""
    records = [too_late(f"x{n}", n, start=n * MINUTE_MS) for n in range(501)]
    files = [write(tmp_path, RUN, *records)]
    before = store.dump()
    told = run(store.url, files, dry_run=True)
    assert store.dump() == before
    found = run(store.url, files)
    assert found == told
    assert len(found.corrected) == 501
    assert sum(value for value, _, _ in store.rows.values()) == 1 + sum(range(501))


def test_files_are_found_by_their_folder_or_a_glob(tmp_path: Path) -> None:
    """Each once, with its size, in the order of their names; what is being written is not."""
    for name in ("b.jsonl", "a.jsonl", "c.txt", ".a.jsonl.x.tmp"):
        (tmp_path / name).write_bytes(b"12345")
    every = [(str(tmp_path / name), 5) for name in ("a.jsonl", "b.jsonl")]
    assert find_letters(str(tmp_path)) == every
    assert find_letters(f"{tmp_path}/") == every
    assert find_letters(str(tmp_path / "*")) == every
    assert find_letters(str(tmp_path / "a.jsonl")) == every[:1]


@pytest.mark.parametrize("name", ["", "none", "*.json"])
def test_no_file_is_an_error(tmp_path: Path, name: str) -> None:
    """A night without letters leaves a folder without files; a wrong folder looks the same."""
    with pytest.raises(ValueError, match=r"dead_letters \(--dead_letters\) .* holds no \*\.jsonl"):
        find_letters(str(tmp_path / name))


def test_after_reconciliation_the_store_equals_the_full_input(tmp_path: Path) -> None:
    """W15: 2% of a minute's records come too late; that night each is in its window."""
    lines = [
        {"event_id": f"e{n}", "account": "k", "amount_cents": n, "event_time": n * 600}
        for n in range(98)
    ]
    lines.append({"event_id": "next", "account": "k", "amount_cents": 7, "event_time": 200_000})
    lines += [
        {"event_id": f"late{n}", "account": "k", "amount_cents": 1000 + n, "event_time": 59_000 + n}
        for n in range(2)
    ]
    path = write_lines(tmp_path / "in.jsonl", lines)
    flags = ("--key_field=account", "--value_field=amount_cents", "--id_field=event_id")
    outcome = run_job(tmp_path, [path], *flags, "--window=1m", "--bound=0s", "--time_unit=ms")
    assert outcome.report["too_late"] == 2
    url, files = f"sqlite:///{tmp_path / 'windows.db'}", find_letters(str(tmp_path / "dead"))
    for _ in range(2):
        shutil.copy(files[0][0], tmp_path / "dead" / "copy.jsonl")
        run(url, [name for name, _ in find_letters(str(tmp_path / "dead"))])
        full: dict[tuple[str, int], tuple[int, int]] = {}
        for line in lines:
            cell = ("k", int(str(line["event_time"])) // MINUTE_MS * MINUTE_MS)
            total, count = full.get(cell, (0, 0))
            full[cell] = (total + int(str(line["amount_cents"])), count + 1)
        assert outcome.finals == full

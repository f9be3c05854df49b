"""A record that a later run has judged again is not added to what that run made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beam_lateness.pipelines.cli import main
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import SUPERSEDED, Ledger
from beam_lateness.transforms.sinks.runs_table import record_run
from tests.jobs import EMBEDDED, FLIGHT_FLAGS, FLIGHTS, Outcome, job_flags
from tests.transforms.reconcile.conftest import MakeStore
from tests.transforms.reconcile.stores import RUN, Store, by_cell, letter, pane

LATER = "run-2"
A = ("a", 0)


@pytest.fixture
def judged(make_store: MakeStore) -> Store:
    """A window of which a record came too late in one run, and was accepted by the next."""
    store = make_store()
    for run in (RUN, LATER):
        record_run(store.url, run, "payments/*.jsonl", anew=True)
    store.write([pane(1)], RUN)
    store.write([pane(6, count=2)], LATER)
    return store


def test_what_a_later_run_has_accepted_is_not_added_again(judged: Store) -> None:
    """It is left, and the report names the run."""
    corrected, left = judged.apply(letter("x", 5))
    assert corrected == []
    assert [(each.reason, each.record_id) for each in left] == [(SUPERSEDED, "x")]
    assert LATER in left[0].detail
    assert judged.rows == {A: (6, 2, 0)}


def test_the_later_runs_own_letters_count(judged: Store) -> None:
    """The same record, too late again: the letters of both runs add it once."""
    judged.apply(letter("x", 5), letter("x", 5, run=LATER))
    assert judged.rows == {A: (11, 3, 1)}


def test_a_row_that_the_later_run_has_not_reached_takes_the_earlier_ones_letters(
    judged: Store,
) -> None:
    """It was killed on the way: the row is still the earlier run's."""
    judged.write([pane(1, key="b")], RUN)
    judged.apply(letter("x", 5, key="b"))
    assert judged.rows["b", 0] == (6, 2, 1)


@pytest.mark.parametrize(
    ("source", "anew"), [("payments/*.jsonl", False), ("others/*.jsonl", True)]
)
def test_a_run_that_goes_on_or_reads_something_else_supersedes_nothing(
    source: str, anew: bool, make_store: MakeStore
) -> None:
    """A live job after a restart; another job of the same table."""
    store = make_store()
    record_run(store.url, RUN, "payments/*.jsonl", anew=True)
    record_run(store.url, LATER, source, anew=anew)
    store.write([pane(1)], LATER)
    store.apply(letter("x", 5))
    assert store.rows == {A: (6, 2, 1)}


def test_who_means_it_can_add_them(judged: Store) -> None:
    """By naming the run: `--run`."""
    ledger = Ledger(judged.url, "r", Correction(["sum"]), superseded=True)
    ledger.apply(by_cell([letter("x", 5)]))
    ledger.close()
    assert judged.rows == {A: (11, 3, 1)}


def test_a_rerun_with_more_lateness_into_the_same_folder_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    """A week of flights at 60 min, then at 3 h: the store equals the input after the night."""
    for lateness in ("60m", "3h"):
        flags = (*FLIGHT_FLAGS, "--bound=15m", f"--allowed_lateness={lateness}")
        assert main(["stream", *job_flags(tmp_path, [FLIGHTS], *flags)]) == 0
    night = [f"--dead_letters={tmp_path / 'dead'}", f"--output=sqlite:///{tmp_path}/windows.db"]
    assert main(["reconcile", *night, f"--runner={EMBEDDED}"]) == 0
    records = [json.loads(line) for line in FLIGHTS.read_bytes().splitlines()]
    rows = Outcome(0, tmp_path).rows
    assert sum(row.records for row in rows) == len(records)
    assert sum(row.value for row in rows) == sum(record["distance"] for record in records)

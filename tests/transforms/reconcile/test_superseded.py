"""A record that another run has judged is not added to what that run made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from beam_lateness.pipelines.cli import main
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.judged import OTHER_JOB, SUPERSEDED, UNFINISHED
from beam_lateness.transforms.reconcile.ledger import Ledger
from beam_lateness.transforms.reconcile.letters import Letter
from beam_lateness.transforms.sinks.runs_table import Run, RunsTable
from tests.jobs import EMBEDDED, FLIGHT_FLAGS, FLIGHTS, Outcome, job_flags
from tests.transforms.reconcile import stores
from tests.transforms.reconcile.conftest import MakeStore
from tests.transforms.reconcile.stores import RUN, Store, by_cell, pane

LATER = "run-2"
SPLIT = "payments.jsonl"
A = ("a", 0)


def letter(name: str, value: int, run: str = RUN, key: str = "a") -> Letter:
    """A letter of a split."""
    return stores.letter(name, value, key=key)._replace(run=run, split=SPLIT)


def note(store: Store, name: str, run: Run) -> None:
    """Notes a run."""
    runs = RunsTable("windows")
    with runs.opened(store.url) as engine:
        runs.begin(engine, name, run)


def over(*splits: str, anew: bool = True, ended: bool = True) -> Run:
    """A run over files of the same folder."""
    return Run({s: f"/in/{s}" for s in splits}, anew, "1m", ("sum",), ended)


@pytest.fixture
def judged(make_store: MakeStore) -> Store:
    """A window of which a record came too late in one run, and was accepted by the next."""
    store = make_store()
    note(store, RUN, over(SPLIT))
    note(store, LATER, over(SPLIT))
    store.write([pane(1)], RUN)
    store.write([pane(6, count=2)], LATER)
    return store


def reasons(store: Store, *letters: Letter) -> list[str]:
    """Reconciles, and gives why letters were left."""
    _, left = store.apply(*letters)
    return [each.reason for each in left]


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


def test_a_run_that_broke_off_adds_nothing_to_rows_of_the_one_before(make_store: MakeStore) -> None:
    """The earlier run may have accepted what it found too late."""
    store = make_store()
    note(store, RUN, over(SPLIT))
    note(store, LATER, over(SPLIT, ended=False))
    store.write([pane(6, count=2)], RUN)
    assert reasons(store, letter("x", 5, run=LATER)) == [UNFINISHED]


@pytest.mark.parametrize(("ended", "expected"), [(True, [SUPERSEDED]), (False, [])])
def test_a_window_without_a_row_is_judged_by_runs_that_came_to_their_end(
    ended: bool, expected: Sequence[str], make_store: MakeStore
) -> None:
    """One that never ran, or broke off, has had no say."""
    store = make_store()
    note(store, RUN, over(SPLIT))
    note(store, LATER, over(SPLIT, ended=ended))
    assert reasons(store, letter("x", 5)) == list(expected)


@pytest.mark.parametrize("later", [over(SPLIT, anew=False), over("others.jsonl")])
def test_a_run_that_goes_on_or_reads_something_else_supersedes_nothing(
    later: Run, make_store: MakeStore
) -> None:
    """A live job after a restart; another part of the input."""
    store = make_store()
    note(store, RUN, over(SPLIT))
    note(store, LATER, later)
    store.write([pane(1)], LATER)
    store.apply(letter("x", 5))
    assert store.rows == {A: (6, 2, 1)}


def test_a_run_is_noted_while_a_ledger_is_open(make_store: MakeStore) -> None:
    """What is known of the runs is read in the transaction that adds."""
    store = make_store()
    note(store, RUN, over(SPLIT))
    store.write([pane(1)], RUN)
    ledger = Ledger(store.url, "r", Correction(["sum"]))
    note(store, LATER, over(SPLIT))
    store.write([pane(6, count=2)], LATER)
    _, left = ledger.apply(by_cell([letter("x", 5)]))
    ledger.close()
    assert [each.reason for each in left] == [SUPERSEDED]


def test_the_letters_of_another_job_are_left(judged: Store) -> None:
    """Two jobs that write dead letters into one folder."""
    assert reasons(judged, letter("x", 5, run="run-3")) == [OTHER_JOB]


def test_who_means_it_can_add_them(judged: Store) -> None:
    """By naming the run: `--run`."""
    ledger = Ledger(judged.url, "r", Correction(["sum"]), superseded=True)
    ledger.apply(by_cell([letter("x", 5)]))
    ledger.close()
    assert judged.rows == {A: (11, 3, 1)}


def stream(folder: Path, lateness: str, *flags: str) -> int:
    """A week of flights, with some lateness."""
    own = (*FLIGHT_FLAGS, "--bound=15m", f"--allowed_lateness={lateness}", *flags)
    return main(["stream", *job_flags(folder, [FLIGHTS], *own)])


def night(folder: Path, *flags: str) -> int:
    """The reconciliation."""
    where = [f"--dead_letters={folder / 'dead'}", f"--output=sqlite:///{folder}/windows.db"]
    return main(["reconcile", *where, f"--runner={EMBEDDED}", *flags])


def check_whole(folder: Path) -> None:
    """The store equals the input."""
    records = [json.loads(line) for line in FLIGHTS.read_bytes().splitlines()]
    rows = Outcome(0, folder).rows
    assert sum(row.records for row in rows) == len(records)
    assert sum(row.value for row in rows) == sum(record["distance"] for record in records)


@pytest.mark.parametrize("lateness", [("60m", "3h"), ("3h", "0s")], ids=["more", "less"])
def test_a_rerun_with_other_lateness_into_the_same_folder_counts_nothing_twice(
    lateness: Sequence[str], tmp_path: Path
) -> None:
    """What the first run said and the second does not is gone; the store equals the input."""
    for each in lateness:
        assert stream(tmp_path, each) == 0
    assert night(tmp_path) == 0
    check_whole(tmp_path)


def test_a_rerun_by_another_spelling_of_the_path_is_one_of_the_same_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, too."""
    assert stream(tmp_path, "60m") == 0
    monkeypatch.chdir(FLIGHTS.parent)
    flags = (*FLIGHT_FLAGS, "--bound=15m", "--allowed_lateness=3h")
    assert main(["stream", *job_flags(tmp_path, [f"./{FLIGHTS.name}"], *flags)]) == 0
    assert night(tmp_path) == 0
    check_whole(tmp_path)


def test_a_start_that_fails_takes_nothing_from_the_run_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its letters count as if nothing had happened."""
    assert stream(tmp_path, "60m") == 0
    assert stream(tmp_path, "60m", "--metrics_file=x.txt") == 2
    assert night(tmp_path) == 0
    check_whole(tmp_path)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--window=2h",), "other windows, 1h"),
        (("--aggregate=max",), "other aggregates, sum"),
    ],
)
def test_a_table_is_of_one_kind_of_windows_and_aggregates(
    flags: Sequence[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sum over both would be wrong."""
    assert stream(tmp_path, "60m") == 0
    assert stream(tmp_path, "60m", *flags) == 2
    assert told in capsys.readouterr().err


def test_a_start_that_left_nothing_binds_nobody(tmp_path: Path) -> None:
    """Its windows may have been the mistake that it was stopped for."""
    assert stream(tmp_path, "60m", "--window=2h", "--metrics_file=x.txt") == 2
    assert stream(tmp_path, "60m") == 0


def test_another_input_does_not_replace_windows_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two days of one stream share the windows at midnight."""
    lines = FLIGHTS.read_bytes().splitlines(keepends=True)
    days = [tmp_path / "day-1.jsonl", tmp_path / "day-2.jsonl"]
    for path, some in zip(days, (lines[:3000], lines[3000:]), strict=True):
        path.write_bytes(b"".join(some))
    flags = (*FLIGHT_FLAGS, "--bound=15m", "--allowed_lateness=60m")
    assert main(["stream", *job_flags(tmp_path, days[:1], *flags)]) == 0
    second = ["stream", *job_flags(tmp_path, days[1:], *flags)]
    assert main(second) == 2
    told = capsys.readouterr().err
    assert str(days[0]) in told
    assert "--confirm=replaces_other_input" in told
    assert main([*second, "--confirm=replaces_other_input"]) == 0


def test_the_night_knows_the_jobs_aggregate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the default, and another one is refused."""
    assert stream(tmp_path, "60m", "--aggregate=max") == 0
    assert night(tmp_path, "--aggregate=sum") == 2
    assert "has max" in capsys.readouterr().err
    assert night(tmp_path) == 0
    records = [json.loads(line) for line in FLIGHTS.read_bytes().splitlines()]
    found = max(row.value for row in Outcome(0, tmp_path).rows)
    assert found == max(record["distance"] for record in records)


def test_a_run_that_is_not_there_cannot_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo is no success."""
    assert stream(tmp_path, "60m") == 0
    assert night(tmp_path, "--run=nope") == 2
    assert "none of the dead letter files" in capsys.readouterr().err

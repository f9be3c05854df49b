"""`UpsertPanes`: each key and window has its latest result, whatever comes twice or unordered."""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import Pane, UpsertPanes
from beam_lateness.transforms.sinks.window_table import WindowTable
from tests.cases.engine import direct_pipeline

COLUMNS = "key, window_start_ms, window_end_ms, value, count, pane_index, timing, run"
ALL_COLUMNS = f"{COLUMNS}, reconciled"
RUN = "run-1"


def pane(key: Any = "a", start: int = 0, value: Any = 1, index: int = 0) -> Pane:
    """Makes a pane of a minute."""
    return Pane(key, start, start + 60_000, value, index + 1, index, "LATE" if index else "ON_TIME")


def url_of(path: Path) -> str:
    """Gives the URL of a SQLite file."""
    return f"sqlite:///{path}"


def rows(path: Path) -> list[tuple[Any, ...]]:
    """Reads the table, in order."""
    connection = sqlite3.connect(path)
    try:
        query = f"SELECT {COLUMNS} FROM windows ORDER BY key, window_start_ms"
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def write(path: Path, *batches: Sequence[Pane], run: str = RUN) -> list[tuple[Any, ...]]:
    """Writes batches of panes; gives the rows afterwards."""
    table = WindowTable(url_of(path))
    for batch in batches:
        table.write(batch, run)
    table.close()
    return rows(path)


def test_a_row_holds_the_whole_pane(tmp_path: Path) -> None:
    """Every field, and the run."""
    assert write(tmp_path / "db", [Pane("a", -60_000, 0, 7, 3, 2, "LATE")]) == [
        ("a", -60_000, 0, 7, 3, 2, "LATE", RUN)
    ]


def test_the_store_keeps_the_last_of_three_panes(tmp_path: Path) -> None:
    """C44: 1, 3, 6 of one key and window is 6, where an append would add up to 10."""
    (row,) = write(tmp_path / "db", *([pane(value=v, index=i)] for i, v in enumerate((1, 3, 6))))
    assert row[3] == 6


@pytest.mark.parametrize("together", [True, False])
def test_an_older_pane_never_overwrites_a_newer_one(together: bool, tmp_path: Path) -> None:
    """Within a batch or after it."""
    newer, older = pane(value=6, index=2), pane(value=3, index=1)
    batches = [[newer, older]] if together else [[newer], [older]]
    (row,) = write(tmp_path / "db", *batches)
    assert (row[3], row[5]) == (6, 2)


def test_an_older_run_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    """However high its pane's index."""
    write(tmp_path / "db", [pane(value=10)], run="run-2")
    assert write(tmp_path / "db", [pane(value=99, index=9)], run="run-1")[0][3] == 10


def test_a_newer_run_replaces_whatever_an_older_one_left(tmp_path: Path) -> None:
    """With its first pane already: a run begun again starts at index 0."""
    write(tmp_path / "db", [pane(value=99, index=9)], run="run-1")
    (row,) = write(tmp_path / "db", [pane(value=10)], run="run-2")
    assert (row[3], row[5], row[7]) == (10, 0, "run-2")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Pane]]:
    """Draws runs, each with panes 0, 1, 2 ... of some keys and windows."""
    history = []
    for run in draw(st.sets(st.sampled_from(["run-1", "run-2", "run-3"]), min_size=1)):
        cells = draw(st.sets(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 60_000]))))
        for key, start in sorted(cells):
            values = draw(st.lists(st.integers(-9, 9), min_size=1, max_size=4))
            history += [(run, pane(key, start, v, index)) for index, v in enumerate(values)]
    return history


@settings(max_examples=60, deadline=None)
@given(history=histories(), seed=st.integers(0, 999))
def test_any_replay_of_any_batches_gives_the_same_table(
    history: list[tuple[str, Pane]], seed: int
) -> None:
    """Shuffled, cut anywhere, doubled: the row is the last pane of the last run of its cell."""
    dice = random.Random(seed)
    replayed = history + [each for each in history if dice.random() < 0.5]
    dice.shuffle(replayed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db"
        table = WindowTable(url_of(path))
        while replayed:
            taken, replayed = replayed[:3], replayed[3:]
            for run in sorted({run for run, _ in taken}, reverse=dice.random() < 0.5):
                table.write([each for of, each in taken if of == run], run)
        table.close()
        found = rows(path)
    last = {
        (each.key, each.window_start): (run, each)
        for run, each in sorted(history, key=lambda pair: (pair[0], pair[1].index))
    }
    assert {row[:2]: (row[7], row[5], row[3]) for row in found} == {
        cell: (run, each.index, each.value) for cell, (run, each) in last.items()
    }


@pytest.mark.parametrize("value", [0, -7, 2**63 - 1, -(2**63), 1.5, -0.1, 1e300])
def test_numbers_come_back_as_they_were(value: float, tmp_path: Path) -> None:
    """Every 64-bit integer and float, with its type."""
    (row,) = write(tmp_path / "db", [pane(value=value)])
    assert (row[3], type(row[3])) == (value, type(value))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 3 * (2**63 - 1), 10**30])
def test_an_integer_beyond_64_bits_keeps_its_digits(value: int, tmp_path: Path) -> None:
    """As text: SQLite would round it."""
    (row,) = write(tmp_path / "db", [pane(value=value)])
    assert row[3] == str(value)


def test_several_aggregates_are_a_json_object(tmp_path: Path) -> None:
    """By name, in the order asked for, integers whole."""
    value = {"sum": 2**70, "count": 3, "mean": 0.5}
    (row,) = write(tmp_path / "db", [pane(value=value)])
    assert list(json.loads(row[3]).items()) == list(value.items())


@pytest.mark.parametrize("value", [[3, 1], (3, 1), {"top": [3, 1]}], ids=repr)
def test_the_result_of_a_combine_fn_may_be_a_list(value: Any, tmp_path: Path) -> None:
    """As JSON."""
    (row,) = write(tmp_path / "db", [pane(value=value)])
    assert json.loads(row[3]) == json.loads(json.dumps(value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_is_no_number_is_text(value: float, tmp_path: Path) -> None:
    """SQLite takes NaN for null."""
    (row,) = write(tmp_path / "db", [pane(value=value)])
    assert row[3] == str(value)


@pytest.mark.parametrize("key", [7, ("a", 1), None], ids=str)
def test_a_key_that_is_no_text_is_its_json(key: Any, tmp_path: Path) -> None:
    """The column is text."""
    (row,) = write(tmp_path / "db", [pane(key)])
    assert row[0] == json.dumps(key)


def test_a_key_of_bytes_can_be_written(tmp_path: Path) -> None:
    """`AggregateWindows` takes such keys; each has a row of its own."""
    assert len(write(tmp_path / "db", [pane(b"\x00"), pane(b"\xff")])) == 2


def test_readers_may_read_while_the_job_writes(tmp_path: Path) -> None:
    """The file is in WAL mode."""
    write(tmp_path / "db", [pane()])
    connection = sqlite3.connect(tmp_path / "db")
    try:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    finally:
        connection.close()


def test_no_panes_change_nothing(tmp_path: Path) -> None:
    """An empty bundle."""
    assert write(tmp_path / "db", []) == []


def test_an_existing_table_is_gone_on_with(tmp_path: Path) -> None:
    """A second job adds to it."""
    write(tmp_path / "db", [pane("a")])
    assert [row[0] for row in write(tmp_path / "db", [pane("b")])] == ["a", "b"]


@pytest.mark.parametrize(
    "shape",
    [
        "CREATE TABLE windows (key TEXT PRIMARY KEY, value)",
        f"CREATE TABLE windows ({ALL_COLUMNS})",
        f"CREATE TABLE windows ({ALL_COLUMNS}, PRIMARY KEY (key))",
        f"CREATE TABLE windows ({ALL_COLUMNS}, PRIMARY KEY (window_start_ms, key))",
        f"CREATE TABLE windows ({ALL_COLUMNS}, more, PRIMARY KEY (key, window_start_ms))",
        f"CREATE TABLE windows ({COLUMNS}, PRIMARY KEY (key, window_start_ms))",
    ],
)
def test_a_table_of_another_shape_is_refused_untouched(shape: str, tmp_path: Path) -> None:
    """At construction, with what was found and what is needed."""
    path = tmp_path / "db"
    connection = sqlite3.connect(path)
    connection.execute(shape)
    connection.commit()
    connection.close()
    with pytest.raises(ValueError, match=r"of another shape: columns key.* are needed"):
        UpsertPanes(url_of(path), RUN)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT sql FROM sqlite_master").fetchone() == (shape,)
    connection.close()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "must be a database URL, got ''"),
        ("windows.db", "must be a database URL, got 'windows.db'"),
        ("sqlite://", "must be a SQLite file"),
        ("sqlite:///", "must be a SQLite file"),
        ("sqlite:///:memory:", "must be a SQLite file"),
        ("mysql://localhost/db", "must be a SQLite file or PostgreSQL"),
        ("postgresql+psycopg2://localhost/db", "must be a SQLite file or PostgreSQL"),
        ("postgresql://localhost:1/db", "cannot be used: connection failed"),
        ("sqlite:////no/such/folder/db", "no writable folder '/no/such/folder'"),
    ],
)
def test_a_bad_url_is_refused_with_a_remedy(url: str, complaint: str) -> None:
    """Before launch, by the flag's name."""
    with pytest.raises(ValueError, match=rf"output \(--output\).*{complaint}"):
        UpsertPanes(url, RUN)


def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    """Not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, but a text of some length " * 99)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="cannot be used: file is not a database"):
        UpsertPanes(url_of(path), RUN)
    assert path.read_bytes() == before


def test_a_pipeline_upserts_what_it_gets(tmp_path: Path) -> None:
    """Older panes and newer ones, in any order and bundle."""
    panes = [pane(key, 0, index * 10, index) for index in (2, 0, 1) for key in "abc"]
    with direct_pipeline() as pipeline:
        _ = pipeline | beam.Create(panes) | UpsertPanes(url_of(tmp_path / "db"), RUN)
    assert [(row[0], row[3]) for row in rows(tmp_path / "db")] == [("a", 20), ("b", 20), ("c", 20)]

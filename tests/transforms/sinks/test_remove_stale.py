"""`RemoveStale`: rows that only a broken off run wrote go, and no others."""

from __future__ import annotations

import pickle
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sinks.stale import RemoveStale
from beam_lateness.transforms.sinks.window_table import WindowTable
from beam_lateness.transforms.times import MIN_EVENT_TIME_MS
from tests.transforms.sinks.test_upsert import pane, rows, url_of, write

RUNS = [f"run-{number}" for number in range(5)]


def runs_of(path: Path) -> list[str]:
    """The runs whose rows are there."""
    return sorted(row[-1] for row in rows(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with a window that ends at 60 s, a row of it by each run."""
    for run in RUNS:
        write(tmp_path / "db", [pane(key=run)], run=run)
    return tmp_path / "db"


def test_rows_of_earlier_runs_of_this_source_are_removed(path: Path) -> None:
    """Those of other sources, between them too, are left alone."""
    RemoveStale(url_of(path))(["run-1", "run-3"], 0, 60_000)
    assert runs_of(path) == ["run-0", "run-2", "run-4"]


@pytest.mark.parametrize(
    ("low", "high", "removed"),
    [
        (59_999, 60_000, True),
        (60_000, 99_999, False),
        (0, 59_999, False),
        (MIN_EVENT_TIME_MS - 1, 60_000, True),
        (60_000, 60_000, False),
    ],
)
def test_a_window_is_in_the_range_by_its_end(
    path: Path, low: int, high: int, removed: bool
) -> None:
    """After `low`, and not after `high`."""
    RemoveStale(url_of(path))(RUNS[:-1], low, high)
    assert runs_of(path) == (["run-4"] if removed else RUNS)


def test_a_row_that_this_run_has_replaced_stays(tmp_path: Path) -> None:
    """It stands on what came again."""
    write(tmp_path / "db", [pane(value=9, index=3)], run="run-1")
    before = write(tmp_path / "db", [pane(value=5)], run="run-2")
    RemoveStale(url_of(tmp_path / "db"))(["run-1"], 0, 60_000)
    assert rows(tmp_path / "db") == before


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(-3, 3)), st.sampled_from(RUNS), max_size=8
    ),
    st.sets(st.sampled_from(RUNS)),
    st.integers(-3, 4),
    st.integers(-3, 4),
)
def test_what_is_left_is_what_a_list_would_leave(
    cells: dict[tuple[str, int], str], earlier: set[str], low: int, high: int
) -> None:
    """Row by row; a second call changes nothing."""
    minute = 60_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db"
        table = WindowTable(url_of(path))
        for (key, number), of in cells.items():
            table.write([pane(key, number * minute)], of)
        table.close()
        for _ in range(2):
            RemoveStale(url_of(path))(sorted(earlier), low * minute, high * minute)
            left = {
                (key, number * minute)
                for (key, number), of in cells.items()
                if not (of in earlier and low < number + 1 <= high)
            }
            assert {row[:2] for row in rows(path)} == left


def test_other_tables_of_the_file_are_left_alone(path: Path) -> None:
    """The checkpoint may be one."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("INSERT INTO mine VALUES (7)")
        connection.commit()
    RemoveStale(url_of(path))(RUNS[:-1], 0, 60_000)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT x FROM mine").fetchall() == [(7,)]


def test_it_can_be_sent_to_a_worker(path: Path) -> None:
    """Engines pickle what a DoFn holds."""
    pickle.loads(pickle.dumps(RemoveStale(url_of(path))))(RUNS[:-1], 0, 60_000)
    assert runs_of(path) == ["run-4"]


def test_it_says_when_earlier_runs_have_nothing_more(tmp_path: Path) -> None:
    """Then it need not look again: rows of settled windows stay, and later ones are this run's."""
    for run, start in (("run-1", 0), ("run-1", 60_000), ("run-2", 120_000)):
        write(tmp_path / "db", [pane(start=start)], run=run)
    remove = RemoveStale(url_of(tmp_path / "db"))
    assert not remove(["run-1"], 0, 60_000)
    assert remove(["run-1"], 60_000, 120_000)
    assert runs_of(tmp_path / "db") == ["run-2"]

"""`UpsertPanes` where the engine goes back: panes are numbered anew, and counts grow."""

from __future__ import annotations

import itertools
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import Pane
from beam_lateness.transforms.sinks.window_table import WindowTable

MINUTE_MS = 60_000
RUN = "run-1"


class Row(NamedTuple):
    """What stands of a key."""

    key: str
    value: int
    records: int
    pane_index: int
    run: str


def pane(key: str, count: int, index: int) -> Pane:
    """Makes a pane, whose value tells which it is."""
    value = count * 1000 + index
    return Pane(key, 0, MINUTE_MS, value, count, index, "LATE" if index else "ON_TIME")


@contextmanager
def windows() -> Iterator[tuple[WindowTable, Path]]:
    """A table, and the file that it is in."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.db"
        table = WindowTable(f"sqlite:///{path}")
        try:
            yield table, path
        finally:
            table.close()


def rows(path: Path) -> list[Row]:
    """Reads the table, in the order of its keys."""
    connection = sqlite3.connect(path)
    try:
        query = "SELECT key, value, count, pane_index, run FROM windows ORDER BY key"
        return [Row(*row) for row in connection.execute(query)]
    finally:
        connection.close()


def written(*batches: tuple[str, list[Pane]]) -> list[Row]:
    """Writes batches of panes, each of a run; gives the rows afterwards."""
    with windows() as (table, path):
        for run, panes in batches:
            table.write(panes, run)
        return rows(path)


@st.composite
def replays(draw: st.DrawFn, key: str) -> list[Pane]:
    """Draws the panes of a key, as an engine gives them that fails and goes on again and again.

    It goes back to a pane that it has given before, and gives the records after that in other
    panes: fewer of them or more, so that indices start lower again. Only the last time it comes to
    the true total.
    """
    total = draw(st.integers(1, 30))
    given_panes: list[Pane] = []
    kept = [(0, 0)]  # of each checkpoint: the count so far, the index to come
    for last in [*draw(st.lists(st.just(False), max_size=3)), True]:
        count, index = draw(st.sampled_from(kept))
        reached = total if last else draw(st.integers(count, total))
        while count < reached:
            count += draw(st.integers(1, reached - count))
            given_panes.append(pane(key, count, index))
            index += 1
            kept.append((count, index))
    return given_panes


HISTORIES = st.tuples(replays("a"), replays("b"))


def latest(panes: list[Pane]) -> Pane:
    """The pane that stands on all records; of several, the one that was numbered last."""
    return max(panes, key=lambda each: (each.count, each.index))


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(0, 9999), st.sampled_from([1, 3, 100]))
def test_the_pane_on_all_records_stands_whatever_the_engine_gave_before_and_after(
    histories: tuple[list[Pane], list[Pane]], seed: int, size: int
) -> None:
    """In any order, with repeats; one by one, in batches, and in one batch."""
    dice = random.Random(seed)
    panes = [each for history in histories for each in history]
    panes += [each for each in panes if dice.random() < 0.5]
    dice.shuffle(panes)
    batches = [(RUN, panes[at : at + size]) for at in range(0, len(panes), size)]
    assert [(row.key, row.value) for row in written(*batches)] == [
        (best.key, best.value) for best in map(latest, histories)
    ]


@settings(max_examples=20, deadline=None)
@given(replays("a"))
def test_a_row_never_goes_back_to_fewer_records(history: list[Pane]) -> None:
    """Who reads the table meanwhile sees counts that grow."""
    with windows() as (table, path):
        seen = []
        for each in history:
            table.write([each], RUN)
            seen += [row.records for row in rows(path)]
    assert seen == list(itertools.accumulate((each.count for each in history), max))


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned round"])
def test_a_pane_on_more_records_stands_over_one_with_a_higher_number(
    together: bool, turned: bool
) -> None:
    """Late records that came in three panes come in one, after the engine has gone back."""
    before, after = pane("a", 5, 3), pane("a", 6, 1)
    panes = [after, before] if turned else [before, after]
    batches = [(RUN, panes)] if together else [(RUN, [each]) for each in panes]
    assert [row.value for row in written(*batches)] == [after.value]


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned round"])
def test_of_two_panes_on_as_many_records_the_higher_number_stands(
    together: bool, turned: bool
) -> None:
    """It was given later."""
    panes = [pane("a", 5, 1), pane("a", 5, 2)]
    panes = panes[::-1] if turned else panes
    batches = [(RUN, panes)] if together else [(RUN, [each]) for each in panes]
    assert [row.pane_index for row in written(*batches)] == [2]


@settings(max_examples=20, deadline=None)
@given(replays("a"), replays("a"), st.integers(0, 9999))
def test_a_newer_run_stands_however_few_records_it_has_seen(
    older: list[Pane], newer: list[Pane], seed: int
) -> None:
    """And whatever the older one still writes: it has begun anew, or goes on with what was kept."""
    batches = [("run-1", [each]) for each in older] + [("run-2", [each]) for each in newer]
    random.Random(seed).shuffle(batches)
    (row,) = written(*batches)
    assert (row.run, row.value) == ("run-2", latest(newer).value)

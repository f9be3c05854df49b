"""`AppendPanes`: a row a pane, once, whatever comes twice; on both databases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from beam_lateness import AppendPanes, Pane, RefusedPane, RemoveStale, UpsertPanes
from beam_lateness.transforms.database import open_database
from beam_lateness.transforms.sinks.append import PaneTable, panes_table
from beam_lateness.transforms.sinks.window_table import values_of
from tests.cases.engine import direct_pipeline, keep, kept
from tests.transforms.sinks.databases import (
    MINUTE_MS,
    empty_database,  # noqa: F401  (pytest finds the fixture here)
    execute,
    is_postgres,
    pane,
    some_name,
    stored,
)

RUN = "run-1"
W1 = [pane("JFK", 0, 80_000, 16), pane("JFK", 0, 85_000, 17, 1)]
"""The panes of the worked case W1: on time, and with a late record."""


def appended(url: str, table: str = "panes") -> list[Mapping[str, Any]]:
    """Reads a table of panes, in the order of its key."""
    engine = open_database(url, "url")
    try:
        with engine.connect() as connection:
            of = panes_table(table, values_of(connection, table))
            rows = connection.execute(select(of))
            found = [row._asdict() for row in rows]
    finally:
        engine.dispose()
    return sorted(found, key=_place)


def _place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["key"], row["window_start_ms"], row["pane_index"]


def write(
    url: str, *batches: tuple[str, Iterable[Pane]], table: str = "panes"
) -> list[Mapping[str, Any]]:
    """Appends batches of panes, each of a run; gives the rows afterwards."""
    opened = PaneTable(url, table)
    try:
        for run, panes in batches:
            assert opened.write(panes, run) == []
    finally:
        opened.close()
    return appended(url, table)


def test_a_row_holds_the_whole_pane(url: str) -> None:
    """Every field, and the run."""
    assert write(url, (RUN, [Pane("a", -60_000, 0, 7, 3, 2, "LATE")])) == [
        {
            "key": "a",
            "window_start_ms": -60_000,
            "window_end_ms": 0,
            "value": 7,
            "count": 3,
            "pane_index": 2,
            "timing": "LATE",
            "run": RUN,
        }
    ]


def test_an_append_counts_a_corrected_window_twice_and_an_upsert_does_not(url: str) -> None:
    """W2: 80,000 and 85,000 both stand, sum 165,000; the upsert sink has 85,000."""
    with direct_pipeline() as pipeline:
        panes = pipeline | beam.Create(W1)
        _ = panes | AppendPanes(url, RUN)
        _ = panes | UpsertPanes(url, RUN)
    values = [row["value"] for row in appended(url)]
    assert values == [80_000, 85_000]
    assert sum(values) == 165_000
    assert [row["value"] for row in stored(url).values()] == [85_000]


CELLS = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 3))
RUNS = st.dictionaries(
    st.sampled_from(["run-1", "run-2", "run-3"]),
    st.dictionaries(CELLS, st.integers(-9, 9), max_size=6),
    max_size=3,
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(runs=RUNS, seed=st.integers(0, 9999), size=st.integers(1, 5))
def test_each_pane_has_one_row_of_the_newest_run_that_gave_it(
    url: str, runs: dict[str, dict[tuple[str, int, int], int]], seed: int, size: int
) -> None:
    """Shuffled, doubled and cut anywhere: what comes again changes nothing."""
    dice = random.Random(seed)
    history = [
        (run, pane(key, minute * MINUTE_MS, value, 1, index))
        for run, panes in runs.items()
        for (key, minute, index), value in panes.items()
    ]
    history += [each for each in history if dice.random() < 0.5]
    dice.shuffle(history)
    batches = [
        (run, [each for _, each in list(group)[:size]] * 2)
        for run, group in itertools.groupby(history, key=_run_of)
    ]
    batches += [(run, [each]) for run, each in history]
    expected: dict[tuple[str, int, int], tuple[str, int]] = {}
    for run in sorted(runs):
        for (key, minute, index), value in runs[run].items():
            expected[key, minute * MINUTE_MS, index] = run, value
    found = write(url, *batches, table=some_name())
    assert {_place(row): (row["run"], row["value"]) for row in found} == expected


def _run_of(written: tuple[str, Pane]) -> str:
    return written[0]


def test_a_run_begun_again_replaces_what_an_interrupted_one_left(url: str) -> None:
    """Pane by pane, and not the other way round."""
    first = (RUN, [pane(value=1), pane(value=2, index=1)])
    again = ("run-2", [pane(value=10), pane(value=20, index=1)])
    rows = write(url, first, again, first)
    assert [(row["run"], row["value"]) for row in rows] == [("run-2", 10), ("run-2", 20)]


def test_rows_that_only_a_broken_off_run_wrote_can_be_removed(url: str) -> None:
    """`RemoveStale(appended=True)`: of settled windows, and of no other run."""
    panes = [pane(index=index, start=start) for start in (0, MINUTE_MS) for index in (0, 1)]
    write(url, (RUN, panes), ("run-2", panes[:1]))
    remove = RemoveStale(url, "panes", appended=True)
    assert not remove([RUN], 0, MINUTE_MS)
    left = [(row["run"], row["window_start_ms"], row["pane_index"]) for row in appended(url)]
    assert left == [("run-2", 0, 0), (RUN, MINUTE_MS, 0), (RUN, MINUTE_MS, 1)]
    assert remove([RUN], MINUTE_MS, 2 * MINUTE_MS)
    assert len(appended(url)) == 1


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bad=st.lists(st.booleans(), min_size=1, max_size=12), doubled=st.booleans())
def test_a_refused_pane_is_given_out_and_the_others_are_appended(
    url: str, bad: list[bool], doubled: bool
) -> None:
    """Wherever it stands in the batch; one that came twice is told twice."""
    panes = [pane(f"{n:02}\ud800" if is_bad else f"{n:02}") for n, is_bad in enumerate(bad)]
    name = some_name()
    table = PaneTable(url, name)
    refused = table.write(panes * (2 if doubled else 1), RUN)
    table.close()
    worse = [each for each, is_bad in zip(panes, bad, strict=True) if is_bad]
    assert sorted(each.pane for each in refused) == sorted(worse * (2 if doubled else 1))
    assert {row["key"] for row in appended(url, name)} == {
        each.key for each, is_bad in zip(panes, bad, strict=True) if not is_bad
    }


def test_refused_panes_leave_the_transform(url: str, tmp_path: Any) -> None:
    """With `emit_refused`, through an engine; without, the job ends."""
    panes = [pane("good"), pane("bad\ud800")]
    with direct_pipeline() as pipeline:
        refused = pipeline | beam.Create(panes) | AppendPanes(url, RUN, emit_refused=True)
        keep(refused, tmp_path, "refused")
    (found,) = kept(tmp_path, "refused")
    assert isinstance(found, RefusedPane)
    assert found.pane == panes[1]
    assert [row["key"] for row in appended(url)] == ["good"]
    with pytest.raises(RuntimeError, match="refuses the pane of 'bad"), direct_pipeline() as job:
        _ = job | beam.Create(panes) | AppendPanes(url, RUN)


def test_a_table_of_windows_is_refused(url: str) -> None:
    """At construction: it has another shape."""
    UpsertPanes(url, RUN, table="mine")
    with pytest.raises(ValueError, match=r"table 'mine' of another shape.*reconciled.*pane_index"):
        AppendPanes(url, RUN, table="mine")


def test_several_aggregates_are_appended_as_they_are(url: str) -> None:
    """As JSON, integers whole."""
    value = {"sum": 2**70, "mean": 0.5}
    table = PaneTable(url, values="json")
    assert table.write([pane(value=value)], RUN) == []
    table.close()
    assert [row["value"] for row in appended(url)] == [value]


def test_a_table_of_other_values_is_refused(url: str) -> None:
    """PostgreSQL's column has a type; SQLite's has none."""
    PaneTable(url, values="json").close()
    if is_postgres(url):
        with pytest.raises(ValueError, match=r"'panes' \(--table\) holds.*'json'.*'number'"):
            PaneTable(url)
    else:
        PaneTable(url).close()


def test_a_table_that_is_gone_is_no_refusal(url: str) -> None:
    """The job ends, and no pane is taken for a bad one."""
    table = PaneTable(url)
    execute(url, "DROP TABLE panes")
    with pytest.raises(Exception, match="panes"):
        table.write([pane()], RUN)
    table.close()

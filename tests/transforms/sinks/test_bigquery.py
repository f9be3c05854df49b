"""`UpsertPanesToBigQuery`: panes stand in the table, and those that it cannot hold come out."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.pipelines.runs import new_run
from beam_lateness.transforms import metrics
from beam_lateness.transforms.results import Pane, RefusedPane
from beam_lateness.transforms.sinks import bigquery, bigquery_writer
from beam_lateness.transforms.sinks.bigquery import (
    UpsertPanesToBigQuery,
    create_table_sql,
    parse_table,
    run_sections,
)
from beam_lateness.transforms.sinks.bigquery_writer import ValueType, row_descriptor
from tests.bigquery import URL, FakeBigQuery, connect, errors, served
from tests.cases.engine import direct_pipeline, keep, kept

RUN = "20260101T030405.000006Z-ab11"
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(timezone.utc))


@given(st.lists(TIMES, min_size=2, max_size=5))
def test_the_sections_of_runs_sort_as_their_names_do(times: list[datetime]) -> None:
    """As numbers and as text; the digits after the time decide where the time is the same."""
    runs = sorted(new_run(clock) for time in times for clock in [time.replace] * 2)
    sections = [run_sections(run) for run in runs]
    numbers = [[int(section, 16) for section in each.split("/")] for each in sections]
    assert (sections, numbers) == (sorted(sections), sorted(numbers))
    assert len(set(sections)) == len(set(runs))


@pytest.mark.parametrize(
    "run", ["run-1", "", RUN + "0", RUN.upper(), "20261302" + RUN[8:], "19691231" + RUN[8:]]
)
def test_a_run_that_cannot_be_ordered_is_told_at_construction(run: str) -> None:
    """With its name and the remedy."""
    with pytest.raises(ValueError, match=rf"run must be .* got {run!r}; take .*new_run"):
        UpsertPanesToBigQuery(URL, run)


@pytest.mark.parametrize("value_type", bigquery_writer.VALUE_TYPES)
def test_the_statement_creates_just_the_columns_that_rows_have(value_type: ValueType) -> None:
    """In their order."""
    columns = re.findall(r"^  (\w+) \w+ NOT NULL", create_table_sql(URL, value_type), re.MULTILINE)
    assert columns == [each.name for each in row_descriptor(value_type).field][:-2]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///w.db", "must be a table of BigQuery"),
        ("bigquery://my-shop/sales", "must be a table of BigQuery"),
        ("bigquery://my-shop/sales/a/b", "must be a table of BigQuery"),
        ("bigquery://My_Shop/sales/w", "has 'My_Shop' where a project is needed"),
        ("bigquery://my-shop/sa-les/w", "has 'sa-les' where a dataset is needed"),
        ("bigquery://my-shop/sales/w`;", "has 'w`;' where a table is needed"),
    ],
)
def test_a_url_that_names_no_table_is_told(url: str, told: str) -> None:
    """By the transform and the statement."""
    for use in (lambda: UpsertPanesToBigQuery(url, RUN), lambda: create_table_sql(url)):
        with pytest.raises(ValueError, match=rf"{re.escape(told)}.*give bigquery://"):
            use()


def test_arguments_are_checked_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value's type, the staleness, and that the library is there."""
    wrong: Any = "NUMERIC"
    with pytest.raises(ValueError, match=r"value_type must be one of .*; got 'NUMERIC'"):
        UpsertPanesToBigQuery(URL, RUN, wrong)
    with pytest.raises(ValueError, match="max_staleness must be whole seconds up to 24h"):
        create_table_sql(URL, max_staleness="25h")
    monkeypatch.setitem(sys.modules, bigquery_writer.LIBRARY, None)
    with pytest.raises(ValueError, match=r"pip install 'beam-lateness\[gcp\]'"):
        UpsertPanesToBigQuery(URL, RUN)


def test_a_project_may_have_a_domain() -> None:
    """An old one has."""
    assert parse_table("bigquery://example.com:my-shop/d/t").project == "example.com:my-shop"


PORTS: list[int] = []
"""Of the server that `open_served` connects to; the workers live in this process."""


def open_served() -> Any:
    """Opens a client to the last server."""
    return connect(PORTS[-1])


@pytest.fixture
def table() -> Iterator[FakeBigQuery]:
    """A table, served."""
    fake = FakeBigQuery()
    with served(fake) as port:
        PORTS.append(port)
        yield fake


class Told:
    """A `written` hook that keeps in a file what it is told, a call a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, panes: Sequence[Pane]) -> None:
        with self._path.open("a") as file:
            file.write(pickle.dumps(list(panes)).hex() + "\n")

    def panes(self) -> list[Pane]:
        """What it was told."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [each for line in lines for each in pickle.loads(bytes.fromhex(line))]


def pane(key: str = "a", value: Any = 1, count: int = 1) -> Pane:
    """Makes a pane of a minute."""
    return Pane(key, 0, 60_000, value, count, count - 1, "LATE" if count > 1 else "ON_TIME")


def see_window(
    element: RefusedPane,
    timestamp: Any = beam.DoFn.TimestampParam,
    window: Any = beam.DoFn.WindowParam,
) -> tuple[RefusedPane, int, int]:
    """Gives an element with its time and the start of its window, in s."""
    return element, int(timestamp), int(window.start)


def test_a_pipeline_writes_panes_and_gives_out_the_refused(
    table: FakeBigQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their windows; `written` is told of all others, and the refused are counted."""
    monkeypatch.setattr(bigquery, "_ROWS_AT_ONCE", 3)
    table.failures = [errors.Aborted("busy")]
    good = [pane("a", 1), pane("a", 2, count=2), pane("b", 3)]
    bad = [pane("c", "text"), pane("d", 0.5)]
    told = Told(tmp_path / "told")
    metrics.start_tally()
    with direct_pipeline() as pipeline:
        stamped = [TimestampedValue(each, at * 10) for at, each in enumerate([*bad, *good])]
        refused = (
            pipeline
            | beam.Create(stamped)
            | beam.WindowInto(FixedWindows(10))
            | UpsertPanesToBigQuery(URL, RUN, "INT64", told, open_served, emit_refused=True)
        )
        assert refused.element_type is RefusedPane
        keep(refused | beam.Map(see_window), tmp_path, "refused")
    assert {key: row["value"] for (key, _), row in table.rows.items()} == {"a": 2, "b": 3}
    assert {row["run"] for row in table.rows.values()} == {RUN}
    assert sorted(told.panes()) == good
    found = sorted(kept(tmp_path, "refused"), key=str)
    assert [(each.pane, at, start) for each, at, start in found] == [
        (each, at * 10, at * 10) for at, each in enumerate(bad)
    ]
    assert metrics.tally()[metrics.REFUSED_PANES] == len(bad)


@pytest.mark.usefixtures("table")
def test_a_refused_pane_ends_the_job_where_it_is_not_kept_elsewhere() -> None:
    """It would be in no table, and in no dead letter."""
    with pytest.raises(Exception, match=r"refuses the pane of 'c'"), direct_pipeline() as pipeline:
        _ = (
            pipeline
            | beam.Create([pane("c", "text")])
            | UpsertPanesToBigQuery(URL, RUN, "INT64", open_client=open_served)
        )


def test_a_bundle_that_fails_tells_of_nothing_written(table: FakeBigQuery, tmp_path: Path) -> None:
    """And fails the pipeline, with the remedy."""
    table.failures = [errors.NotFound("no table")] * 99
    told = Told(tmp_path / "told")
    told_why = r"no table.*create_table_sql"
    with pytest.raises(Exception, match=told_why), direct_pipeline() as pipeline:
        _ = (
            pipeline
            | beam.Create([pane()])
            | UpsertPanesToBigQuery(URL, RUN, written=told, open_client=open_served)
        )
    assert told.panes() == []

"""`UpsertPanes` on SQLite and on PostgreSQL: the same laws, and what a database refuses."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from beam_lateness import Pane, RefusedPane, UpsertPanes, verify_audit
from beam_lateness.transforms import database
from beam_lateness.transforms.database import writing
from beam_lateness.transforms.sinks.window_table import WindowTable
from services.postgres_server import PostgresServer
from tests.cases.engine import direct_pipeline, keep, kept
from tests.transforms.sinks.databases import (
    assert_holds,
    empty_database,  # noqa: F401  (pytest finds the fixture here)
    empty_schema,
    execute,
    is_postgres,
    latest,
    pane,
    some_name,
    stored,
)
from tests.waiting import await_that

RUN = "run-1"
TRIED_AGAIN = "is tried again"
EXAMPLES = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
AUDIT = pytest.mark.parametrize("audit", [False, True], ids=["plain", "audited"])


def write(url: str, panes: Sequence[Pane], table: str = "windows", **how: Any) -> list[RefusedPane]:
    """Writes panes of a run; `how` goes to the table. Gives those that are refused."""
    opened = WindowTable(url, table, **how)
    try:
        return opened.write(panes, RUN)
    finally:
        opened.close()


def values(url: str) -> list[Any]:
    """The values that stand, by key."""
    rows = stored(url)
    return [rows[cell]["value"] for cell in sorted(rows)]


BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["run-1", "run-2"]),
        st.lists(
            st.builds(pane, st.sampled_from("ab"), st.just(0), st.just(7), *[st.integers(0, 4)] * 2)
        ),
    ),
    max_size=6,
)


@EXAMPLES
@given(batches=BATCHES)
def test_the_trail_has_an_entry_for_each_pane_that_is_newer_than_the_one_before(
    url: str, batches: list[tuple[str, list[Pane]]]
) -> None:
    """A batch counts in the order of its panes; what is older, or comes again, has none."""
    name = some_name()
    table = WindowTable(url, name, audit=True)
    for run, panes in batches:
        table.write(panes, run)
    table.close()
    newest: dict[Any, tuple[str, int, int]] = {}
    accepted = 0
    for run, panes in batches:
        for count, index, key in sorted((each.count, each.index, each.key) for each in panes):
            if (run, count, index) > newest.get(key, ("", 0, 0)):
                newest[key] = run, count, index
                accepted += 1
    result = verify_audit(url, name)
    assert (result.entries, result.problems) == (accepted, ())
    assert_holds(url, name, latest((run, each) for run, panes in batches for each in panes))


@EXAMPLES
@given(
    cells=st.lists(
        st.tuples(*[st.integers(0, 3)] * 3, st.integers(1, 3), st.integers(0, 3)),
        min_size=1,
        max_size=9,
    ),
    together=st.booleans(),
)
def test_a_reconciled_row_is_replaced_only_by_a_pane_newer_than_its_last_one(
    url: str, cells: list[tuple[int, int, int, int, int]], together: bool
) -> None:
    """What reconciliation added does not count: it is added again to the pane that comes then."""
    name = some_name()
    table = WindowTable(url, name)
    old = [pane(f"k{n}", 0, 1, count, index) for n, (count, index, *_) in enumerate(cells)]
    new = [pane(f"k{n}", 0, 2, count, index) for n, (*_, count, index) in enumerate(cells)]
    table.write(old, RUN)
    added = {f"k{n}": cell[2] for n, cell in enumerate(cells)}
    execute(
        url,
        *(
            f"UPDATE {name} SET count = count + {by}, reconciled = {by}, value = 5 "
            f"WHERE key = '{key}'"
            for key, by in added.items()
        ),
    )
    for batch in [new] if together else [[each] for each in new]:
        table.write(batch, RUN)
    table.close()
    rows = stored(url, name)
    for before, after in zip(old, new, strict=True):
        row = rows[before.key, 0]
        found = (row["value"], row["count"], row["reconciled"], row["pane_index"])
        if (after.count, after.index) > (before.count, before.index):
            assert found == (2, after.count, 0, after.index)
        else:
            by = added[before.key]
            assert found == (5, before.count + by, by, before.index)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -7,
        2**63,
        -(2**63) - 1,
        10**40,
        0.1,
        5.0,
        1e16,
        1e300,
        -1e300,
        5e-324,
        math.inf,
        -math.inf,
    ],
)
@pytest.mark.parametrize("kind", ["number", "json"])
def test_a_number_comes_back_as_it_was(url: str, kind: str, value: float) -> None:
    """With its type and all its digits, by itself and among other aggregates."""
    write(url, [pane(value=value)], values=kind)
    (found,) = values(url)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("value", [-0.0, math.nan])
def test_zero_with_a_sign_and_no_number_come_back(url: str, value: float) -> None:
    """PostgreSQL has one zero; it is a float all the same."""
    write(url, [pane(value=value)])
    (found,) = values(url)
    assert isinstance(found, float)
    assert found == value or math.isnan(found) is math.isnan(value)
    if not is_postgres(url):
        assert math.copysign(1, found) == math.copysign(1, value) or math.isnan(value)


NUMBERS = st.integers() | st.floats(allow_nan=False)


@EXAMPLES
@given(
    found=st.lists(st.dictionaries(st.sampled_from(["sum", "min", "mean"]), NUMBERS), max_size=9)
)
def test_several_aggregates_come_back_as_they_were(url: str, found: list[dict[str, float]]) -> None:
    """Each with its type; integers of any size whole."""
    name = some_name()
    write(url, [pane(f"k{n}", 0, each) for n, each in enumerate(found)], name, values="json")
    rows = stored(url, name)
    for number, each in enumerate(found):
        back = rows[f"k{number}", 0]["value"]
        assert back == each
        assert {key: type(value) for key, value in back.items()} == {
            key: type(value) for key, value in each.items()
        }


@AUDIT
def test_an_aggregate_that_is_no_number_comes_back_and_breaks_no_trail(
    url: str, audit: bool
) -> None:
    """JSON has no NaN."""
    write(url, [pane(value={"mean": math.nan, "count": 0})], values="json", audit=audit)
    (found,) = values(url)
    assert math.isnan(found["mean"])
    assert found["count"] == 0
    if audit:
        assert verify_audit(url).problems == ()


@pytest.mark.parametrize("kind", ["number", "json"])
def test_a_number_of_numpy_is_a_number(url: str, kind: str) -> None:
    """SQLite would take its bytes."""
    write(url, [pane("a", 0, np.int64(3)), pane("b", 0, np.float64(0.1))], values=kind)
    assert values(url) == [3, 0.1]


GOOD, NO_TEXT, NUL, NO_NUMBER = "good", "surrogate", "nul", "text value"
KINDS = st.sampled_from([GOOD, GOOD, NO_TEXT, NUL, NO_NUMBER])


def pane_of(kind: str, number: int) -> Pane:
    """Makes a pane that is good or bad; two numbers share a key."""
    key = f"k{number // 2}" + {NO_TEXT: "\ud800", NUL: "\0"}.get(kind, "")
    return pane(key, 0, "no number" if kind == NO_NUMBER else number, number + 1)


@AUDIT
@EXAMPLES
@given(kinds=st.lists(KINDS, min_size=1, max_size=12))
def test_a_refused_pane_is_given_out_and_all_others_are_written(
    url: str, audit: bool, kinds: list[str]
) -> None:
    """Wherever it stands in the batch; SQLite's columns take any text but a broken one.

    A bad pane that a good one of its window has replaced in the same batch need not be told.
    """
    bad = {NO_TEXT, NUL, NO_NUMBER} if is_postgres(url) else {NO_TEXT}
    panes = [pane_of(kind, number) for number, kind in enumerate(kinds)]
    good = [each for each, kind in zip(panes, kinds, strict=True) if kind not in bad]
    name = some_name()
    refused = [each.pane for each in write(url, panes, name, audit=audit)]
    expected = latest((RUN, each) for each in good)
    assert_holds(url, name, expected)
    assert not set(refused) & set(good)
    told = {each for each in panes if each not in good} - set(refused)
    assert all(expected[each.key, 0][1].count > each.count for each in told)
    if audit:
        assert verify_audit(url, name).problems == ()


def test_a_pipeline_gives_refused_panes_out_and_writes_the_others(url: str, tmp_path: Path) -> None:
    """With an audit trail too; the counts of both add up."""
    panes = [
        pane("bad\ud800"),
        *(pane(key, 0, index, index + 1, index) for index in (1, 0, 2) for key in "ab"),
    ]
    with direct_pipeline() as pipeline:
        upsert = UpsertPanes(url, RUN, audit=True, emit_refused=True)
        keep(pipeline | beam.Create(panes) | upsert, tmp_path, "refused")
    assert [each.pane for each in kept(tmp_path, "refused")] == panes[:1]
    assert values(url) == [2, 2]
    assert verify_audit(url).problems == ()


def test_a_refused_pane_ends_a_job_that_keeps_none(url: str) -> None:
    """It is not lost in silence."""
    with pytest.raises(RuntimeError, match="refuses the pane of 'bad"), direct_pipeline() as job:
        _ = job | beam.Create([pane("bad\ud800")]) | UpsertPanes(url, RUN)


def test_a_lock_is_waited_out(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another program, that holds the table for longer than the database waits."""
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0.01)
    limited = f"{url}%20-clock_timeout%3D10" if is_postgres(url) else url
    table, other = WindowTable(limited), WindowTable(url)
    writer = threading.Thread(target=table.write, args=([pane(value=7)], RUN))
    with writing(other.engine) as connection:
        if is_postgres(url):
            connection.execute(text("LOCK TABLE windows"))
        writer.start()
        await_that(lambda: TRIED_AGAIN in caplog.text, what="retry")
    writer.join()
    table.close()
    other.close()
    assert values(url) == [7]


@pytest.mark.live
@AUDIT
def test_a_restart_of_the_server_in_the_middle_of_a_transaction_is_waited_out(
    postgres_server: PostgresServer, audit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer hangs at a lock when the server goes; it writes all of it when it is back."""
    url = empty_schema(postgres_server)
    table = WindowTable(url, audit=audit)
    panes = [pane(f"k{number:02}", 0, number) for number in range(30)]
    table.write(panes[:10], RUN)
    corrected = [pane(f"k{number:02}", 0, -number, 2, 1) for number in range(30)]
    refused: list[RefusedPane] = []

    def act() -> None:
        refused.extend(table.write(corrected, RUN))

    writer = threading.Thread(target=act)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE windows SET value = 0 WHERE key = 'k05'")
        # A server that goes releases other locks first, and the writer might come to its end.
        connection.execute("PREPARE TRANSACTION 'held'")
    writer.start()
    try:
        await_that(lambda: _waits(url), what="writer at a lock")
        postgres_server.interrupt()
        try:
            await_that(lambda: TRIED_AGAIN in caplog.text, what="retry")
        finally:
            postgres_server.start()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ROLLBACK PREPARED 'held'")
        writer.join()
    assert refused == []
    table.write(panes, RUN)  # by a connection that the restart has broken, or a new one
    table.close()
    assert_holds(url, "windows", latest((RUN, each) for each in corrected))
    if audit:
        assert verify_audit(url).problems == ()


def _waits(url: str) -> bool:
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        (count,) = connection.execute(query).fetchone() or (0,)
    return bool(count)


@AUDIT
def test_a_table_that_is_gone_ends_the_job_at_once(
    url: str, audit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no refusal of the panes, and trying again is of no use."""
    table = WindowTable(url, audit=audit)
    execute(url, "DROP TABLE windows")
    with pytest.raises(DBAPIError, match="windows"):
        table.write([pane(), pane("b")], RUN)
    table.close()
    assert TRIED_AGAIN not in caplog.text


@pytest.mark.live
def test_a_missing_permission_ends_the_job_at_once(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Likewise."""
    url = postgres_server.create_database(some_name())
    WindowTable(url).close()
    role = some_name()
    execute(
        url, f"CREATE ROLE {role} LOGIN PASSWORD 's3cr3t'", f"GRANT SELECT ON windows TO {role}"
    )
    table = WindowTable(url.replace(f"app:{postgres_server.password}", f"{role}:s3cr3t"))
    with pytest.raises(ProgrammingError, match="permission denied"):
        table.write([pane(), pane("b")], RUN)
    table.close()
    assert TRIED_AGAIN not in caplog.text


def test_a_trail_that_is_broken_ends_the_job_and_refuses_no_pane(url: str) -> None:
    """Its head was set back while the job ran: the next number is taken."""
    table = WindowTable(url, audit=True)
    table.write([pane()], RUN)
    execute(url, "UPDATE windows_audit_head SET seq = 0")
    with pytest.raises(IntegrityError):
        table.write([pane("b")], RUN)
    table.close()


def test_a_table_with_a_trail_is_not_written_without_it(url: str) -> None:
    """An unlogged change would look like a forged one."""
    UpsertPanes(url, RUN, audit=True)
    with pytest.raises(ValueError, match="has an audit trail"):
        UpsertPanes(url, RUN)

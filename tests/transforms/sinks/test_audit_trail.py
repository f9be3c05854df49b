"""The audit trail: its entries are the accepted changes of a table, one after the other."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import Pane
from beam_lateness.transforms.database import open_database
from beam_lateness.transforms.results import LATE, ON_TIME
from beam_lateness.transforms.sinks.audit_check import audit_head, verify_audit
from beam_lateness.transforms.sinks.audit_trail import FIRST_HASH, AuditTrail, Change, Entry
from beam_lateness.transforms.sinks.window_table import Cell, WindowTable
from beam_lateness.transforms.sinks.window_values import JSON

if TYPE_CHECKING:
    from services.postgres_server import PostgresServer

MINUTE: Final = 60_000
STORES: Final = ["sqlite", pytest.param("postgresql", marks=pytest.mark.live)]
_NUMBERS: Final = itertools.count()


class Writing(NamedTuple):
    """Panes that one run writes in one transaction."""

    run: str
    panes: list[Pane]


class Removal(NamedTuple):
    """The rows that one run wrote of windows up to an end."""

    run: str
    high_ms: int


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a database; each test, and each example, takes a table of its own."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('audit') / 'windows.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        yield server.url()


def fresh() -> str:
    """Gives the name of a table that nobody has."""
    return f"audited_{next(_NUMBERS)}"


def pane(key: str, start: int, value: Any, index: int, count: int | None = None) -> Pane:
    """Makes a traced pane of a minute."""
    end, records = start + MINUTE, index + 1 if count is None else count
    if index == 0:
        return Pane(key, start, end, value, records, index, ON_TIME, end)
    return Pane(key, start, end, value, records, index, LATE, end + index, (f"{key}{index}", "é"))


def panes(values: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Pane]:
    """Draws panes of two keys and two windows, in no order, several of them alike."""
    return st.builds(
        pane,
        st.sampled_from("ab"),
        st.sampled_from([0, MINUTE]),
        st.integers(-(2**70), 2**70) if values is None else values,
        st.integers(0, 3),
        st.integers(1, 4),
    )


runs: Final = st.sampled_from(["run-1", "run-2", "run-3"])
histories: Final = st.lists(
    st.one_of(
        st.builds(Writing, runs, st.lists(panes(), max_size=5)),
        st.builds(Removal, runs, st.sampled_from([MINUTE, 2 * MINUTE])),
    ),
    max_size=8,
)


def write(
    url: str, name: str, history: Sequence[Writing | Removal], values: str = "number"
) -> None:
    """Writes a history into an audited table."""
    table = WindowTable(url, name, values, audit=True)
    try:
        for step in history:
            if isinstance(step, Writing):
                assert table.write(step.panes, step.run) == []
            else:
                table.remove([step.run], -1, step.high_ms)
    finally:
        table.close()


def entries(url: str, name: str, **cell: Any) -> list[Entry]:
    """Reads a trail."""
    engine = open_database(url, "output")
    try:
        with engine.connect() as connection:
            return list(AuditTrail.of(name).read(connection, **cell))
    finally:
        engine.dispose()


def model(history: Sequence[Writing | Removal]) -> Iterator[Change]:
    """Says what changes, one pane at a time: a newer run counts, or more records, or an index."""
    table: dict[Cell, tuple[str, Pane]] = {}
    for step in history:
        if isinstance(step, Removal):
            for cell, (run, old) in sorted(table.items()):
                if run == step.run and old.window_end <= step.high_ms:
                    del table[cell]
                    yield change(old, None, old, "retraction", run, None)
            continue
        for new in sorted(step.panes, key=lambda p: (p.key, p.window_start, p.count, p.index)):
            cell = (new.key, new.window_start)
            run, found = table.get(cell, ("", None))
            place = (step.run, new.count, new.index)
            if found is None or place > (run, found.count, found.index):
                table[cell] = (step.run, new)
                cause = "on_time" if new.timing == ON_TIME else "late"
                yield change(found, new, new, cause, step.run, new.watermark)


def change(
    old: Pane | None, new: Pane | None, of: Pane, cause: str, run: str, watermark: int | None
) -> Change:
    """Makes a change of two panes."""
    before, after = (0 if each is None else each.value for each in (old, new))
    ids = None if new is None or new.record_ids is None else list(new.record_ids)
    return Change(
        of.key,
        of.window_start,
        of.window_end,
        None if old is None else str(old.value),
        None if new is None else str(new.value),
        str(after - before),
        0 if old is None else old.count,
        0 if new is None else new.count,
        of.index,
        cause,
        None if ids is None else '{"record_ids":["%s","%s"]}' % tuple(ids),  # noqa: UP031
        run,
        watermark,
    )


def in_cells(changes: Sequence[Change]) -> list[Change]:
    """Puts changes in the order of their cells: a database removes rows in an order of its own."""
    return sorted(changes, key=lambda each: each[:2])


@settings(max_examples=20, deadline=None)
@given(history=histories)
def test_entries_are_the_accepted_changes_of_a_sequential_model(
    store: str, history: list[Writing | Removal]
) -> None:
    """Old and new value, delta, counts, cause, watermark and ids, in their order in each cell."""
    name = fresh()
    write(store, name, history)
    found = [entry.change for entry in entries(store, name)]
    assert in_cells(found) == in_cells(list(model(history)))
    assert verify_audit(store, name).problems == ()


@settings(max_examples=15, deadline=None)
@given(history=histories)
def test_the_deltas_of_a_cell_add_up_to_its_value(
    store: str, history: list[Writing | Removal]
) -> None:
    """Integers exactly, beyond 64 bits too; each old value is the new one of the entry before."""
    name = fresh()
    write(store, name, history)
    sums: dict[Cell, int] = {}
    last: dict[Cell, Change] = {}
    for entry in entries(store, name):
        each = entry.change
        cell = (each.key, each.window_start_ms)
        sums[cell] = sums.get(cell, 0) + int(each.delta or "no number")
        assert sums[cell] == int(each.new_value or 0)
        if cell in last:
            assert (each.old_value, each.old_count) == (last[cell].new_value, last[cell].new_count)
        last[cell] = each


@settings(max_examples=10, deadline=None)
@given(history=histories)
def test_each_entry_holds_the_hash_of_the_one_before(
    store: str, history: list[Writing | Removal]
) -> None:
    """SHA-256 of its number, time, change and previous hash as a JSON array, in plain words."""
    name = fresh()
    write(store, name, history)
    previous = FIRST_HASH
    for number, entry in enumerate(entries(store, name), start=1):
        fields = [entry.seq, entry.at_ms, *entry.change, entry.previous]
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        assert entry.hash == hashlib.sha256(text.encode()).hexdigest()
        assert (entry.seq, entry.previous) == (number, previous)
        previous = entry.hash
    assert audit_head(store, name) == f"{len(entries(store, name))}:{previous}"


@settings(max_examples=10, deadline=None)
@given(history=histories, key=st.sampled_from("abc"), start=st.sampled_from([0, MINUTE]))
def test_a_trail_can_be_read_by_key_and_by_window(
    store: str, history: list[Writing | Removal], key: str, start: int
) -> None:
    """What is read is what a filter of all would leave."""
    name = fresh()
    write(store, name, history)
    found = entries(store, name)
    of_key = [each for each in found if each.change.key == key]
    assert entries(store, name, key=key) == of_key
    both = [each for each in of_key if each.change.window_start_ms == start]
    assert entries(store, name, key=key, window_start_ms=start) == both


def test_what_comes_twice_makes_no_entry(store: str) -> None:
    """A bundle that is tried again, in the same transaction or another."""
    name, one = fresh(), pane("a", 0, 1, 0)
    write(store, name, [Writing("run-1", [one, one]), Writing("run-1", [one])])
    assert len(entries(store, name)) == 1


def test_equal_panes_of_other_values_leave_table_and_trail_at_one(store: str) -> None:
    """The first of them counts in both, together or one after the other."""
    twins = [pane("a", 0, 1, 1), pane("a", 0, 2, 1)]
    for batches in ([twins], [[twins[0]], [twins[1]]]):
        name = fresh()
        write(store, name, [Writing("run-1", batch) for batch in batches])
        assert [each.change.new_value for each in entries(store, name)] == ["1"]
        assert verify_audit(store, name).problems == ()


VALUES: Final[Sequence[tuple[Any, Any, str | None]]] = [
    (0.1, 0.3, "0.2"),
    (1, 0.75, "-0.25"),
    (2**80, 2**80 + 1, "1"),
    (float("inf"), float("inf"), None),
]


@pytest.mark.parametrize(("old", "new", "delta"), VALUES, ids=str)
def test_a_delta_is_told_by_its_decimal_digits(
    store: str, old: Any, new: Any, delta: str | None
) -> None:
    """As people read them; None where it is no number."""
    name = fresh()
    write(store, name, [Writing("run-1", [pane("a", 0, old, 0), pane("a", 0, new, 1)])])
    assert [entry.change.delta for entry in entries(store, name)][1] == delta
    assert verify_audit(store, name).problems == ()


def test_several_aggregates_change_by_name(store: str) -> None:
    """Each with its own delta, None among them where there was no number."""
    name = fresh()
    old, new = {"sum": 3, "mean": 1.5}, {"sum": 10, "mean": float("inf")}
    write(store, name, [Writing("run-1", [pane("a", 0, old, 0), pane("a", 0, new, 1)])], JSON)
    first, second = (entry.change.delta for entry in entries(store, name))
    assert json.loads(first or "") == old
    assert json.loads(second or "") == {"sum": 7, "mean": float("inf")}
    assert verify_audit(store, name).problems == ()


def test_a_pane_that_the_table_refuses_leaves_no_entry(tmp_path: Any) -> None:
    """The entry is made in the transaction of the change; the panes beside it have theirs."""
    url, name = f"sqlite:///{tmp_path / 'windows.db'}", fresh()
    table = WindowTable(url, name, audit=True)
    bad = pane("b", 0, {1, 2}, 0)
    refused = table.write([pane("a", 0, 1, 0), bad, pane("c", 0, 3, 0)], "run-1")
    table.close()
    assert [each.pane for each in refused] == [bad]
    assert [entry.change.key for entry in entries(url, name)] == ["a", "c"]
    assert verify_audit(url, name).problems == ()


def test_writers_at_once_make_one_chain(store: str) -> None:
    """Each waits for the other: no entry is lost, and none is made twice."""
    name = fresh()
    write(store, name, [])

    def fill(key: str) -> None:
        write(store, name, [Writing("run-1", [pane(key, 0, i, i)]) for i in range(8)])

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(fill, "ab")) == [None, None]
    for key in "ab":
        assert [each.change.delta for each in entries(store, name, key=key)] == ["0", *["1"] * 7]
    assert verify_audit(store, name).problems == ()


def test_a_table_with_a_trail_refuses_to_be_written_without_one(store: str) -> None:
    """With the reason and both ways out; the trail stays whole."""
    name = fresh()
    write(store, name, [Writing("run-1", [pane("a", 0, 1, 0)])])
    with pytest.raises(ValueError, match=r"has an audit trail.*--audit=true.*another table"):
        WindowTable(store, name)
    assert verify_audit(store, name).problems == ()


def test_a_trail_that_goes_beyond_its_head_refuses_to_be_gone_on_with(store: str) -> None:
    """Else each pane would be refused as if it were at fault."""
    name = fresh()
    write(store, name, [Writing("run-1", [pane("a", 0, 1, 0)])])
    engine = open_database(store, "output")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"delete from {name}_audit_head")
    engine.dispose()
    with pytest.raises(ValueError, match=r"goes beyond its head, entry 0.*audit verify"):
        WindowTable(store, name, audit=True)
    assert verify_audit(store, name).problems == (
        f"the head of the audit trail is gone: table '{name}_audit_head' is empty",
    )

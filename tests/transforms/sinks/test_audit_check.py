"""`verify_audit`: any entry that was changed, removed or inserted is found, and any row."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from beam_lateness.transforms.database import open_database
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import Ledger
from beam_lateness.transforms.reconcile.letters import Letter
from beam_lateness.transforms.sinks.audit_check import audit_head, verify_audit
from beam_lateness.transforms.sinks.audit_trail import AuditTrail, Change, Entry
from beam_lateness.transforms.sinks.window_table import windows_table
from beam_lateness.transforms.sinks.window_values import JSON, from_sqlite
from tests.transforms.sinks.test_audit_trail import (
    MINUTE,
    STORES,
    Removal,
    Writing,
    entries,
    fresh,
    histories,
    pane,
    write,
)

if TYPE_CHECKING:
    from services.postgres_server import PostgresServer

ENTRIES: Final = [column.name for column in AuditTrail.of("windows").entries.columns]
ROWS: Final = [column.name for column in windows_table("windows").columns]
TABLES: Final = ("windows", "windows_audit", "windows_audit_head")
LOOSEN: Final = (
    "create table loose as select * from {0}; drop table {0}; alter table loose rename to {0};"
)

Tables = dict[str, list[tuple[Any, ...]]]


class Edit(NamedTuple):
    """What somebody does to the database, and one of what must be told of it.

    Args:
        sql: A statement.
        values: Its parameters.
        told: Parts of problems, one of which must be there.
    """

    sql: str
    values: tuple[Any, ...]
    told: tuple[str, ...]


class Trail:
    """A database with an audited table `windows`; if it is loose, its columns take anything."""

    def __init__(
        self, folder: str, history: Sequence[Writing | Removal], *, loose: bool = True
    ) -> None:
        self.path = Path(folder) / "windows.db"
        self.url = f"sqlite:///{self.path}"
        write(self.url, "windows", history)
        if loose:
            connection = sqlite3.connect(self.path)
            connection.executescript("".join(["begin;", *map(LOOSEN.format, TABLES), "commit;"]))
            connection.close()

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement."""
        connection = sqlite3.connect(self.path)
        connection.text_factory = _text
        try:
            with connection:
                return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def contents(self) -> Tables:
        """Gives all that is there, a value of a window as a number whatever its type."""
        found = {table: self.run(f"select * from {table} order by rowid") for table in TABLES}
        value = ROWS.index("value")
        found["windows"] = [
            (*row[:value], from_sqlite(row[value]), *row[value + 1 :]) for row in found["windows"]
        ]
        return found

    def problems(self, head: str | None = None) -> tuple[str, ...]:
        """Verifies it."""
        return verify_audit(self.url, head=head).problems


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


changed_histories: Final = histories.filter(
    lambda steps: any(isinstance(step, Writing) and step.panes for step in steps)
)
anything: Final = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 6),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    st.sampled_from(["on_time", "late", "retraction", "reconciliation", "run-1", "[" * 9000]),
    st.binary(max_size=4),
)


@st.composite
def edits(draw: st.DrawFn, tables: Tables) -> Edit:
    """Draws an edit of a trail, its head, or the table of windows."""
    rows = len(tables["windows"])
    kinds = ["change", "delete", "copy", "continue", "insert", "head", "no head", "heads"]
    kinds += ["change row", "delete row"] if rows else []
    kind, known = draw(st.sampled_from(kinds)), tables["windows_audit"]
    entry, row = draw(st.integers(1, len(known))), draw(st.integers(1, max(rows, 1)))
    if kind == "change":
        column, value = draw(st.sampled_from(ENTRIES)), draw(anything)
        told = "follows entry" if column == "seq" else f"entry {entry} was changed"
        return Edit(
            f"update windows_audit set {column} = {_of(value)} where rowid = ?",
            (value, entry),
            (told, "are gone"),
        )
    if kind == "delete":
        some = draw(st.sets(st.integers(1, len(known)), min_size=1))
        return Edit(
            f"delete from windows_audit where rowid in ({str(sorted(some))[1:-1]})",
            (),
            ("are gone", "ends with entry"),
        )
    if kind == "copy":
        seq = draw(st.integers(-2, len(known) + 3))
        told = f"entry {seq} {'follows entry' if seq == entry else 'was changed'}"
        return insertion("windows_audit", (seq, *known[entry - 1][1:]), told)
    if kind == "continue":
        last = entry_of(known[-1])
        forged = Entry.of(last.seq + 1, last.at_ms, entry_of(known[entry - 1]).change, last.hash)
        values = (forged.seq, forged.at_ms, *forged.change, forged.previous, forged.hash)
        return insertion("windows_audit", values, f"ends with entry {forged.seq}")
    if kind == "insert":
        new = ("new", 0, MINUTE, 1, 1, 0, 0, "ON_TIME", "run-1")
        return insertion("windows", new, "key 'new', window 0: the table has a row")
    if kind == "head":
        column, value = draw(st.sampled_from(["id", "seq", "hash"])), draw(anything)
        return Edit(f"update windows_audit_head set {column} = {_of(value)}", (value,), ("head",))
    if kind == "no head":
        return Edit("delete from windows_audit_head", (), ("the head of the audit trail is gone",))
    if kind == "heads":
        return insertion("windows_audit_head", (draw(st.integers(1, 3)), 1, "0" * 64), "heads")
    key, start = tables["windows"][row - 1][:2]
    told = f"key {key!r}, window {start}: the row "
    if kind == "delete row":
        return Edit("delete from windows where rowid = ?", (row,), (told,))
    column, value = draw(st.sampled_from(ROWS)), draw(anything)
    return Edit(
        f"update windows set {column} = {_of(value)} where rowid = ?", (value, row), (told,)
    )


def _of(value: Any) -> str:
    """A parameter; bytes become a text, which need be no UTF-8, or stay what they are."""
    return "cast(? as text)" if isinstance(value, bytes) and len(value) % 2 else "?"


def insertion(table: str, values: Sequence[Any], told: str) -> Edit:
    """Makes an edit that inserts a row."""
    marks = ", ".join("?" * len(values))
    return Edit(f"insert into {table} values ({marks})", tuple(values), (told,))


def entry_of(row: Sequence[Any]) -> Entry:
    """Makes an entry of a row of the trail."""
    return Entry(row[0], row[1], Change(*row[2:-2]), row[-2], row[-1])


@settings(max_examples=50, deadline=None)
@given(history=changed_histories, data=st.data())
def test_any_edit_of_trail_head_or_table_is_found_and_named(
    history: list[Writing | Removal], data: st.DataObject
) -> None:
    """Whatever stands there afterwards, by raw SQL, in tables without constraints."""
    with tempfile.TemporaryDirectory() as folder:
        trail = Trail(folder, history)
        assert trail.problems() == ()
        before = trail.contents()
        edit = data.draw(edits(before))
        trail.run(edit.sql, edit.values)
        assume(trail.contents() != before)
        problems = trail.problems()
        assert [p for p in problems for told in edit.told if told in p], problems
        for problem in problems:
            problem.encode()  # can be printed


@settings(max_examples=10, deadline=None)
@given(
    history=changed_histories,
    extra=st.integers(0, 3),
    shorter=st.booleans(),
)
def test_a_noted_head_proves_that_a_trail_was_made_anew(
    history: list[Writing | Removal], extra: int, shorter: bool
) -> None:
    """As a whole and well formed, by somebody who may write everything; nothing else does."""
    first = next(step for step in history if isinstance(step, Writing) and step.panes)
    lie = Writing(first.run, [each._replace(value=each.value + 1) for each in first.panes])
    anew: list[Writing | Removal] = [lie if step is first else step for step in history]
    anew = anew[: history.index(first) + 1] if shorter else anew
    anew += [Writing(f"run-{9 + n}", [pane("a", 0, n, 0)]) for n in range(extra)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        noted = audit_head(Trail(one, history).url)
        forged = Trail(other, anew)
        assert forged.problems() == ()
        (problem,) = forged.problems(noted)
        assert f"entry {noted.partition(':')[0]}" in problem


@settings(max_examples=8, deadline=None)
@given(history=histories, more=histories)
def test_a_noted_head_stays_good_as_the_trail_grows(
    history: list[Writing | Removal], more: list[Writing | Removal]
) -> None:
    """That of the empty trail too."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'windows.db'}"
        write(url, "windows", history)
        noted = verify_audit(url).head
        assert noted == audit_head(url)
        write(url, "windows", more)
        assert verify_audit(url, head=noted).problems == ()


@pytest.mark.parametrize("number", ["0", "1", "2"])
def test_a_head_that_never_was_is_a_problem(tmp_path: Path, number: str) -> None:
    """Before the first entry, at one, and behind the last."""
    trail = Trail(str(tmp_path), [Writing("run-1", [pane("a", 0, 1, 0)])])
    assert len(trail.problems(f"{number}:{'f' * 64}")) == 1


@pytest.mark.parametrize(
    "head", ["", "1", "1:", "x:" + "0" * 64, "1:" + "0" * 63, "-1:" + "0" * 64]
)
def test_a_head_that_is_none_is_refused(tmp_path: Path, head: str) -> None:
    """By its flag's name."""
    trail = Trail(str(tmp_path), [])
    with pytest.raises(ValueError, match=r"head \(--head\) must be SEQ:HASH"):
        trail.problems(head)


def test_a_table_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    """Its trail still tells what stood in it."""
    trail = Trail(str(tmp_path), [Writing("run-1", [pane("a", 0, 1, 0)])])
    trail.run("drop table windows")
    assert trail.problems() == ("the table 'windows' is gone",)


def test_at_most_100_problems_are_shown(tmp_path: Path) -> None:
    """Of a trail that is wrong everywhere."""
    panes = [pane("a", n * MINUTE, n, 0) for n in range(120)]
    trail = Trail(str(tmp_path), [Writing("run-1", panes)])
    trail.run("update windows_audit set delta = '7'")
    assert len(trail.problems()) == 100
    assert verify_audit(trail.url).entries == 120


def test_a_trail_is_whole_while_it_is_written(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries, head and rows are those of one moment: a pane comes between their reading."""
    url, name = store, fresh()
    write(url, name, [Writing("run-1", [pane("a", 0, 1, 0)])])
    read = AuditTrail.read

    def read_and_write(trail: AuditTrail, *args: Any, **cell: Any) -> Iterator[Entry]:
        yield from read(trail, *args, **cell)
        write(url, name, [Writing("run-1", [pane("a", 0, 2, 1)])])

    with monkeypatch.context() as patch:
        patch.setattr(AuditTrail, "read", read_and_write)
        found = verify_audit(url, name)
    assert (found.entries, found.problems) == (1, ())
    assert (len(entries(url, name)), verify_audit(url, name).problems) == (2, ())


def test_what_reconciliation_added_is_held_to_the_trail(tmp_path: Path) -> None:
    """To a pane, to a row of its own, and to the pane after it; each edit of such rows is found."""
    trail = Trail(str(tmp_path), [Writing("run-1", [pane("a", 0, 1, 0)])], loose=False)
    letters = [Letter(key, 0, MINUTE, key, 7, 2 * MINUTE, "run-1", "dead") for key in "ab"]
    ledger = Ledger(trail.url, "night-1", Correction(["sum"]))
    ledger.apply({(each.key, 0): [each] for each in letters})
    ledger.close()
    assert trail.problems() == ()
    assert entries(trail.url, "windows")[-1].change.cause == "reconciliation"
    kept = trail.run("select * from windows order by key")
    for row, column in itertools.product(kept, ROWS[2:]):
        if (row[0], column) == ("b", "run"):
            continue  # that of the first dead letter, which no entry has
        (old,) = trail.run(f"select {column} from windows where key = ?", row[:1])
        trail.run(f"update windows set {column} = 99 where key = ?", row[:1])
        assert f"key '{row[0]}', window 0" in trail.problems()[0]
        trail.run(f"update windows set {column} = ? where key = ?", (old[0], row[0]))
    write(trail.url, "windows", [Writing("run-1", [pane("a", 0, 5, 1)])])
    assert trail.problems() == ()


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('audit') / 'windows.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.url()


EDITS: Final = (
    "update {0}_audit set {1} = '7' where seq = 2",
    "update {0}_audit set watermark_ms = null where seq = 2",
    "delete from {0}_audit where seq = 1",
    "delete from {0}_audit where seq = 3",
    "delete from {0}_audit",
    "update {0}_audit set seq = 7 where seq = 2",
    "update {0}_audit_head set seq = 2",
    "update {0}_audit_head set hash = 'x'",
    "delete from {0}_audit_head",
    "update {0} set value = 7",
    "update {0} set count = 7",
    "update {0} set run = 'run-7'",
    "delete from {0} where key = 'b'",
    "update {0} set key = 'c' where key = 'b'",
    "drop table {0}",
)
COLUMNS: Final = [name for name in ENTRIES if name != "seq"]
ALL_EDITS: Final = [*(EDITS[0].replace("{1}", name) for name in COLUMNS), *EDITS[1:]]


@pytest.mark.parametrize("edit", ALL_EDITS)
def test_an_edit_is_found_in_either_kind_of_database(store: str, edit: str) -> None:
    """Each column of an entry, entries, the head, and rows."""
    name = fresh()
    steps = [pane("a", 0, 1, 0), pane("a", 0, 3, 1), pane("b", 0, 5, 0)]
    write(store, name, [Writing("run-1", [each]) for each in steps])
    assert verify_audit(store, name).problems == ()
    engine = open_database(store, "output")
    with engine.begin() as connection:
        connection.execute(text(edit.format(name)))
    engine.dispose()
    assert verify_audit(store, name).problems != ()


NUMBERS: Final = [1e22, 0.1, 5.0, -1e-300, 2**80, float("inf"), float("nan"), 0]


@pytest.mark.parametrize("value", NUMBERS, ids=str)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_number_that_the_database_writes_in_another_way_is_the_same(
    store: str, value: Any, several: bool
) -> None:
    """One aggregate or several by name."""
    name = fresh()
    written = {"sum": value, "mean": 0.5} if several else value
    panes = [pane("a", 0, written, 0), pane("a", 0, written, 1)]
    kind = JSON if several else "number"
    write(store, name, [Writing("run-1", [each]) for each in panes], kind)
    assert verify_audit(store, name).problems == ()


def test_a_database_without_a_trail_is_refused(store: str) -> None:
    """With its URL, but no password, and the table's name."""
    name = fresh()
    with pytest.raises(ValueError, match=f"has no audit trail of '{name}'") as caught:
        verify_audit(store, name)
    assert "app:" not in str(caught.value)


def test_a_database_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A file that is none, by the flag's name."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, but a text of some length " * 99)
    with pytest.raises(ValueError, match=r"output \(--output\).*file is not a database"):
        verify_audit(f"sqlite:///{path}")

"""Applies too late records to the table of windows, each of them once.

A ledger has a row for each record that stands in the table, written in the transaction that changes
the window. So whatever is repeated, at the same time or after a crash, changes nothing more. If a
later pane, or a new run of the job, has replaced a row since, what was added to it is gone with it:
the row says so (`reconciled` is 0), and its records are applied anew.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DatabaseError

from beam_lateness.transforms.database import (
    POSTGRESQL,
    insert_into,
    open_database,
    open_table,
    retrying,
    without_login,
    writing,
)
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.letters import Left, Letter
from beam_lateness.transforms.sinks.audit_trail import AuditTrail, Change
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, Cell, WindowTable

RECONCILED: Final = "RECONCILED"
RECONCILIATION: Final = "reconciliation"
APPLIED: Final = "already_applied"
ELSEWHERE: Final = "applied_elsewhere"
UNFIT: Final = "unfit"
_NO_PANE: Final = -1
_ROUNDS: Final = 20
_IDS_AT_ONCE: Final = 800  # a statement of SQLite takes 999 values in old releases


class Corrected(NamedTuple):
    """A window that was corrected.

    Args:
        key: The key, as text.
        window_start_ms: Start of the window, ms.
        window_end_ms: End of it, ms.
        before: The value before; None if there was no row.
        after: The value afterwards.
        count_before: How many records it stood on.
        count_after: How many it stands on.
        record_ids: The records that were added.
        files: The dead letter files that they were in.
    """

    key: str
    window_start_ms: int
    window_end_ms: int
    before: Any
    after: Any
    count_before: int
    count_after: int
    record_ids: tuple[str, ...]
    files: tuple[str, ...]


class _Overtaken(Exception):  # noqa: N818  (no error: it is tried again)
    """A writer made a row between the look and the making."""


class Ledger:
    """The ledger of a table of windows.

    Args:
        url: The database of `UpsertPanes`.
        run: Names this reconciliation, in the ledger and in the audit trail.
        correction: How the job aggregates.
        table: The table of windows; if it has an audit trail, that is written too.
        clock: Tells seconds since the epoch.

    Raises:
        ValueError: If the database cannot be used, or has no such table.
    """

    def __init__(
        self,
        url: str,
        run: str,
        correction: Correction,
        table: str = TABLE_NAME,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._correction = correction
        self._clock = clock
        audited = _look(url, table)
        self._windows = WindowTable(url, table, None, audit=audited)
        self._table = Table(
            f"{table}_ledger",
            MetaData(),
            Column("record_id", Text, primary_key=True),
            Column("key", Text, nullable=False),
            Column("window_start_ms", BigInteger, nullable=False),
            Column("run", Text, nullable=False),
            Column("at_ms", BigInteger, nullable=False),
            Column("dead_letters", Text, nullable=False),
            Index(f"{table}_ledger_cells", "key", "window_start_ms"),
        )
        try:
            open_table(url, "output (--output)", self._table).dispose()
        except ValueError:
            self._windows.close()
            raise

    def apply(
        self, letters: Mapping[Cell, Sequence[Letter]], *, dry_run: bool = False
    ) -> tuple[list[Corrected], list[Left]]:
        """Applies records, in one transaction.

        Args:
            letters: By key and start of the window.
            dry_run: Whether to find out only, and change nothing.

        Returns:
            What was corrected, and what was left with its reason.

        Raises:
            SQLAlchemyError: If the database cannot be written.
        """
        for _ in range(_ROUNDS):
            try:
                return retrying(lambda: self._apply(letters, dry_run), "reconciliation")
            except _Overtaken:
                continue
        msg = f"the job writes to {self._windows.table.name} faster than it can be reconciled"
        raise RuntimeError(msg)

    def _apply(
        self, letters: Mapping[Cell, Sequence[Letter]], dry_run: bool
    ) -> tuple[list[Corrected], list[Left]]:
        corrected: list[Corrected] = []
        left: list[Left] = []
        with writing(self._windows.engine) as connection:
            self._lock(connection)
            cells = sorted(letters)
            rows = self._windows.read(connection, cells, lock=True)
            self._forget(connection, [c for c in cells if not rows.get(c, {}).get("reconciled")])
            changes: list[tuple[Mapping[str, Any] | None, dict[str, Any], list[Letter]]] = []
            for cell in cells:
                fresh = self._enter(connection, cell, letters[cell], left)
                row = rows.get(cell)
                try:
                    new = self._corrected(row, fresh)
                except ValueError as error:
                    left += [Left(UNFIT, str(error), e.record_id, e.file, None) for e in fresh]
                    self._withdraw(connection, fresh)
                    continue
                if new is not None:
                    changes.append((row, new, fresh))
            self._change(connection, changes)
            corrected += [_report(row, new, fresh) for row, new, fresh in changes]
            if dry_run:
                connection.rollback()
        return corrected, left

    def _lock(self, connection: Connection) -> None:
        """Keeps other reconciliations out, and if there is a trail its other writers."""
        if connection.dialect.name == POSTGRESQL:
            number = zlib.crc32(self._table.name.encode())
            connection.execute(select(func.pg_advisory_xact_lock(number)))
        if self._windows.trail is not None:
            self._windows.trail.lock(connection)

    def _forget(self, connection: Connection, cells: Sequence[Cell]) -> None:
        """Takes out of the ledger what a later pane has replaced."""
        if cells:
            columns = self._table.c
            gone = delete(self._table).where(
                and_(columns.key == bindparam("k"), columns.window_start_ms == bindparam("s"))
            )
            connection.execute(gone, [{"k": key, "s": start} for key, start in cells])

    def _enter(
        self, connection: Connection, cell: Cell, letters: Sequence[Letter], left: list[Left]
    ) -> list[Letter]:
        """Enters the records of a window in the ledger; gives those that were not there."""
        distinct = {letter.record_id: letter for letter in letters}
        at_ms = int(self._clock() * 1000)
        statement = insert_into(self._windows.engine, self._table).on_conflict_do_nothing()
        rows = [
            {
                "record_id": each.record_id,
                "key": cell[0],
                "window_start_ms": cell[1],
                "run": self._run,
                "at_ms": at_ms,
                "dead_letters": each.file,
            }
            for each in distinct.values()
        ]
        entered = connection.execute(statement.returning(self._table.c.record_id), rows)
        new = {row.record_id for row in entered}
        old = [distinct[name] for name in distinct if name not in new]
        where = self._where(connection, [each.record_id for each in old])
        left += [_known(where[each.record_id], cell, each) for each in old]
        return [distinct[name] for name in distinct if name in new]

    def _where(self, connection: Connection, ids: Sequence[str]) -> dict[str, Cell]:
        """Says in which windows records stand."""
        columns = self._table.c
        found: dict[str, Cell] = {}
        for low in range(0, len(ids), _IDS_AT_ONCE):
            some = columns.record_id.in_(ids[low : low + _IDS_AT_ONCE])
            query = select(columns.record_id, columns.key, columns.window_start_ms).where(some)
            found |= {row[0]: (row[1], row[2]) for row in connection.execute(query)}
        return found

    def _withdraw(self, connection: Connection, letters: Sequence[Letter]) -> None:
        if letters:
            gone = delete(self._table).where(self._table.c.record_id == bindparam("r"))
            connection.execute(gone, [{"r": each.record_id} for each in letters])

    def _corrected(
        self, row: Mapping[str, Any] | None, letters: Sequence[Letter]
    ) -> dict[str, Any] | None:
        """Gives the new row; None if nothing changes."""
        if not letters:
            return None
        first, added = letters[0], len(letters)
        known = row or {
            "key": first.key,
            "window_start_ms": first.window_start_ms,
            "window_end_ms": first.window_end_ms,
            "value": None,
            "count": 0,
            "reconciled": 0,
            "pane_index": _NO_PANE,
            "run": first.run,
        }
        ends = {each.window_end_ms for each in letters} | {known["window_end_ms"]}
        if len(ends) > 1:
            msg = f"windows of several sizes start there: they end at {sorted(ends)}"
            raise ValueError(msg)
        value = self._correction(known["value"], known["count"], [each.value for each in letters])
        return {
            **known,
            "value": value,
            "count": known["count"] + added,
            "reconciled": known["reconciled"] + added,
            "timing": RECONCILED,
        }

    def _change(
        self,
        connection: Connection,
        changes: Sequence[tuple[Mapping[str, Any] | None, dict[str, Any], list[Letter]]],
    ) -> None:
        table = self._windows.table
        known = [new for row, new, _ in changes if row is not None]
        if known:
            statement = (
                update(table)
                .where(table.c.key == bindparam("k"), table.c.window_start_ms == bindparam("s"))
                .values(
                    {
                        name: bindparam(f"new_{name}")
                        for name in ("value", "count", "reconciled", "timing")
                    }
                )
            )
            connection.execute(
                statement,
                [
                    {"k": new["key"], "s": new["window_start_ms"]}
                    | {f"new_{name}": value for name, value in new.items()}
                    for new in known
                ],
            )
        fresh = [new for row, new, _ in changes if row is None]
        if fresh:
            statement = insert_into(self._windows.engine, table).on_conflict_do_nothing()
            made = connection.execute(statement.returning(table.c.key), fresh).all()
            if len(made) < len(fresh):
                raise _Overtaken
        if self._windows.trail is not None:
            self._windows.trail.append(
                connection, [_change_of(row, new, fresh, self._run) for row, new, fresh in changes]
            )

    def close(self) -> None:
        """Closes the connections."""
        self._windows.close()


def _look(url: str, table: str) -> bool:
    """Says whether a table has an audit trail."""
    engine = open_database(url, "output (--output)")
    try:
        found = inspect(engine)
        if not found.has_table(table):
            msg = (
                f"output (--output) {without_login(url)!r} has no table {table!r} (--table): give "
                "the database and the table of the job whose dead letters these are"
            )
            raise ValueError(msg)
        return bool(found.has_table(AuditTrail.of(table).entries.name))
    except DatabaseError as error:
        msg = f"output (--output) {without_login(url)!r} cannot be used: {error.orig}"
        raise ValueError(msg) from error
    finally:
        engine.dispose()


def _known(where: Cell, cell: Cell, letter: Letter) -> Left:
    if where == cell:
        detail = "it stands in its window already"
        return Left(APPLIED, detail, letter.record_id, letter.file, None)
    detail = f"a record of this id stands in the window {where[1]} of {where[0]!r} already"
    return Left(ELSEWHERE, detail, letter.record_id, letter.file, None)


def _report(
    row: Mapping[str, Any] | None, new: Mapping[str, Any], letters: Sequence[Letter]
) -> Corrected:
    return Corrected(
        new["key"],
        new["window_start_ms"],
        new["window_end_ms"],
        None if row is None else row["value"],
        new["value"],
        0 if row is None else row["count"],
        new["count"],
        tuple(each.record_id for each in letters),
        tuple(sorted({each.file for each in letters})),
    )


def _change_of(
    row: Mapping[str, Any] | None, new: Mapping[str, Any], letters: Sequence[Letter], run: str
) -> Change:
    stamps = [each.watermark_ms for each in letters if each.watermark_ms is not None]
    source = {
        "dead_letters": sorted({each.file for each in letters}),
        "record_ids": [each.record_id for each in letters],
    }
    return Change.of(row, new, RECONCILIATION, max(stamps, default=None), source, run)

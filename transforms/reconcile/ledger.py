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
from contextlib import suppress
from typing import Any, Final

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

from beam_lateness.transforms.database import (
    POSTGRESQL,
    insert_into,
    open_table,
    write_or_refuse,
    writing,
)
from beam_lateness.transforms.reconcile.corrected import Corrected, change_of, report_of
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.judged import judged_elsewhere
from beam_lateness.transforms.reconcile.letters import Left, Letter
from beam_lateness.transforms.reconcile.table import open_windows
from beam_lateness.transforms.sinks.runs_table import Runs, RunsTable
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, Cell

RECONCILED: Final = "RECONCILED"
APPLIED: Final = "already_applied"
ELSEWHERE: Final = "applied_elsewhere"
UNFIT: Final = "unfit"
_NO_PANE: Final = -1
_ROUNDS: Final = 20
_IDS_AT_ONCE: Final = 800  # a statement of SQLite takes 999 values in old releases


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
        dry_run: Whether to find out only, and change nothing.
        superseded: Whether to apply records that a later run has judged again: it read the same
            input from its start, and has them in its panes or in dead letters of its own.

    Raises:
        ValueError: If the database cannot be used, has no such table, or one of other aggregates.
    """

    def __init__(
        self,
        url: str,
        run: str,
        correction: Correction,
        table: str = TABLE_NAME,
        clock: Callable[[], float] = time.time,
        *,
        dry_run: bool = False,
        superseded: bool = False,
    ) -> None:
        self._dry_run = dry_run
        self._run = run
        self._correction = correction
        self._clock = clock
        self._windows = open_windows(url, table, correction)
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
            if not dry_run or inspect(self._windows.engine).has_table(self._table.name):
                open_table(url, "output (--output)", self._table).dispose()
        except ValueError:
            self._windows.close()
            raise
        self._superseded = superseded
        self._runs = RunsTable(table)

    def apply(self, letters: Mapping[Cell, Sequence[Letter]]) -> tuple[list[Corrected], list[Left]]:
        """Applies records, in one transaction; what the database refuses is left.

        Args:
            letters: By key and start of the window.

        Returns:
            What was corrected, and what was left with its reason: together each of the letters.

        Raises:
            SQLAlchemyError: If the database cannot be written.
        """
        corrected: list[Corrected] = []
        left: list[Left] = []

        def write(some: Sequence[tuple[Cell, Letter]]) -> None:
            of_cells: dict[Cell, list[Letter]] = {}
            for cell, letter in some:
                of_cells.setdefault(cell, []).append(letter)
            more_corrected, more_left = self._outrun(of_cells)
            corrected.extend(more_corrected)
            left.extend(more_left)

        items = [(cell, letter) for cell in sorted(letters) for letter in letters[cell]]
        for (_, letter), detail in write_or_refuse(items, write, "reconciliation"):
            left.append(letter.left(UNFIT, f"the database refuses it: {detail}"))
        return corrected, left

    def _outrun(
        self, letters: Mapping[Cell, Sequence[Letter]]
    ) -> tuple[list[Corrected], list[Left]]:
        for _ in range(_ROUNDS):
            with suppress(_Overtaken):
                return self._apply(letters)
        msg = f"the job writes to {self._windows.table.name} faster than it can be reconciled"
        raise RuntimeError(msg)

    def _apply(
        self, letters: Mapping[Cell, Sequence[Letter]]
    ) -> tuple[list[Corrected], list[Left]]:
        left: list[Left] = []
        changes: list[tuple[Mapping[str, Any] | None, dict[str, Any], list[Letter]]] = []
        with writing(self._windows.engine) as connection:
            if self._dry_run:
                self._table.create(connection, checkfirst=True)
            self._lock(connection)
            ids = [letter.record_id for of_cell in letters.values() for letter in of_cell]
            known = sorted({*letters, *self._where(connection, ids).values()})
            rows = self._windows.read(connection, known, lock=True)
            self._forget(connection, [c for c in known if not rows.get(c, {}).get("reconciled")])
            # After the locks: a run that begins from now on finds these rows locked, or changed.
            runs = None if self._superseded else self._runs.read(connection)
            for cell in sorted(letters):
                row = rows.get(cell)
                fit = self._fit(row, letters[cell], runs, left)
                fresh = self._enter(connection, cell, fit, left)
                try:
                    new = self._corrected(row, fresh)
                except (ValueError, OverflowError) as error:
                    left += [each.left(UNFIT, str(error)) for each in fresh]
                    self._withdraw(connection, fresh)
                    continue
                if new is not None:
                    changes.append((row, new, fresh))
            self._change(connection, changes)
            if self._dry_run:
                connection.rollback()
        return [report_of(row, new, fresh) for row, new, fresh in changes], left

    def _fit(
        self,
        row: Mapping[str, Any] | None,
        letters: Sequence[Letter],
        runs: Runs | None,
        left: list[Left],
    ) -> list[Letter]:
        """Gives the letters that can be added to a row; the others hold none of them back."""
        fit: list[Letter] = []
        for letter in letters:
            judged = None if runs is None else judged_elsewhere(letter, row, runs)
            if judged is not None:
                left.append(judged)
                continue
            why = self._correction.refusal(letter.value)
            if row is not None and letter.window_end_ms != row["window_end_ms"]:
                why = f"its window ends at {letter.window_end_ms}, that of the table at "
                why += str(row["window_end_ms"])
            if why is None:
                fit.append(letter)
            else:
                left.append(letter.left(UNFIT, why))
        return fit

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
        if not letters:
            return []
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
        once = {id(distinct[name]) for name in new}
        old = [each for each in letters if id(each) not in once]
        where = dict.fromkeys(new, cell)
        where |= self._where(connection, [name for name in distinct if name not in new])
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
        ends = {each.window_end_ms for each in letters}
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
                connection, [change_of(row, new, fresh, self._run) for row, new, fresh in changes]
            )

    def close(self) -> None:
        """Closes the connections."""
        self._windows.close()


def _known(where: Cell, cell: Cell, letter: Letter) -> Left:
    if where == cell:
        return letter.left(APPLIED, "it stands in its window already")
    detail = f"a record of this id stands in the window {where[1]} of {where[0]!r} already"
    return letter.left(ELSEWHERE, detail)

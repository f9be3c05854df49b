"""The table of windows: the last pane of each key and window, in a SQL database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    and_,
    delete,
    inspect,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB

from beam_lateness.transforms.database import (
    POSTGRESQL,
    check_name,
    insert_into,
    make_tables,
    open_table,
    retrying,
    write_or_refuse,
    writing,
)
from beam_lateness.transforms.results import Pane, RefusedPane, key_text, pane_fields
from beam_lateness.transforms.sinks.audit_trail import AuditTrail, Change
from beam_lateness.transforms.sinks.window_values import JSON, NUMBER, VALUES, ValueType

TABLE_NAME: Final = "windows"
Cell: TypeAlias = tuple[str, int]
"""A key, as text, and the start of a window, in ms."""

RETRACTION: Final = "retraction"
_KEY_NAMES: Final = ("key", "window_start_ms")
_CELLS_AT_ONCE: Final = 400  # a statement of SQLite takes 999 values in old releases


def windows_table(name: str, values: str = NUMBER) -> Table:
    """Describes the table, with (key, window_start_ms) as its primary key.

    Args:
        name: Its name.
        values: `number` or `json`; see `ValueType`.
    """
    return Table(
        name,
        MetaData(),
        Column("key", Text, primary_key=True),
        Column("window_start_ms", BigInteger, primary_key=True),
        Column("window_end_ms", BigInteger, nullable=False),
        Column("value", ValueType(values), nullable=False),
        Column("count", BigInteger, nullable=False),
        Column("reconciled", BigInteger, nullable=False),
        Column("pane_index", BigInteger, nullable=False),
        Column("timing", Text, nullable=False),
        Column("run", Text, nullable=False),
    )


def values_of(bind: Engine | Connection, name: str) -> str:
    """Says what kind of values a table holds: `number` or `json`."""
    columns = {column["name"]: column["type"] for column in inspect(bind).get_columns(name)}
    return JSON if isinstance(columns["value"], JSONB) else NUMBER


def require_values(engine: Engine, name: str, wanted: str | None) -> str:
    """Gives the kind of values that a table holds, if it is the one that is wanted.

    Raises:
        ValueError: If it is not; the connections are closed then.
    """
    found = values_of(engine, name)
    if engine.dialect.name == POSTGRESQL and wanted not in (None, found):
        engine.dispose()
        msg = (
            f"table {name!r} (--table) holds values of the kind {found!r}, and this job gives "
            f"{wanted!r} (several aggregates are json, one is a number): name another table"
        )
        raise ValueError(msg)
    return found


def stale_rows(table: Table, runs: Sequence[str], low_ms: int, high_ms: int) -> Any:
    """Says which rows are of windows with `low_ms` < end <= `high_ms`, and of some runs."""
    end = table.c.window_end_ms
    return and_(table.c.run.in_(runs), end > low_ms, end <= high_ms)


def remove_rows(
    connection: Connection, table: Table, runs: Sequence[str], low_ms: int, high_ms: int
) -> bool:
    """Removes such rows; says whether these runs have none of later windows."""
    connection.execute(delete(table).where(stale_rows(table, runs, low_ms, high_ms)))
    end = table.c.window_end_ms
    later = select(end).where(table.c.run.in_(runs), end > high_ms).limit(1)
    return connection.execute(later).first() is None


def later_run(engine: Engine, new: Any, old: Any) -> Any:
    """Compares names of runs as Python does, whatever the database's language."""
    return new.collate("C") > old.collate("C") if engine.dialect.name == POSTGRESQL else new > old


class WindowTable:
    """The table of windows: a row a key and window.

    Its columns: key, window_start_ms, window_end_ms, value, count (of records, of which
    `reconciled` came by reconciliation), pane_index, timing, run.

    A row is replaced only by a newer run, or by a later pane of the same run: one that stands on
    more records than the last pane, or on as many and has a larger index. So what comes twice, or
    out of order, changes nothing. (The index alone would not do: an engine that goes back to a
    checkpoint may gather the same late records in fewer panes, and number those that follow lower
    than before.) What reconciliation added goes with the pane it was added to, and is added again
    by the next one.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        name: The table's name.
        values: `number` or `json` (see `ValueType`); None for a table that is there, as it is.
        audit: Whether each change goes into an audit trail, in the same transaction.

    Raises:
        ValueError: If the URL is no such thing, the database cannot be used, it holds a table of
            that name and another shape, or one that has an audit trail where there must be none.
    """

    def __init__(
        self, url: str, name: str = TABLE_NAME, values: str | None = NUMBER, *, audit: bool = False
    ) -> None:
        if values not in (None, *VALUES):
            msg = f"values must be one of {', '.join(VALUES)}, got {values!r}"
            raise ValueError(msg)
        trail = AuditTrail.of(check_name(name, "table (--table)"))
        self.engine = open_table(url, "output (--output)", windows_table(name, values or NUMBER))
        self.table = windows_table(name, require_values(self.engine, name, values))
        self.trail = trail if audit else None
        try:
            self._begin(trail, audit)
        except ValueError:
            self.engine.dispose()
            raise
        self._upsert = self._statement()

    def _begin(self, trail: AuditTrail, audit: bool) -> None:
        """Makes the trail of an empty table; refuses rows without entries."""
        there, name = inspect(self.engine).has_table(trail.entries.name), self.table.name
        if there and not audit:
            msg = (
                f"table {name!r} (--table) has an audit trail, and a change without an entry would "
                "break it: write with an audit trail (--audit=true), or name another table"
            )
            raise ValueError(msg)
        if not audit:
            return
        with self.engine.connect() as connection:
            filled = connection.execute(select(self.table.c.key).limit(1)).first() is not None
        if filled and not there:
            msg = (
                f"table {name!r} (--table) has rows, and no trail that explains them: an audit "
                "trail (--audit=true) begins with an empty table; name another"
            )
            raise ValueError(msg)
        make_tables(self.engine, f"the audit trail of table {name!r}", *trail.tables)
        trail.begin(self.engine)

    def _statement(self) -> Any:
        table, new = self.table, insert_into(self.engine, self.table)
        replaced = {
            column.name: new.excluded[column.name]
            for column in table.columns
            if column.name not in _KEY_NAMES
        }
        of_panes = table.c.count - table.c.reconciled
        newer = or_(
            later_run(self.engine, new.excluded.run, table.c.run),
            and_(
                new.excluded.run == table.c.run,
                or_(
                    new.excluded.count > of_panes,
                    and_(
                        new.excluded.count == of_panes,
                        new.excluded.pane_index > table.c.pane_index,
                    ),
                ),
            ),
        )
        return new.on_conflict_do_update(
            index_elements=list(_KEY_NAMES), set_=replaced, where=newer
        )

    def write(self, panes: Iterable[Pane], run: str) -> list[RefusedPane]:
        """Upserts panes of one run, in one transaction; an error that may pass is waited out.

        Returns:
            The panes that the database refuses for what they hold; the others are written.

        Raises:
            SQLAlchemyError: If the database cannot be written.
        """
        of_cells: dict[Cell, list[Pane]] = {}
        for pane in panes:
            of_cells.setdefault((key_text(pane.key), pane.window_start), []).append(pane)
        cells = [
            (cell, sorted(of_cells[cell], key=_order)) for cell in sorted(of_cells)
        ]  # sorted, so that no writers deadlock
        write, what = partial(self._write, run), f"writing to {self.table.name}"
        return [
            RefusedPane(pane, detail)
            for (cell, found), _ in write_or_refuse(cells, write, what)
            for pane in found  # by itself: the other panes of its cell may be fine
            for _, detail in write_or_refuse([(cell, [pane])], write, what)
        ]

    def _write(self, run: str, cells: Sequence[tuple[Cell, list[Pane]]]) -> None:
        """Writes the last of the panes of each cell; a trail has all of them."""
        # Of equal ones the first, as where they come in two transactions.
        rows = [_row(cell, max(panes, key=_order), run) for cell, panes in cells]
        with writing(self.engine) as connection:
            if self.trail is not None:
                self.trail.lock(connection)
                before = self.read(connection, [cell for cell, _ in cells])
                changes = [
                    change
                    for cell, panes in cells
                    for change in _changes(before.get(cell), cell, panes, run)
                ]
                self.trail.append(connection, changes)
            connection.execute(self._upsert, rows)

    def read(
        self, connection: Connection, cells: Sequence[Cell], *, lock: bool = False
    ) -> dict[Cell, Mapping[str, Any]]:
        """Gives the rows of some keys and windows.

        Args:
            connection: In whose transaction.
            cells: Keys, as text, and starts of windows, in ms.
            lock: Whether no other transaction may change them until this one ends.
        """
        columns = self.table.c
        found: dict[Cell, Mapping[str, Any]] = {}
        for low in range(0, len(cells), _CELLS_AT_ONCE):
            wanted = tuple_(columns.key, columns.window_start_ms).in_(
                cells[low : low + _CELLS_AT_ONCE]
            )
            query = select(self.table).where(wanted).order_by(columns.key, columns.window_start_ms)
            for row in connection.execute(query.with_for_update() if lock else query):
                found[row.key, row.window_start_ms] = row._asdict()
        return found

    def remove(self, runs: Sequence[str], low_ms: int, high_ms: int) -> bool:
        """Removes rows of windows with `low_ms` < end <= `high_ms` that some runs wrote.

        Returns:
            Whether these runs have none of later windows.
        """
        return retrying(
            lambda: self._remove(runs, low_ms, high_ms), f"removing from {self.table.name}"
        )

    def _remove(self, runs: Sequence[str], low_ms: int, high_ms: int) -> bool:
        with writing(self.engine) as connection:
            if self.trail is not None:
                self.trail.lock(connection)
                rows = select(self.table).where(stale_rows(self.table, runs, low_ms, high_ms))
                gone = [_retraction(row._asdict()) for row in connection.execute(rows)]
                self.trail.append(connection, gone)
            return remove_rows(connection, self.table, runs, low_ms, high_ms)

    def close(self) -> None:
        """Closes the connections."""
        self.engine.dispose()


def _row(cell: Cell, pane: Pane, run: str) -> dict[str, Any]:
    return {**pane_fields(pane, run), "key": cell[0], "reconciled": 0}


def _order(pane: Pane) -> tuple[int, int]:
    return pane.count, pane.index


def _changes(
    before: Mapping[str, Any] | None, cell: Cell, panes: Sequence[Pane], run: str
) -> Iterator[Change]:
    """Gives what panes of a cell, in their order, change one after the other."""
    for pane in panes:
        row = _row(cell, pane, run)
        if before is None or _is_newer(row, before):
            source = {"record_ids": list(pane.record_ids)} if pane.record_ids else None
            yield Change.of(before, row, pane.timing.lower(), pane.watermark, source)
            before = row


def _is_newer(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """The rule of the upsert, for rows that are locked."""
    if row["run"] != before["run"]:
        return bool(row["run"] > before["run"])
    of_panes = before["count"] - before["reconciled"]
    return bool((row["count"], row["pane_index"]) > (of_panes, before["pane_index"]))


def _retraction(row: Mapping[str, Any]) -> Change:
    return Change.of(row, None, RETRACTION, None, None)

"""A store of windows to reconcile, and letters for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import MetaData, Table, create_engine, inspect, select

from beam_lateness import Corrected, Left, Pane
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import Ledger
from beam_lateness.transforms.reconcile.letters import Letter
from beam_lateness.transforms.sinks.window_table import Cell, WindowTable
from beam_lateness.transforms.sinks.window_values import JSON, NUMBER

MINUTE_MS: Final = 60_000
RUN: Final = "run-1"
FILE: Final = "dead-letters-run-1-00000000.jsonl"


def letter(name: str, value: Any = 1, key: str = "a", start: int = 0, **more: Any) -> Letter:
    """Makes a letter of a window of a minute."""
    made = Letter(key, start, start + MINUTE_MS, name, value, start + 2 * MINUTE_MS, RUN, FILE)
    return made._replace(**more)


def pane(value: Any, count: int = 1, index: int = 0, key: str = "a", start: int = 0) -> Pane:
    """Makes a pane of such a window."""
    return Pane(key, start, start + MINUTE_MS, value, count, index, "LATE" if index else "ON_TIME")


def by_cell(letters: Iterable[Letter]) -> dict[Cell, list[Letter]]:
    """Brings letters together by key and window."""
    found: dict[Cell, list[Letter]] = {}
    for each in letters:
        found.setdefault((each.key, each.window_start_ms), []).append(each)
    return found


class Store:
    """A table of windows in a database.

    Args:
        url: The database.
        audit: Whether it has an audit trail.
        aggregate: How the job aggregates.
    """

    def __init__(self, url: str, aggregate: Sequence[str] = ("sum",), *, audit: bool = False):
        self.url = url
        self.aggregate = list(aggregate)
        self._audit = audit
        self.write([])

    def write(self, panes: Sequence[Pane], run: str = RUN) -> None:
        """Writes panes, as the job does."""
        values = JSON if len(self.aggregate) > 1 else NUMBER
        table = WindowTable(self.url, values=values, audit=self._audit)
        table.write(panes, run)
        table.close()

    def apply(
        self, *letters: Letter, run: str = "reconcile-1", dry_run: bool = False
    ) -> tuple[list[Corrected], list[Left]]:
        """Reconciles letters, by a ledger of their own."""
        ledger = Ledger(self.url, run, Correction(self.aggregate), dry_run=dry_run)
        try:
            return ledger.apply(by_cell(letters))
        finally:
            ledger.close()

    @property
    def rows(self) -> dict[Cell, tuple[Any, int, int]]:
        """Value, count, and how many of them were reconciled, of each key and window."""
        found: dict[Cell, tuple[Any, int, int]] = {}
        table = WindowTable(self.url, values=None, audit=self._audit)
        with table.engine.connect() as connection:
            for row in connection.execute(select(table.table)):
                key, start, _, *values = row
                found[key, start] = (values[0], values[1], values[2])
        table.close()
        return found

    @property
    def ledger(self) -> dict[str, Cell]:
        """Where the ledger has each record."""
        rows = self.dump().get("windows_ledger", [])
        return {row["record_id"]: (row["key"], row["window_start_ms"]) for row in rows}

    def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Everything in the database, table by table."""
        engine = create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"))
        try:
            with engine.connect() as connection:
                tables = {
                    name: Table(name, MetaData(), autoload_with=connection)
                    for name in sorted(inspect(connection).get_table_names())
                    if not name.startswith("sqlite_")
                }
                return {
                    name: sorted((dict(r._mapping) for r in connection.execute(select(t))), key=str)
                    for name, t in tables.items()
                }
        finally:
            engine.dispose()

"""`AppendPanes`: each pane as a row of a table of a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import apache_beam as beam
from apache_beam.pvalue import PCollection
from sqlalchemy import BigInteger, Column, MetaData, Table, Text

from beam_lateness.transforms.database import (
    check_name,
    insert_into,
    open_table,
    retrying,
    write_or_refuse,
    writing,
)
from beam_lateness.transforms.results import Pane, RefusedPane, key_text, pane_fields
from beam_lateness.transforms.sinks.upsert import WritePanes
from beam_lateness.transforms.sinks.window_table import (
    later_run,
    remove_rows,
    require_values,
)
from beam_lateness.transforms.sinks.window_values import NUMBER, ValueType

TABLE_NAME: Final = "panes"
_KEY_NAMES: Final = ("key", "window_start_ms", "pane_index")


def panes_table(name: str, values: str = NUMBER) -> Table:
    """Describes the table.

    Args:
        name: Its name.
        values: `number` or `json`; see `ValueType`.
    """
    return Table(
        name,
        MetaData(),
        Column("key", Text, primary_key=True),
        Column("window_start_ms", BigInteger, primary_key=True),
        Column("pane_index", BigInteger, primary_key=True),
        Column("window_end_ms", BigInteger, nullable=False),
        Column("value", ValueType(values), nullable=False),
        Column("count", BigInteger, nullable=False),
        Column("timing", Text, nullable=False),
        Column("run", Text, nullable=False),
    )


class PaneTable:
    """A table of panes: a row a pane, with (key, window_start_ms, pane_index) as its primary key.

    A pane that comes twice changes nothing; one of a newer run replaces that of an older one, so
    that a run begun again does not stand beside what an interrupted one left.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        name: The table's name.
        values: `number` or `json` (see `ValueType`); None for a table that is there, as it is.

    Raises:
        ValueError: If the URL is no such thing, the database cannot be used, or it holds a table of
            that name and another shape.
    """

    def __init__(self, url: str, name: str = TABLE_NAME, values: str | None = NUMBER) -> None:
        check_name(name, "table (--table)")
        self._engine = open_table(url, "output (--output)", panes_table(name, values or NUMBER))
        self.table = panes_table(name, require_values(self._engine, name, values))
        new = insert_into(self._engine, self.table)
        self._insert = new.on_conflict_do_update(
            index_elements=list(_KEY_NAMES),
            set_={c.name: new.excluded[c.name] for c in self.table.c if c.name not in _KEY_NAMES},
            where=later_run(self._engine, new.excluded.run, self.table.c.run),
        )

    def write(self, panes: Iterable[Pane], run: str) -> list[RefusedPane]:
        """Appends panes of one run, in one transaction; an error that may pass is waited out.

        Returns:
            The panes that the database refuses for what they hold; the others are written.

        Raises:
            SQLAlchemyError: If the database cannot be written.
        """
        of_places: dict[tuple[str, int, int], list[Pane]] = {}
        for pane in panes:
            place = (key_text(pane.key), pane.window_start, pane.index)
            of_places.setdefault(place, []).append(pane)
        rows = [(place, of_places[place][-1]) for place in sorted(of_places)]
        write = partial(self._write, run)
        refused = write_or_refuse(rows, write, f"writing to {self.table.name}")
        return [
            RefusedPane(pane, detail) for (place, _), detail in refused for pane in of_places[place]
        ]

    def _write(self, run: str, panes: Sequence[tuple[tuple[str, int, int], Pane]]) -> None:
        rows = [{**pane_fields(pane, run), "key": key} for (key, _, _), pane in panes]
        with writing(self._engine) as connection:
            connection.execute(self._insert, rows)

    def remove(self, runs: Sequence[str], low_ms: int, high_ms: int) -> bool:
        """Removes rows of windows with `low_ms` < end <= `high_ms` that some runs wrote.

        Returns:
            Whether these runs have none of later windows.
        """

        def remove() -> bool:
            with writing(self._engine) as connection:
                return remove_rows(connection, self.table, runs, low_ms, high_ms)

        return retrying(remove, f"removing from {self.table.name}")

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()


@dataclass(eq=False)
class AppendPanes(beam.PTransform[PCollection[Pane], PCollection[RefusedPane]]):
    """Appends each pane to a SQL table, as a row of its own with its index.

    The panes of a window that was corrected stand side by side: a sum over the rows counts its
    records several times. So use it where the allowed lateness is 0, or with discarding panes.

    Errors that may pass, and panes that the database refuses, are treated as by `UpsertPanes`.

    Watermark: leaves it as it is.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`.
        run: Names this run; a later run's name must sort after it (`runs.new_run`).
        written: Called with the panes of each transaction once it is committed; it must be
            picklable.
        table: The table's name.
        values: `number`, or `json` for several aggregates or a `CombineFn`.
        emit_refused: Whether refused panes are given out, to be kept elsewhere; else one ends the
            job.

    Raises:
        ValueError: At construction, if the table cannot be used (see `PaneTable`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     AppendPanes(f"sqlite:///{folder}/panes.db", run="2026-01-01T00:00").table
        'panes'
    """

    url: str = field(repr=False)  # may hold a password
    run: str
    written: Callable[[Sequence[Pane]], None] | None = None
    table: str = TABLE_NAME
    values: str = NUMBER
    emit_refused: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self._opener()().close()

    def _opener(self) -> Callable[[], PaneTable]:
        return partial(PaneTable, self.url, self.table, self.values)

    def expand(self, panes: PCollection[Pane]) -> PCollection[RefusedPane]:
        """Writes bundle by bundle."""
        write = WritePanes(self._opener(), self.run, self.written, self.emit_refused)
        refused = panes | "Append" >> beam.ParDo(write)
        refused.element_type = RefusedPane
        return refused

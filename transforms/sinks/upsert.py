"""`UpsertPanes`: the last pane of each key and window, in a table of a SQL database."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.pvalue import PCollection
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    MetaData,
    Table,
    Text,
    and_,
    delete,
    or_,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import UserDefinedType

from beam_lateness.transforms.database import open_table
from beam_lateness.transforms.results import Pane

TABLE_NAME: Final = "windows"
_ROWS_AT_ONCE: Final = 5000


class _Value(UserDefinedType[Any]):
    """A column without a type, so that SQLite keeps integers, floats and text as they come."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return ""

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        return _to_sql


def _to_sql(value: Any) -> Any:
    """Fits a value to SQLite.

    Several aggregates, or a list, become JSON. An integer beyond 64 bits, which SQLite would round,
    and a float that is none (NaN, which it would take for null) become text.
    """
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, default=str)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_TABLE: Final = Table(
    TABLE_NAME,
    MetaData(),
    Column("key", Text, primary_key=True),
    Column("window_start_ms", BigInteger, primary_key=True),
    Column("window_end_ms", BigInteger, nullable=False),
    Column("value", _Value, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("pane_index", BigInteger, nullable=False),
    Column("timing", Text, nullable=False),
    Column("run", Text, nullable=False),
)


_KEY_NAMES: Final = ("key", "window_start_ms")
_NAMES: Final = [column.name for column in _TABLE.columns]


class WindowTable:
    """The table `windows`, with (key, window_start_ms) as its primary key.

    Its columns: key, window_start_ms, window_end_ms, value, count, pane_index, timing, run.
    A row is replaced only by a newer run, or by a later pane of the same run: one that stands on
    more records, or on as many and has a larger index. So what comes twice, or out of order,
    changes nothing. (The index alone would not do: an engine that goes back to a checkpoint may
    gather the same late records in fewer panes, and number those that follow lower than before.)

    Args:
        url: `sqlite:///FILE`.

    Raises:
        ValueError: If the URL is no such thing, the file cannot be written, or it holds a table
            `windows` of another shape.
    """

    def __init__(self, url: str) -> None:
        self._engine = open_table(url, "output (--output)", _TABLE)

    def write(self, panes: Iterable[Pane], run: str) -> None:
        """Upserts panes of one run, in one transaction."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for pane in panes:
            key = pane.key if isinstance(pane.key, str) else json.dumps(pane.key, default=repr)
            known = rows.get((key, pane.window_start))
            order = (pane.count, pane.index)
            if known is None or (known["count"], known["pane_index"]) < order:
                rows[key, pane.window_start] = {
                    "key": key,
                    "window_start_ms": pane.window_start,
                    "window_end_ms": pane.window_end,
                    "value": pane.value,
                    "count": pane.count,
                    "pane_index": pane.index,
                    "timing": pane.timing,
                    "run": run,
                }
        if not rows:
            return
        new = insert(_TABLE)
        changed = {name: new.excluded[name] for name in _NAMES if name not in _KEY_NAMES}
        newer = or_(
            new.excluded.run > _TABLE.c.run,
            and_(
                new.excluded.run == _TABLE.c.run,
                or_(
                    new.excluded.count > _TABLE.c.count,
                    and_(
                        new.excluded.count == _TABLE.c.count,
                        new.excluded.pane_index > _TABLE.c.pane_index,
                    ),
                ),
            ),
        )
        statement = new.on_conflict_do_update(
            index_elements=list(_KEY_NAMES), set_=changed, where=newer
        )
        with self._engine.begin() as connection:
            connection.execute(statement, [rows[key] for key in sorted(rows)])

    def remove(self, runs: Sequence[str], low_ms: int, high_ms: int) -> bool:
        """Removes rows of windows with `low_ms` < end <= `high_ms` that some runs wrote.

        Returns:
            Whether these runs have none of later windows.
        """
        end = _TABLE.c.window_end_ms
        earlier = _TABLE.c.run.in_(runs)
        with self._engine.begin() as connection:
            connection.execute(delete(_TABLE).where(earlier, end > low_ms, end <= high_ms))
            later = connection.execute(select(end).where(earlier, end > high_ms).limit(1))
            return later.first() is None

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()


@dataclass(eq=False)
class UpsertPanes(beam.PTransform[PCollection[Pane], PCollection[Any]]):
    """Writes panes to a SQL table so that each key and window has its latest result.

    Watermark: takes a `PCollection[Pane]`, gives nothing.

    Args:
        url: `sqlite:///FILE`.
        run: Names this run; a later run's name must sort after it (`runs.new_run`). A run begun
            again from the start so replaces what an interrupted one left.
        written: Called with the panes of each transaction once it is committed; it must be
            picklable.

    Raises:
        ValueError: At construction, if the table cannot be used (see `WindowTable`).
    """

    url: str
    run: str
    written: Callable[[Sequence[Pane]], None] | None = None

    def __post_init__(self) -> None:
        super().__init__()
        WindowTable(self.url).close()

    def expand(self, panes: PCollection[Pane]) -> PCollection[Any]:
        """Writes bundle by bundle."""
        return panes | "Upsert" >> beam.ParDo(_Upsert(self.url, self.run, self.written))


class _Upsert(beam.DoFn):
    """Collects panes and writes them in batches."""

    def __init__(
        self, url: str, run: str, written: Callable[[Sequence[Pane]], None] | None = None
    ) -> None:
        self._url = url
        self._run = run
        self._written = written

    def setup(self) -> None:
        self._table = WindowTable(self._url)

    def start_bundle(self) -> None:
        self._panes: list[Pane] = []

    def process(self, element: Pane) -> None:
        self._panes.append(element)
        if len(self._panes) >= _ROWS_AT_ONCE:
            self._flush()

    def finish_bundle(self) -> None:
        self._flush()

    def _flush(self) -> None:
        panes, self._panes = self._panes, []
        self._table.write(panes, self._run)
        if panes and self._written is not None:
            self._written(panes)

    def teardown(self) -> None:
        self._table.close()


@dataclass(frozen=True)
class RemoveStale:
    """Removes the rows that only an earlier, broken off run wrote of windows that this one settles.

    Such a row stands on records that were never acknowledged, and came again. Where they were
    accepted again the row has been replaced; where all of them came too late now, they are dead
    letters, and the row would count them twice.

    Args:
        url: The database of `UpsertPanes`.

    Example:
        >>> RemoveStale("sqlite:///windows.db").url
        'sqlite:///windows.db'
    """

    url: str

    def __call__(self, runs: Sequence[str], low_ms: int, high_ms: int) -> bool:
        """Removes them.

        Args:
            runs: The earlier runs that read this source; rows of other runs are left alone.
            low_ms: Of windows that end after this, in ms,
            high_ms: and not after this.

        Returns:
            Whether no later window has rows of an earlier run: then there is nothing to do again.
        """
        table = WindowTable(self.url)
        try:
            return table.remove(runs, low_ms, high_ms)
        finally:
            table.close()

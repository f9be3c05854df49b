"""`UpsertPanes`: the last pane of each key and window, in a table of a SQL database."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.pvalue import PCollection
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Engine,
    MetaData,
    Table,
    Text,
    and_,
    create_engine,
    event,
    inspect,
    or_,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.types import UserDefinedType

from beam_lateness.transforms.results import Pane

TABLE_NAME: Final = "windows"
_ROWS_AT_ONCE: Final = 5000
_BUSY_TIMEOUT_S: Final = 60


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
    A row is replaced only by a newer run, or by a later pane of the same run: what comes twice, or
    out of order, changes nothing.

    Args:
        url: `sqlite:///FILE`.

    Raises:
        ValueError: If the URL is no such thing, the file cannot be written, or it holds a table
            `windows` of another shape.
    """

    def __init__(self, url: str) -> None:
        self._engine = _open(url)
        try:
            _TABLE.create(self._engine, checkfirst=True)
            self._check_shape(url)
        except ValueError:
            self.close()
            raise
        except DatabaseError as error:
            self.close()
            msg = f"output (--output) {url!r} cannot be used: {error.orig}"
            raise ValueError(msg) from error

    def _check_shape(self, url: str) -> None:
        inspector = inspect(self._engine)
        found = [column["name"] for column in inspector.get_columns(TABLE_NAME)]
        key = inspector.get_pk_constraint(TABLE_NAME)["constrained_columns"]
        wanted_key = [column.name for column in _TABLE.primary_key]
        if set(found) != set(_NAMES) or key != wanted_key:
            msg = (
                f"output (--output) {url!r} has a table {TABLE_NAME!r} of another shape: columns "
                f"{', '.join(found)}, primary key {', '.join(key) or 'none'}, where "
                f"{', '.join(_NAMES)} and {', '.join(wanted_key)} are needed; "
                "name another file"
            )
            raise ValueError(msg)

    def write(self, panes: Iterable[Pane], run: str) -> None:
        """Upserts panes of one run, in one transaction."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for pane in panes:
            key = pane.key if isinstance(pane.key, str) else json.dumps(pane.key, default=repr)
            known = rows.get((key, pane.window_start))
            if known is None or known["pane_index"] < pane.index:
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
                new.excluded.pane_index > _TABLE.c.pane_index,
            ),
        )
        statement = new.on_conflict_do_update(
            index_elements=list(_KEY_NAMES), set_=changed, where=newer
        )
        with self._engine.begin() as connection:
            connection.execute(statement, [rows[key] for key in sorted(rows)])

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

    Raises:
        ValueError: At construction, if the table cannot be used (see `WindowTable`).
    """

    url: str
    run: str

    def __post_init__(self) -> None:
        super().__init__()
        WindowTable(self.url).close()

    def expand(self, panes: PCollection[Pane]) -> PCollection[Any]:
        """Writes bundle by bundle."""
        return panes | "Upsert" >> beam.ParDo(_Upsert(self.url, self.run))


class _Upsert(beam.DoFn):
    """Collects panes and writes them in batches."""

    def __init__(self, url: str, run: str) -> None:
        self._url = url
        self._run = run

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
        self._table.write(self._panes, self._run)
        self._panes = []

    def teardown(self) -> None:
        self._table.close()


def _open(url: str) -> Engine:
    remedy = "give sqlite:///FILE (four slashes for an absolute path)"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        msg = f"output (--output) must be a database URL, got {url!r}; {remedy}"
        raise ValueError(msg) from error
    in_memory = parsed.database in (None, "", ":memory:")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite") or in_memory:
        msg = f"output (--output) must be a SQLite file, got {url!r}; {remedy}"
        raise ValueError(msg)
    folder = os.path.dirname(os.path.abspath(str(parsed.database)))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        msg = f"output (--output) {url!r} cannot be written: no writable folder {folder!r}"
        raise ValueError(msg)
    engine = create_engine(parsed, connect_args={"timeout": _BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _use_wal)
    return engine


def _use_wal(connection: Any, _: Any) -> None:
    """Lets readers read while the job writes."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()

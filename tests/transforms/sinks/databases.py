"""The databases of the SQL sinks: a test that asks for `url` runs on both of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import select, text

from beam_lateness import Pane
from beam_lateness.transforms.database import POSTGRESQL, SQLITE, open_database
from beam_lateness.transforms.results import key_text
from beam_lateness.transforms.sinks.window_table import (
    TABLE_NAME,
    Cell,
    values_of,
    windows_table,
)

if TYPE_CHECKING:
    from services.postgres_server import PostgresServer

MINUTE_MS: Final = 60_000


@pytest.fixture(
    name="url", params=[SQLITE, pytest.param(POSTGRESQL, marks=pytest.mark.live)], ids=str
)
def empty_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database without tables, or of a part of one."""
    if request.param == SQLITE:
        return f"sqlite:///{tmp_path_factory.mktemp('database')}/db"
    return empty_schema(request.getfixturevalue("postgres_server"))


def empty_schema(server: PostgresServer) -> str:
    """Gives the URL of a schema without tables: it costs less than a database of its own."""
    name = some_name()
    execute(server.url(), f"CREATE SCHEMA {name}")
    return f"{server.url()}?options=-csearch_path%3D{name}"


def is_postgres(url: str) -> bool:
    """Whether a URL is of PostgreSQL."""
    return url.startswith(POSTGRESQL)


def some_name() -> str:
    """Gives a name that no table has: a hypothesis example writes to its own."""
    return f"t_{uuid.uuid4().hex}"


def pane(key: Any = "a", start: int = 0, value: Any = 1, count: int = 1, index: int = 0) -> Pane:
    """Makes a pane of a minute."""
    timing = "LATE" if index else "ON_TIME"
    return Pane(key, start, start + MINUTE_MS, value, count, index, timing)


def stored(url: str, table: str = TABLE_NAME) -> dict[Cell, Mapping[str, Any]]:
    """Reads a table of windows."""
    engine = open_database(url, "url")
    try:
        with engine.connect() as connection:
            rows = connection.execute(select(windows_table(table, values_of(connection, table))))
            return {(row.key, row.window_start_ms): row._asdict() for row in rows}
    finally:
        engine.dispose()


def execute(url: str, *statements: str) -> None:
    """Executes statements, as another program would."""
    engine = open_database(url, "url")
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


def latest(written: Iterable[tuple[str, Pane]]) -> dict[Cell, tuple[str, Pane]]:
    """Says what must stand after panes of runs, in whatever order: the sequential model."""
    found: dict[Cell, tuple[str, Pane]] = {}
    for run, each in sorted(written, key=_by_age):
        found[key_text(each.key), each.window_start] = run, each
    return found


def _by_age(written: tuple[str, Pane]) -> tuple[str, int, int]:
    run, each = written
    return run, each.count, each.index


def assert_holds(url: str, table: str, expected: Mapping[Cell, tuple[str, Pane]]) -> None:
    """Asserts that a table holds these panes, each with its run, and no others."""
    names = ("value", "count", "pane_index", "run")
    assert {
        cell: tuple(row[name] for name in names) for cell, row in stored(url, table).items()
    } == {cell: (each.value, each.count, each.index, run) for cell, (run, each) in expected.items()}

"""SQLite files as the job's stores: opened in one way, checked before anything runs."""

from __future__ import annotations

import os
from typing import Any, Final

from sqlalchemy import Engine, Table, create_engine, event, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError

_BUSY_TIMEOUT_S: Final = 60


def open_database(url: str, name: str) -> Engine:
    """Opens a SQLite file so that others can read while it is written, and commits last.

    Args:
        url: `sqlite:///FILE`.
        name: What to call it in an error, such as `output (--output)`.

    Raises:
        ValueError: If the URL is no such thing, or the file cannot be written.
    """
    remedy = "give sqlite:///FILE (four slashes for an absolute path)"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        msg = f"{name} must be a database URL, got {without_login(url)!r}; {remedy}"
        raise ValueError(msg) from error
    shown = without_login(url)
    in_memory = parsed.database in (None, "", ":memory:")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite") or in_memory:
        msg = f"{name} must be a SQLite file, got {shown!r}; {remedy}"
        raise ValueError(msg)
    folder = os.path.dirname(os.path.abspath(str(parsed.database)))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        msg = f"{name} {shown!r} cannot be written: no writable folder {folder!r}"
        raise ValueError(msg)
    engine = create_engine(parsed, connect_args={"timeout": _BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _settle)
    return engine


def open_table(url: str, name: str, table: Table) -> Engine:
    """Opens a SQLite file for a table of it, which is made if need be.

    Args:
        url: `sqlite:///FILE`.
        name: What to call it in an error, such as `output (--output)`.
        table: The table.

    Raises:
        ValueError: If the file cannot be used, or its table of that name has another shape.
    """
    engine = open_database(url, name)
    try:
        table.create(engine, checkfirst=True)
        inspector = inspect(engine)
        found = [column["name"] for column in inspector.get_columns(table.name)]
        key = inspector.get_pk_constraint(table.name)["constrained_columns"]
    except DatabaseError as error:
        engine.dispose()
        msg = f"{name} {url!r} cannot be used: {error.orig}"
        raise ValueError(msg) from error
    wanted = [column.name for column in table.columns]
    wanted_key = [column.name for column in table.primary_key]
    if set(found) != set(wanted) or key != wanted_key:
        engine.dispose()
        msg = (
            f"{name} {url!r} has a table {table.name!r} of another shape: columns "
            f"{', '.join(found)}, primary key {', '.join(key) or 'none'}, where "
            f"{', '.join(wanted)} and {', '.join(wanted_key)} are needed; name another file"
        )
        raise ValueError(msg)
    return engine


def _settle(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # what is committed outlives a loss of power
    cursor.close()


def without_login(url: str) -> str:
    """Gives a URL without what may be a password.

    Example:
        >>> without_login("postgresql://me:secret@host/db")
        'postgresql://host/db'
    """
    scheme, sign, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{sign}{host.rpartition('@')[2]}{slash}{path}"

"""The job's stores: SQLite files and PostgreSQL databases, opened in one way and checked."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, event, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
FORM: Final = (
    "sqlite:///FILE (four slashes for an absolute path) or postgresql://USER@HOST/DATABASE"
)

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

_BUSY_TIMEOUT_S: Final = 60
_CONNECT_TIMEOUT_S: Final = 10
_RETRY_S: Final = 120.0  # for how long a transient error is tried again
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")  # room for a suffix in PostgreSQL's 63
_SECRET: Final = re.compile(r"(?is)(\?(?:.*?&)?[^&=]*(?:pass|word|cret|oken|_key|auth|cred))=.*")

# https://www.postgresql.org/docs/15/errcodes-appendix.html: connections, conflicts of transactions,
# no room, shutdown.
_TRANSIENT_STATES: Final = ("08", "40", "53", "57P", "55P03")
_UNIQUE_VIOLATION: Final = "23505"
_TOO_LARGE: Final = ("54000", "54001")  # a key that no index takes, a value nested too deeply


def open_database(url: str, name: str, *, exists: bool = False) -> Engine:
    """Opens a database so that others can read while it is written, and commits last.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`.
        name: What to call it in an error, such as `output (--output)`.
        exists: Whether a file must be there already.

    Raises:
        ValueError: If the URL is no such thing, or a file cannot be written.
    """
    try:
        parsed = make_url(url)
        kind = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        msg = f"{name} must be a database URL, got {without_login(url)!r}; give {FORM}"
        raise ValueError(msg) from None  # the cause may show a password
    if kind == SQLITE and parsed.drivername in (SQLITE, "sqlite+pysqlite"):
        return _open_file(parsed, name, exists)
    if kind == POSTGRESQL and parsed.drivername in (POSTGRESQL, "postgresql+psycopg"):
        if "@" in (parsed.host or ""):
            msg = f"{name} has an @ in its login: write it as %40 (got {without_login(url)!r})"
            raise ValueError(msg)
        return _open_postgres(parsed, name)
    msg = f"{name} must be a SQLite file or PostgreSQL, got {without_login(url)!r}; give {FORM}"
    raise ValueError(msg)


@contextmanager
def looking(url: str, name: str) -> Iterator[Connection]:
    """Opens a database that is there, to look at it; nothing is made or changed by that.

    Args:
        url: The database, as for `open_database`.
        name: What to call it in an error, such as `output (--output)`.

    Raises:
        ValueError: If it is not there, or cannot be read.
    """
    engine = open_database(url, name, exists=True)
    try:
        with engine.connect() as connection:
            inspect(connection).has_table("any")  # SQLite looks at its file no sooner
            connection.rollback()
            yield connection
    except DatabaseError as error:
        msg = f"{name} {without_login(url)!r} cannot be used: {_first_line(error)}"
        raise ValueError(msg) from error
    finally:
        engine.dispose()


def _open_file(url: URL, name: str, exists: bool) -> Engine:
    shown = str(url)
    if url.database in (None, "", ":memory:"):
        msg = f"{name} must be a SQLite file, got {shown!r}; give {FORM}"
        raise ValueError(msg)
    folder = os.path.dirname(os.path.abspath(str(url.database)))
    if not exists and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        msg = f"{name} {shown!r} cannot be written: no writable folder {folder!r}"
        raise ValueError(msg)
    if exists and not os.path.exists(str(url.database)):
        msg = f"{name} {shown!r} is not there; give the one that a job has written"
        raise ValueError(msg)
    engine = create_engine(
        url, connect_args={"timeout": _BUSY_TIMEOUT_S}, hide_parameters=True
    )  # keys and values are nobody's business who reads a log
    if not exists:
        event.listen(engine, "connect", _settle)
    return engine


def _open_postgres(url: URL, name: str) -> Engine:
    arguments = {"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": "beam-lateness"}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            # A connection that is broken is found out before it is used, not by what uses it.
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={key: value for key, value in arguments.items() if key not in url.query},
        )
    except ImportError as error:
        msg = f"{name} is a PostgreSQL database, which needs: pip install 'beam-lateness[postgres]'"
        raise ValueError(msg) from error
    return engine


def open_table(url: str, name: str, *tables: Table) -> Engine:
    """Opens a database for some tables of it, which are made if need be.

    Args:
        url: The database, as for `open_database`.
        name: What to call it in an error, such as `output (--output)`.
        tables: The tables.

    Raises:
        ValueError: If the database cannot be used, or a table of that name has another shape.
    """
    engine = open_database(url, name)
    make_tables(engine, f"{name} {without_login(url)!r}", *tables)
    return engine


def make_tables(engine: Engine, shown: str, *tables: Table) -> None:
    """Makes tables that are not there, and looks at those that are.

    Args:
        engine: The database; its connections are closed if it cannot be used.
        shown: What to call it in an error.
        tables: The tables.

    Raises:
        ValueError: If the database cannot be used, or a table of that name has another shape.
    """
    try:
        for table in tables:
            _make(engine, table)
            _check_shape(engine, table, shown)
    except DatabaseError as error:
        engine.dispose()
        msg = f"{shown} cannot be used: {_first_line(error)}"
        raise ValueError(msg) from error
    except ValueError:
        engine.dispose()
        raise


def _make(engine: Engine, table: Table) -> None:
    try:
        table.create(engine, checkfirst=True)
    except DatabaseError:  # another process may have made it between the look and the making
        if not inspect(engine).has_table(table.name):
            raise


def _check_shape(engine: Engine, table: Table, shown: str) -> None:
    inspector = inspect(engine)
    found = [column["name"] for column in inspector.get_columns(table.name)]
    key = inspector.get_pk_constraint(table.name)["constrained_columns"]
    wanted = [column.name for column in table.columns]
    wanted_key = [column.name for column in table.primary_key]
    if set(found) != set(wanted) or key != wanted_key:
        msg = (
            f"{shown} has a table {table.name!r} of another shape: columns "
            f"{', '.join(found)}, primary key {', '.join(key) or 'none'}, where "
            f"{', '.join(wanted)} and {', '.join(wanted_key)} are needed; name another table "
            "(--table), file or database"
        )
        raise ValueError(msg)


def _settle(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=FULL")  # what is committed outlives a loss of power
    cursor.close()


def _use_wal(cursor: sqlite3.Cursor, sleep: Callable[[float], None] = time.sleep) -> None:
    """Waits by itself: of several that open a new file at once SQLite refuses all but one."""
    end = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "is locked" not in str(error) or time.monotonic() > end:
                raise
        else:
            return
        sleep(_FIRST_WAIT_S)


def insert_into(engine: Engine, table: Table) -> Any:
    """Gives an INSERT of the database's kind, which knows ON CONFLICT."""
    return (postgresql if engine.dialect.name == POSTGRESQL else sqlite).insert(table)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Opens a transaction that reads before it writes: on SQLite it is alone from its start."""
    with engine.begin() as connection:
        if engine.dialect.name == SQLITE:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def is_transient(error: SQLAlchemyError) -> bool:
    """Says whether the same statement may succeed later: no connection, a lock, a deadlock."""
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_TRANSIENT_STATES)
    if error.connection_invalidated:
        return True
    text = str(error.orig).lower()
    if "is locked" in text:  # not the name of a table
        return True
    # psycopg gives no state where there was no answer at all.
    return isinstance(error, OperationalError) and "psycopg" in type(error.orig).__module__


def retrying(
    act: Callable[[], _T],
    what: str,
    *,
    for_s: float = _RETRY_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _T:
    """Does something with a database, again and again while the errors are transient.

    Args:
        act: What to do; it must be a whole transaction.
        what: It in words, for the log.
        for_s: For how long it is tried again, in seconds.
        sleep: Waits for some seconds.
        clock: Tells seconds.

    Raises:
        SQLAlchemyError: The first that is not transient, or the last after `for_s`.
    """
    end, wait_s = clock() + for_s, _FIRST_WAIT_S
    while True:
        try:
            return act()
        except SQLAlchemyError as error:
            if not is_transient(error) or clock() + wait_s > end:
                raise
            _LOG.warning("%s is tried again in %g s: %s", what, wait_s, _first_line(error))
        sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def write_or_refuse(
    items: Sequence[_T], write: Callable[[Sequence[_T]], None], what: str
) -> list[tuple[_T, str]]:
    """Writes items in a transaction; where the database refuses one for what it holds, the others.

    Args:
        items: What to write.
        write: Writes some of them, in a transaction.
        what: It in words, for the log.

    Returns:
        The items that are refused, each with what the database says.

    Raises:
        SQLAlchemyError: If the database cannot be written.
    """
    if not items:
        return []
    try:
        retrying(lambda: write(items), what)
    except (StatementError, UnicodeError, OverflowError, TypeError) as error:
        if not _is_refusal(error):
            raise
        if len(items) == 1:
            return [(items[0], _first_line(error))]
        half = len(items) // 2
        return [
            *write_or_refuse(items[:half], write, what),
            *write_or_refuse(items[half:], write, what),
        ]
    return []


def _is_refusal(error: Exception) -> bool:
    """Whether an error is of what a row holds, and of nothing else."""
    if not isinstance(error, DBAPIError):
        return True
    if isinstance(error, (InterfaceError, ProgrammingError)):  # a type that no column takes
        text = str(error.orig)
        return getattr(error.orig, "sqlstate", None) is None and (
            "adapt" in text or "binding" in text
        )
    if getattr(error.orig, "sqlstate", None) in _TOO_LARGE:
        return True
    return isinstance(error, (DataError, IntegrityError)) and not (
        _is_double(error) or is_transient(error)
    )


def _is_double(error: DBAPIError) -> bool:
    """Whether a key is there already: where it may be, rows are replaced, so a table is broken."""
    state = getattr(error.orig, "sqlstate", None)
    return state == _UNIQUE_VIOLATION or "UNIQUE constraint" in str(error.orig)


def check_name(name: str, what: str) -> str:
    """Gives the name of a table, if it is one that needs no quotes.

    Raises:
        ValueError: If it is not.

    Example:
        >>> check_name("settlement", "table (--table)")
        'settlement'
    """
    if not _NAME.fullmatch(name):
        msg = (
            f"{what} must be a letter and up to 47 letters, digits or underscores more, "
            f"got {name!r}"
        )
        raise ValueError(msg)
    return name


def is_database(url: str) -> bool:
    """Says whether a URL means a database.

    Example:
        >>> is_database("postgresql://host/db"), is_database("kafka://host/topic")
        (True, False)
    """
    return url.partition("://")[0].partition("+")[0] in (SQLITE, POSTGRESQL, "postgres")


def without_login(url: str) -> str:
    """Gives a URL without what may be a password: the login, and settings that sound like one.

    Example:
        >>> without_login("postgresql://me:secret@host/db?sslmode=require&password=secret")
        'postgresql://host/db?sslmode=require&password=***'
    """
    scheme, sign, rest = url.partition("://")
    if not re.fullmatch(r"[\w+.-]*", scheme):
        scheme, sign, rest = "", "", url
    rest = _SECRET.sub(r"\1=***", rest)  # to the end: a password may hold an &
    login, _, place = rest.rpartition("@")  # or an @, a slash, a question mark
    is_path = rest.startswith("/") and scheme.partition("+")[0] in ("", "file", SQLITE)
    if not is_path and (sign or ":" in login):  # a file's path may hold an @ too
        rest = place
    return f"{scheme}{sign}{rest}"


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, StatementError) and error.orig else error
    return str(cause).strip().partition("\n")[0]

"""Opening a database, trying again, telling a refusal from an outage, and hiding passwords."""

from __future__ import annotations

import itertools
import sqlite3
import traceback
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors
from sqlalchemy import text
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)

from beam_lateness import UpsertPanes
from beam_lateness.transforms.database import (
    _use_wal,
    check_name,
    is_database,
    is_transient,
    open_database,
    retrying,
    without_login,
    write_or_refuse,
    writing,
)
from tests.transforms.sinks.databases import (
    empty_database,  # noqa: F401  (pytest finds the fixture here)
    empty_schema,
    execute,
    is_postgres,
)

if TYPE_CHECKING:
    from services.postgres_server import PostgresServer

LOCKED: Final = OperationalError("", {}, sqlite3.OperationalError("database is locked"))
GONE: Final = OperationalError("", {}, sqlite3.OperationalError("no such table: locked"))
BAD: Final = DataError("", {}, errors.InvalidTextRepresentation("invalid input syntax"))
TOKEN: Final = "s3cr3t"


class Clock:
    """A clock that sleeping advances, and nothing else."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Sleeps."""
        self.slept.append(seconds)
        self.now += seconds


class Act:
    """Fails some times, and then gives how often it was called."""

    def __init__(self, failures: int, error: SQLAlchemyError = LOCKED) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return self.calls


def test_the_waits_double_from_a_tenth_of_a_second_up_to_ten() -> None:
    """And then it goes on every ten seconds."""
    clock = Clock()
    assert retrying(Act(10), "writing", sleep=clock.sleep, clock=clock) == 11
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert clock.slept == pytest.approx(expected)


@given(for_s=st.floats(0, 200), each_s=st.floats(0, 30))
def test_it_ends_after_so_many_seconds_and_not_before(for_s: float, each_s: float) -> None:
    """With the last error; an attempt that takes long counts."""
    clock, calls = Clock(), 0

    def act() -> None:
        nonlocal calls
        calls += 1
        clock.now += each_s
        raise LOCKED

    with pytest.raises(OperationalError, match="is locked"):
        retrying(act, "writing", for_s=for_s, sleep=clock.sleep, clock=clock)
    next_wait = min(0.1 * 2 ** len(clock.slept), 10)
    assert calls == len(clock.slept) + 1
    assert sum(clock.slept) + each_s * (calls - 1) <= for_s + 1e-6
    assert clock.now + next_wait > 1000 + for_s - 1e-6


def test_by_default_it_ends_after_two_minutes() -> None:
    """As the transforms say."""
    clock = Clock()
    with pytest.raises(OperationalError):
        retrying(Act(99), "writing", sleep=clock.sleep, clock=clock)
    assert 110 < sum(clock.slept) <= 120


@pytest.mark.parametrize("error", [GONE, BAD], ids=["gone", "refused"])
def test_an_error_that_stays_is_raised_at_once(error: SQLAlchemyError) -> None:
    """It is not tried again."""
    clock, act = Clock(), Act(1, error)
    with pytest.raises(type(error)):
        retrying(act, "writing", sleep=clock.sleep, clock=clock)
    assert (act.calls, clock.slept) == (1, [])


def test_an_error_that_stays_ends_the_retries_of_one_that_may_pass() -> None:
    """The table is dropped while the database is locked."""
    clock, found = Clock(), iter([LOCKED, LOCKED, GONE])

    def act() -> None:
        raise next(found)

    with pytest.raises(OperationalError, match="no such table"):
        retrying(act, "writing", sleep=clock.sleep, clock=clock)
    assert len(clock.slept) == 2


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (errors.DeadlockDetected(), True),
        (errors.SerializationFailure(), True),
        (errors.AdminShutdown(), True),
        (errors.CannotConnectNow(), True),
        (errors.TooManyConnections(), True),
        (errors.DiskFull(), True),
        (errors.ConnectionFailure(), True),
        (errors.LockNotAvailable(), True),
        (psycopg.OperationalError("the connection is closed"), True),
        (errors.UndefinedTable(), False),
        (errors.InsufficientPrivilege(), False),
        (errors.NotNullViolation(), False),
        (errors.InvalidTextRepresentation(), False),
        (errors.QueryCanceled(), False),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL"), False),
        (sqlite3.OperationalError("database is locked"), True),
        (sqlite3.OperationalError("database table is locked: windows"), True),
        (sqlite3.OperationalError("no such table: busy_locked"), False),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
    ids=repr,
)
def test_what_may_pass_is_told_by_the_code_of_the_database(
    error: Exception, transient: bool
) -> None:
    """Connections, locks, conflicts and lack of room; not what a table is or a row holds."""
    kind = psycopg.OperationalError, sqlite3.OperationalError
    wrapped = (OperationalError if isinstance(error, kind) else DatabaseError)("", {}, error)
    assert is_transient(wrapped) is transient


@given(bad=st.lists(st.booleans(), max_size=40))
def test_of_any_batch_just_the_bad_items_are_refused(bad: list[bool]) -> None:
    """By halves: the good ones are written once each, a bad one costs few attempts."""
    written: list[int] = []
    attempts = itertools.count()

    def write(items: object) -> None:
        next(attempts)
        assert isinstance(items, list)
        if any(bad[item] for item in items):
            raise BAD
        written.extend(items)

    refused = write_or_refuse(list(range(len(bad))), write, "writing")
    assert [item for item, _ in refused] == [n for n, is_bad in enumerate(bad) if is_bad]
    assert all(detail == "invalid input syntax" for _, detail in refused)
    assert written == [n for n, is_bad in enumerate(bad) if not is_bad]
    assert next(attempts) <= 1 + sum(bad) * 2 * 6  # 2 ** 6 > 40


@pytest.mark.parametrize(
    "error",
    [
        GONE,
        ProgrammingError("", {}, errors.UndefinedTable()),
        ProgrammingError("", {}, errors.InsufficientPrivilege()),
        IntegrityError("", {}, errors.UniqueViolation()),
        IntegrityError("", {}, sqlite3.IntegrityError("UNIQUE constraint failed: a.seq")),
    ],
    ids=["no table", "no relation", "no permission", "double", "double in SQLite"],
)
def test_a_fault_of_the_table_is_no_refusal(error: DBAPIError) -> None:
    """Else all panes would end as dead letters."""
    act = Act(99, error)

    def write(_: object) -> None:
        act()

    with pytest.raises(type(error)):
        write_or_refuse([1, 2, 3], write, "writing")
    assert act.calls == 1


def test_what_is_read_in_a_transaction_that_writes_is_still_so_when_it_writes(url: str) -> None:
    """On SQLite nobody else begins one meanwhile; on PostgreSQL rows are locked for that."""
    execute(url, "CREATE TABLE numbers (n BIGINT)", "INSERT INTO numbers VALUES (0)")
    engine, other = open_database(url, "url"), open_database(url, "url")
    lock = " FOR UPDATE" if is_postgres(url) else ""
    patience = "SET lock_timeout = 10" if is_postgres(url) else "PRAGMA busy_timeout = 10"
    with writing(engine) as connection:
        (found,) = connection.execute(text(f"SELECT n FROM numbers{lock}")).one()
        with other.connect() as second:
            second.execute(text(patience))
            with pytest.raises(OperationalError) as caught:
                second.execute(text("UPDATE numbers SET n = 7"))
        assert is_transient(caught.value)
        connection.execute(text("UPDATE numbers SET n = :n"), {"n": found + 1})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM numbers")).one() == (1,)
    engine.dispose()
    other.dispose()


def test_a_table_of_another_shape_is_refused_with_both_named(url: str) -> None:
    """What it has and what it must have; and the password is not shown."""
    execute(url, "CREATE TABLE windows (mine TEXT PRIMARY KEY, more TEXT)")
    complaint = "'windows' of another shape: columns mine, more, primary key mine, where key, "
    with pytest.raises(ValueError, match=complaint) as caught:
        UpsertPanes(url, "run-1")
    shown = str(caught.value)
    assert without_login(url) in shown
    assert "reconciled" in shown
    if is_postgres(url):
        assert url.partition("@")[0].rpartition(":")[2] not in shown


@pytest.mark.live
@pytest.mark.parametrize("kinds", [("number", "json"), ("json", "number")])
def test_a_table_of_other_values_is_refused_with_both_named(
    postgres_server: PostgresServer, kinds: tuple[str, str]
) -> None:
    """A column of numbers takes no object, and one of JSON no sum over it."""
    there, wanted = kinds
    url = empty_schema(postgres_server)
    UpsertPanes(url, "run-1", values=there)
    complaint = rf"holds values of the kind '{there}'.* '{wanted}'.*name another table"
    with pytest.raises(ValueError, match=complaint) as caught:
        UpsertPanes(url, "run-1", values=wanted)
    assert postgres_server.password not in str(caught.value)


@pytest.mark.live
def test_a_wrong_password_is_refused_and_not_shown(postgres_server: PostgresServer) -> None:
    """At construction, with what the server says."""
    url = postgres_server.url().replace(postgres_server.password, TOKEN)
    with pytest.raises(ValueError, match=r"cannot be used: .*authentication failed") as caught:
        UpsertPanes(url, "run-1")
    assert TOKEN not in str(caught.value)


PASSWORDS = (
    st.lists(st.sampled_from(["@", "/", "?", "&", "=", ":", "#", "%", "x"]), max_size=6)
    .map(lambda signs: [*signs, TOKEN])
    .flatmap(st.permutations)
    .map("".join)
)
URLS = st.one_of(
    st.builds("postgresql://me:{}@host/db".format, PASSWORDS),
    st.builds("postgresql://me:{}@host:5432/db?sslmode=require".format, PASSWORDS),
    st.builds("postgresql+psycopg://:{}@host".format, PASSWORDS),
    st.builds("postgresql://host/db?password={}".format, PASSWORDS),
    st.builds("postgresql:///db?sslmode=require&sslpassword={}".format, PASSWORDS),
    st.builds("postgresql://host:5432?user=me&password={}&sslmode=require".format, PASSWORDS),
    st.builds("postgresql://me:{}@host/db?password={}".format, PASSWORDS, PASSWORDS),
    st.builds("me:{}@host/db".format, PASSWORDS),
)


@given(url=URLS)
def test_a_url_without_its_login_shows_no_password(url: str) -> None:
    """Whatever signs it holds, quoted or not, and wherever it stands."""
    assert TOKEN not in without_login(url)


@given(url=URLS)
def test_no_error_of_a_url_shows_a_password(url: str) -> None:
    """Nor does its cause."""
    try:
        open_database(url, "output (--output)").dispose()
    except ValueError as error:
        shown = "".join(traceback.format_exception(error))
    else:
        shown = ""
    assert TOKEN not in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:a@b/c?d&e@host/db", "postgresql://host/db"),
        ("postgresql://me@host:1/db?sslmode=on", "postgresql://host:1/db?sslmode=on"),
        ("postgresql://host/db?password=a&b=c", "postgresql://host/db?password=***"),
        ("sqlite:////data/me@home/db", "sqlite:////data/me@home/db"),
        ("data/me@home.jsonl", "data/me@home.jsonl"),
        ("windows.db", "windows.db"),
        ("", ""),
    ],
)
def test_what_is_no_password_is_shown(url: str, shown: str) -> None:
    """It says which database is meant."""
    assert without_login(url) == shown


@given(name=st.text("aZ_09é-. \n;\"'", max_size=4) | st.text("a", min_size=45, max_size=52))
def test_a_name_of_a_table_needs_no_quotes(name: str) -> None:
    """A letter or underscore, then 47 more or digits; others are refused with the flag's name."""
    fine = 1 <= len(name) <= 48 and name.isascii() and name.isidentifier()
    if fine:
        assert check_name(name, "table (--table)") == name
        return
    with pytest.raises(ValueError, match=r"^table \(--table\) must be a letter") as caught:
        check_name(name, "table (--table)")
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("sqlite:///a", True),
        ("postgresql+psycopg://h/d", True),
        ("postgres://h/d", True),
        ("kafka://h/t", False),
        ("sqlite.db", False),
    ],
)
def test_a_database_is_known_by_its_scheme(url: str, is_one: bool) -> None:
    """So that a topic is not opened as one."""
    assert is_database(url) is is_one


def test_a_file_is_opened_so_that_others_may_read(tmp_path: Path) -> None:
    """In WAL mode."""
    engine = open_database(f"sqlite:///{tmp_path}/db", "url")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).one() == ("wal",)
    engine.dispose()


def test_a_new_file_that_another_opens_too_is_waited_for(tmp_path: Path) -> None:
    """Of those that set its mode at once, SQLite refuses all but one, whatever their timeout."""
    with (
        closing(sqlite3.connect(tmp_path / "db")) as other,
        closing(sqlite3.connect(tmp_path / "db", timeout=0)) as mine,
    ):
        other.execute("CREATE TABLE numbers (n)")
        other.execute("BEGIN EXCLUSIVE")
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 2:
                other.rollback()

        _use_wal(mine.cursor(), sleep)
        assert len(slept) == 2
        assert mine.execute("PRAGMA journal_mode").fetchone() == ("wal",)

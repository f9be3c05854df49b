"""Looks whether an audit trail is whole, and whether the table says what the trail says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, and_, case, func, inspect, select

from beam_lateness.transforms.database import SQLITE, looking, without_login
from beam_lateness.transforms.sinks.audit_trail import FIRST_HASH, AuditTrail, Entry, value_text
from beam_lateness.transforms.sinks.window_table import (
    RETRACTION,
    TABLE_NAME,
    values_of,
    windows_table,
)

_SHOWN: Final = 100
_OF_PANES: Final = ("on_time", "late")  # causes; `Pane.timing` in small letters


class AuditResult(NamedTuple):
    """What `verify_audit` found.

    Args:
        entries: How many entries there are.
        head: The last one's number and hash, `SEQ:HASH`: kept elsewhere, it proves later that
            nothing before it was touched.
        problems: What is wrong, an entry or a row each; the first 100.
    """

    entries: int
    head: str
    problems: tuple[str, ...]


def verify_audit(url: str, table: str = TABLE_NAME, head: str | None = None) -> AuditResult:
    """Finds entries of an audit trail that were changed, removed or inserted, and rows that differ.

    It looks at the state of one moment, so a job may go on writing meanwhile.

    Args:
        url: The database.
        table: The table that is audited.
        head: A head that was noted earlier, `SEQ:HASH`; the trail must still go through it. The
            chain itself cannot show that somebody who may write the database made all of it anew.

    Raises:
        ValueError: If the database cannot be used or has no such trail, or `head` is none.
    """
    number, expected = _parse(head)
    with reading_trail(url, table) as (trail, connection):
        problems: list[str] = []
        count, last = 0, Entry(0, 0, None, "", FIRST_HASH)  # type: ignore[arg-type]
        noted = last.hash if number == 0 else None
        for entry in trail.read(connection):
            count += 1
            problems += _check(entry, last)
            if entry.seq == number:
                noted = entry.hash
            last = entry
        if number is not None and noted is None:
            problems.append(f"entry {number}, which was noted, is gone")
        elif number is not None and noted != expected:
            problems.append(f"entry {number} is not the one that was noted: {noted}")
        problems += _check_head(connection, trail, last)
        problems += _compare(connection, table, trail)
        shown = (_printable(problem) for problem in problems[:_SHOWN])
        return AuditResult(count, _printable(f"{last.seq}:{last.hash}"), tuple(shown))


def audit_head(url: str, table: str = TABLE_NAME) -> str:
    """Gives the head of an audit trail, `SEQ:HASH`, to be noted elsewhere.

    Args:
        url: The database.
        table: The table that is audited.

    Raises:
        ValueError: If the database cannot be used or has no such trail.
        RuntimeError: If the head is gone.
    """
    with reading_trail(url, table) as (trail, connection):
        seq, last = trail.read_head(connection)
    return f"{seq}:{last}"


@contextmanager
def reading_trail(url: str, table: str) -> Iterator[tuple[AuditTrail, Connection]]:
    """Opens the trail of a table, and a connection that sees the state of one moment.

    Args:
        url: The database.
        table: The table that is audited.

    Raises:
        ValueError: If the database cannot be used or has no such trail.
    """
    trail = AuditTrail.of(table)
    with looking(url, "output (--output)") as connection:
        connection = _snapshot(connection)
        found = inspect(connection)
        missing = [each.name for each in trail.tables if not found.has_table(each.name)]
        if missing:
            msg = (
                f"{without_login(url)!r} has no audit trail of {table!r} (--table): no table "
                f"{missing[0]!r}; one is written with --audit=true"
            )
            raise ValueError(msg)
        yield trail, connection


def _snapshot(connection: Connection) -> Connection:
    """Makes a connection see the state of one moment."""
    if connection.dialect.name != SQLITE:
        return connection.execution_options(isolation_level="REPEATABLE READ")
    driver: Any = connection.connection.driver_connection
    driver.text_factory = _text  # one text that is no UTF-8 must not hide all the others
    connection.exec_driver_sql("BEGIN")
    return connection


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _parse(head: str | None) -> tuple[int | None, str]:
    if head is None:
        return None, ""
    number, sign, expected = head.partition(":")
    if not sign or not number.isdecimal() or len(expected) != len(FIRST_HASH):
        msg = f"head (--head) must be SEQ:HASH as `audit verify` shows it, got {head!r}"
        raise ValueError(msg)
    return int(number), expected


def _check(entry: Entry, last: Entry) -> Iterator[str]:
    # SQLite takes a text as a number too.
    numbered = isinstance(entry.seq, int) and isinstance(last.seq, int)
    if not numbered or entry.seq <= last.seq:
        yield f"entry {entry.seq!r} follows entry {last.seq!r}: one of them was inserted or changed"
    elif entry.seq != last.seq + 1:
        yield f"entries {last.seq + 1} to {entry.seq - 1} are gone"
    elif entry.previous != last.hash:
        yield f"entry {entry.seq} does not follow entry {last.seq}: one of them was changed"
    if Entry.of(entry.seq, entry.at_ms, entry.change, entry.previous).hash != entry.hash:
        yield f"entry {entry.seq} was changed"


def _check_head(connection: Connection, trail: AuditTrail, last: Entry) -> Iterator[str]:
    """Holds the head to the last entry: it is the one row of its table."""
    heads = [(row.seq, row.hash) for row in connection.execute(select(trail.head))]
    try:
        told = trail.read_head(connection)
    except RuntimeError as error:
        yield str(error)
        return
    if len(heads) > 1:
        yield f"the trail ends with entry {last.seq}, and has {len(heads)} heads"
    if told != (last.seq, last.hash):
        yield (
            f"the trail ends with entry {last.seq}, and its head says {told[0]}: entries at the "
            "end were removed, inserted or changed"
        )


def _compare(connection: Connection, name: str, trail: AuditTrail) -> Iterator[str]:
    """Holds the rows of the table to the last entries of their key and window."""
    if not inspect(connection).has_table(name):
        yield f"the table {name!r} is gone"
        return
    for row in _pairs(connection, name, trail):
        cell = f"key {row.key!r}, window {row.window_start_ms}"
        if row.seq is None:
            yield f"{cell}: the table has a row, the trail has no entry"
        elif row.row_key is None:
            if row.new_value is not None:
                yield f"{cell}: the row is gone; by entry {row.seq} it is {row.new_value}"
        elif not _is_same(row.new_value, row.value) or row.new_count != row.count:
            yield (
                f"{cell}: the row has {value_text(row.value)} of {row.count} records, by entry "
                f"{row.seq} it is {row.new_value} of {row.new_count}"
            )
        else:
            for column, found, told in _others(row):
                if found != told:
                    yield (
                        f"{cell}: the row has {column} {found!r}, by entry {row.seq} it is {told!r}"
                    )


def _others(row: Any) -> Iterator[tuple[str, Any, Any]]:
    """Gives the columns that follow from the trail: what the row has, and what it must have."""
    yield "window_end_ms", row.window_end_ms, row.told_end_ms
    yield "pane_index", row.pane_index, row.told_index
    of_pane = row.base_cause in _OF_PANES
    before = row.base_count if of_pane and isinstance(row.base_count, int) else 0
    yield "reconciled", row.reconciled, row.count - before
    timing = row.cause if row.cause in _OF_PANES else "reconciled"
    yield "timing", row.timing, timing.upper()
    if of_pane:  # else the run is that of the first dead letter, which no entry has
        yield "run", row.run, row.base_run


def _is_same(told: str | None, value: Any) -> bool:
    """Whether a row has the value of an entry; a database may write a number in another way."""
    return told is not None and _plain(told) == _plain(value_text(value))


def _plain(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_constant)
    except (ValueError, RecursionError):  # not of ours
        return text


def _constant(text: str) -> str:
    return str(float(text))  # as the table has it


def _pairs(connection: Connection, name: str, trail: AuditTrail) -> Iterator[Any]:
    """Gives each row with the last entry of its cell and its base.

    The base is what reconciliation was added to: the last entry of a pane, or a retraction.
    """
    rows, entries = windows_table(name, values_of(connection, name)), trail.entries
    base = entries.alias("base")
    bases = case((entries.c.cause.in_((*_OF_PANES, RETRACTION)), entries.c.seq))
    latest = (
        select(
            entries.c.key,
            entries.c.window_start_ms,
            func.max(entries.c.seq).label("seq"),
            func.max(bases).label("base_seq"),
        )
        .group_by(entries.c.key, entries.c.window_start_ms)
        .subquery()
    )
    same = and_(rows.c.key == latest.c.key, rows.c.window_start_ms == latest.c.window_start_ms)
    shown = (rows.c.key.label("row_key"), rows.c.value, rows.c.count)
    others = (rows.c.window_end_ms, rows.c.reconciled, rows.c.pane_index, rows.c.timing, rows.c.run)
    told = (
        entries.c.seq,
        entries.c.new_value,
        entries.c.new_count,
        entries.c.cause,
        entries.c.window_end_ms.label("told_end_ms"),
        entries.c.pane_index.label("told_index"),
        base.c.cause.label("base_cause"),
        base.c.new_count.label("base_count"),
        base.c.run.label("base_run"),
    )
    connection = connection.execution_options(yield_per=1000)
    yield from connection.execute(
        select(latest.c.key, latest.c.window_start_ms, *shown, *others, *told)
        .join(entries, entries.c.seq == latest.c.seq)
        .outerjoin(base, base.c.seq == latest.c.base_seq)
        .outerjoin(rows, same)
        .order_by(latest.c.seq)
    )
    yield from connection.execute(
        select(rows.c.key, rows.c.window_start_ms, *shown, latest.c.seq)
        .outerjoin(latest, same)
        .where(latest.c.seq.is_(None))
    )

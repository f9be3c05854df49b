"""Looks whether an audit trail is whole, and whether the table says what the trail says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, and_, func, inspect, select

from beam_lateness.transforms.database import open_database, without_login
from beam_lateness.transforms.sinks.audit_trail import FIRST_HASH, AuditTrail, Entry, value_text
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, values_of, windows_table

_SHOWN: Final = 100


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

    Args:
        url: The database.
        table: The table that is audited.
        head: A head that was noted earlier, `SEQ:HASH`; the trail must still go through it. The
            chain itself cannot show that somebody who may write the database made all of it anew.

    Raises:
        ValueError: If the database cannot be used or has no such trail, or `head` is none.
    """
    number, expected = _parse(head)
    engine = open_database(url, "output (--output)")
    try:
        trail = AuditTrail.of(table)
        missing = [each.name for each in trail.tables if not inspect(engine).has_table(each.name)]
        if missing:
            msg = f"{without_login(url)!r} has no audit trail of {table!r}: no table {missing[0]!r}"
            raise ValueError(msg)
        with engine.connect() as connection:
            problems: list[str] = []
            count, last = 0, Entry(0, 0, None, "", FIRST_HASH)  # type: ignore[arg-type]
            for entry in trail.read(connection):
                count += 1
                problems += _check(entry, last)
                if entry.seq == number and entry.hash != expected:
                    problems.append(f"entry {number} is not the one that was noted: {entry.hash}")
                last = entry
            if number is not None and number > last.seq:
                problems.append(f"entry {number}, which was noted, is gone")
            told = trail.read_head(connection)
            if told != (last.seq, last.hash):
                problems.append(
                    f"the trail ends with entry {last.seq}, and its head says {told[0]}: entries "
                    "at the end were removed, inserted or changed"
                )
            problems += _compare(connection, table, trail)
        return AuditResult(count, f"{last.seq}:{last.hash}", tuple(problems[:_SHOWN]))
    finally:
        engine.dispose()


def _parse(head: str | None) -> tuple[int | None, str]:
    if head is None:
        return None, ""
    number, sign, expected = head.partition(":")
    if not sign or not number.isdecimal() or len(expected) != len(FIRST_HASH):
        msg = f"head (--head) must be SEQ:HASH as `audit verify` shows it, got {head!r}"
        raise ValueError(msg)
    return int(number), expected


def _check(entry: Entry, last: Entry) -> Iterator[str]:
    if entry.seq != last.seq + 1:
        yield f"entries {last.seq + 1} to {entry.seq - 1} are gone"
    elif entry.previous != last.hash:
        yield f"entry {entry.seq} does not follow entry {last.seq}: one of them was changed"
    if Entry.of(entry.seq, entry.at_ms, entry.change, entry.previous).hash != entry.hash:
        yield f"entry {entry.seq} was changed"


def _compare(connection: Connection, name: str, trail: AuditTrail) -> Iterator[str]:
    """Holds the rows of the table to the last entries of their key and window."""
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


def _is_same(told: str | None, value: Any) -> bool:
    """Whether a row has the value of an entry; a database may write a number in another way."""
    return told is not None and _plain(told) == _plain(value_text(value))


def _plain(text: str) -> Any:
    read = json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=str)
    return read if isinstance(read, (Decimal, dict)) else text


def _pairs(connection: Connection, name: str, trail: AuditTrail) -> Iterator[Any]:
    rows, entries = windows_table(name, values_of(connection, name)), trail.entries
    latest = (
        select(entries.c.key, entries.c.window_start_ms, func.max(entries.c.seq).label("seq"))
        .group_by(entries.c.key, entries.c.window_start_ms)
        .subquery()
    )
    same = and_(rows.c.key == latest.c.key, rows.c.window_start_ms == latest.c.window_start_ms)
    shown = (rows.c.key.label("row_key"), rows.c.value, rows.c.count)
    told = (entries.c.seq, entries.c.new_value, entries.c.new_count)
    connection = connection.execution_options(yield_per=1000)
    yield from connection.execute(
        select(latest.c.key, latest.c.window_start_ms, *shown, *told)
        .join(entries, entries.c.seq == latest.c.seq)
        .outerjoin(rows, same)
        .order_by(latest.c.seq)
    )
    yield from connection.execute(
        select(rows.c.key, rows.c.window_start_ms, *shown, latest.c.seq)
        .outerjoin(latest, same)
        .where(latest.c.seq.is_(None))
    )

"""The audit trail of a table of windows: each change an entry, chained by hashes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    insert,
    select,
    update,
)

from beam_lateness.transforms.database import insert_into
from beam_lateness.transforms.sinks.window_values import plain

FIRST_HASH: Final = "0" * 64
_HEAD: Final = 1  # the one row of the head's table
_SUFFIX: Final = "_audit"


class Change(NamedTuple):
    """A change of one key and window.

    Args:
        key: The key, as text.
        window_start_ms: Start of the window, ms.
        window_end_ms: End of it, ms.
        old_value: The value before, as JSON; None if there was no row.
        new_value: The value afterwards; None if the row is gone.
        delta: By how much it changed, as JSON; None where that is no number.
        old_count: How many records it stood on; 0 if there was no row.
        new_count: How many it stands on.
        pane_index: The pane's index.
        cause: `on_time`, `late`, `reconciliation`, or `retraction` (an interrupted run's row that
            no record supports any more).
        source: What it came from, as JSON: the ids of late records, dead letter files.
        run: The run whose pane it was, or the reconciliation.
        watermark_ms: The least that the exclusive watermark was, ms; None where it is not known.
    """

    key: str
    window_start_ms: int
    window_end_ms: int
    old_value: str | None
    new_value: str | None
    delta: str | None
    old_count: int
    new_count: int
    pane_index: int
    cause: str
    source: str | None
    run: str
    watermark_ms: int | None

    @staticmethod
    def of(
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        cause: str,
        watermark_ms: int | None,
        source: Mapping[str, Any] | None,
        run: str | None = None,
    ) -> Change:
        """Makes it of a row of the table before and afterwards; one of them may be missing."""
        row = after or before
        assert row is not None  # noqa: S101 (a change has a row on one side)
        old = None if before is None else before["value"]
        new = None if after is None else after["value"]
        return Change(
            row["key"],
            row["window_start_ms"],
            row["window_end_ms"],
            None if before is None else value_text(old),
            None if after is None else value_text(new),
            _delta(old, new),
            0 if before is None else before["count"],
            0 if after is None else after["count"],
            row["pane_index"],
            cause,
            None if source is None else _json(source),
            run or row["run"],
            watermark_ms,
        )


class Entry(NamedTuple):
    """An entry of the trail.

    Args:
        seq: Its number: 1, 2, 3 ...
        at_ms: When it was made, ms since the epoch.
        change: What changed.
        previous: The hash of the entry before.
        hash: SHA-256 of all of that, as hexadecimal digits.
    """

    seq: int
    at_ms: int
    change: Change
    previous: str
    hash: str

    @staticmethod
    def of(seq: int, at_ms: int, change: Change, previous: str) -> Entry:
        """Makes an entry that follows the one with the hash `previous`."""
        text = _json([seq, at_ms, *change, previous], default=_foreign)
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        return Entry(seq, at_ms, change, previous, digest)


class AuditTrail:
    """The tables of a trail: its entries, and its head, which says how many there must be.

    A writer holds the head from the start of its transaction to the end, so that entries are made
    one after the other, each with the value that it replaced.

    Args:
        entries: The entries.
        head: The number and the hash of the last one.
        clock: Tells seconds since the epoch.
    """

    def __init__(self, entries: Table, head: Table, clock: Callable[[], float] = time.time) -> None:
        self.entries = entries
        self.head = head
        self._clock = clock

    @staticmethod
    def of(table: str) -> AuditTrail:
        """Gives the trail of a table by its name."""
        metadata = MetaData()
        entries = Table(
            f"{table}{_SUFFIX}",
            metadata,
            Column("seq", BigInteger, primary_key=True, autoincrement=False),
            Column("at_ms", BigInteger, nullable=False),
            Column("key", Text, nullable=False),
            Column("window_start_ms", BigInteger, nullable=False),
            Column("window_end_ms", BigInteger, nullable=False),
            Column("old_value", Text),
            Column("new_value", Text),
            Column("delta", Text),
            Column("old_count", BigInteger, nullable=False),
            Column("new_count", BigInteger, nullable=False),
            Column("pane_index", BigInteger, nullable=False),
            Column("cause", Text, nullable=False),
            Column("source", Text),
            Column("run", Text, nullable=False),
            Column("watermark_ms", BigInteger),
            Column("previous", Text, nullable=False),
            Column("hash", Text, nullable=False),
        )
        head = Table(
            f"{table}{_SUFFIX}_head",
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("seq", BigInteger, nullable=False),
            Column("hash", Text, nullable=False),
        )
        return AuditTrail(entries, head)

    @property
    def tables(self) -> tuple[Table, Table]:
        """Both tables."""
        return self.entries, self.head

    def begin(self, engine: Engine) -> None:
        """Makes the head of an empty trail, if there is none.

        Raises:
            ValueError: If entries go beyond the head, so that none can follow it.
        """
        first = insert_into(engine, self.head).values(id=_HEAD, seq=0, hash=FIRST_HASH)
        with engine.begin() as connection:
            connection.execute(first.on_conflict_do_nothing())
            seq, _ = self.read_head(connection, lock=True)
            beyond = select(self.entries.c.seq).where(self.entries.c.seq > seq).limit(1)
            if connection.execute(beyond).first() is not None:
                msg = (
                    f"the audit trail {self.entries.name!r} goes beyond its head, entry {seq}: it "
                    "was changed by hand; see `beam-lateness audit verify`, and name another table "
                    "(--table)"
                )
                raise ValueError(msg)

    def lock(self, connection: Connection) -> None:
        """Keeps all other writers of the trail out until the transaction ends."""
        self.read_head(connection, lock=True)

    def read_head(self, connection: Connection, *, lock: bool = False) -> tuple[int, str]:
        """Gives the number and the hash of the last entry, as the head has them."""
        query = select(self.head.c.seq, self.head.c.hash).where(self.head.c.id == _HEAD)
        row = connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            msg = f"the head of the audit trail is gone: table {self.head.name!r} is empty"
            raise RuntimeError(msg)
        return row.seq, row.hash

    def append(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Appends entries, in the transaction of the changes; the trail must be locked."""
        if not changes:
            return
        seq, last = self.read_head(connection)
        at_ms = int(self._clock() * 1000)
        rows = []
        for change in changes:
            entry = Entry.of(seq + 1, at_ms, change, last)
            seq, last = entry.seq, entry.hash
            rows.append(
                {
                    "seq": seq,
                    "at_ms": at_ms,
                    **change._asdict(),
                    "previous": entry.previous,
                    "hash": last,
                }
            )
        connection.execute(insert(self.entries), rows)
        connection.execute(
            update(self.head).where(self.head.c.id == _HEAD).values(seq=seq, hash=last)
        )

    def read(
        self, connection: Connection, *, key: str | None = None, window_start_ms: int | None = None
    ) -> Iterator[Entry]:
        """Gives the entries in their order, of all or of one key or window."""
        columns = self.entries.c
        query = select(self.entries).order_by(columns.seq)
        if key is not None:
            query = query.where(columns.key == key)
        if window_start_ms is not None:
            query = query.where(columns.window_start_ms == window_start_ms)
        for row in connection.execution_options(yield_per=1000).execute(query):
            change = Change(*(getattr(row, name) for name in Change._fields))
            yield Entry(row.seq, row.at_ms, change, row.previous, row.hash)


def value_text(value: Any) -> str:
    """Writes a value as the trail holds it: JSON, numbers with all their digits."""
    return _json(value)


def _delta(old: Any, new: Any) -> str | None:
    found = _difference(old, new)
    return None if found is None else _json(found)


def _difference(old: Any, new: Any) -> Any:
    """By how much a value changed; of several aggregates by name; None where that is no number."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        old, new = old or {}, new or {}
        if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
            return None
        names = [*new, *(name for name in old if name not in new)]
        return {name: _difference(old.get(name), new.get(name)) for name in names}
    old, new = 0 if old is None else old, 0 if new is None else new
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in (old, new)):
        return None
    if isinstance(old, int) and isinstance(new, int):
        return new - old
    try:  # by their decimal digits, as people read them
        return float(Decimal(repr(new)) - Decimal(repr(old)))
    except ArithmeticError:  # infinity less infinity
        return None


def _json(value: Any, default: Callable[[Any], Any] = plain) -> str:
    return json.dumps(value, separators=(",", ":"), default=default, ensure_ascii=False)


def _foreign(value: Any) -> list[str]:
    """Writes what no entry holds, such as bytes, so that it cannot be taken for text."""
    return [type(value).__name__, repr(value)]

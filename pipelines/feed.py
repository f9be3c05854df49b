"""A file as a live stream: what is sent of it, faults that are put in, and when it is due.

Plain logic: no Beam, no clock and no broker in here.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from beam_lateness.transforms.sources.records import (
    BadRecordError,
    Fields,
    read_json_line,
)
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, is_event_time
from beam_lateness.transforms.watermarks.timestamps import FieldTime

RECORD, UNREADABLE = "record", "unreadable"
LATE, INVALID, DUPLICATE, FUTURE = "late", "invalid", "duplicate", "future"
FAULTS: Final = (LATE, INVALID, DUPLICATE, FUTURE)
RATE: Final = 0.01

_LATE_S: Final = (60, 600)
_YEAR_S: Final = 365 * 86_400
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NO_ISO: Final = "9999-99-99T99:99:99Z"
_ISO: Final = re.compile(
    r"(?P<minute>\d{4}-\d\d-\d\d[T ]\d\d:\d\d)(?::(?P<second>\d\d))?"
    r"(?P<rest>(?:\.\d+)?(?:Z|[+-].*))"
)


class Item(NamedTuple):
    """One message of the stream.

    Args:
        kind: `record` or `unreadable` (a line of the file), or the fault that it is.
        payload: What is sent.
        key: The value of the key field, as text; None where there is none.
        event_time_ms: Its event time, ms since the epoch; None where there is none.
        clock_ms: The largest event time of the file so far, ms, by which the stream is paced; None
            before the first.
    """

    kind: str
    payload: bytes
    key: str | None
    event_time_ms: int | None
    clock_ms: int | None


@dataclass(frozen=True)
class FeedFields:
    """Which fields of a line mean what.

    Args:
        time: Where the event time is, in a settled unit (`FieldTime.bind`).
        key: Field of the key; None for no keys.
        id: Field of a record's id, which a fault changes so that it is a record of its own.
    """

    time: FieldTime
    key: str | None = None
    id: str | None = None

    def read(self, line: bytes) -> dict[str, Any]:
        """Reads a line that has an event time.

        Raises:
            ValueError: If it is no JSON object, or has no event time.
        """
        fields = Fields(self.key or "", None, self.id, None, self.time)
        record = dict(read_json_line(line, fields))
        if not is_event_time(self.time_of(record)):
            msg = "no time of years 1 to 9999"
            raise ValueError(msg)
        return record

    def time_of(self, record: Mapping[str, Any]) -> int:
        """Gives a record's event time in ms.

        Raises:
            ValueError: If it has none.
        """
        return self.time.to_ms(record.get(self.time.field))

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """Gives a record's key as text; None where it has none."""
        return Fields("", None, self.key, None, self.time).read_id(record)

    def moved(self, record: Mapping[str, Any], seconds: int, suffix: str = "") -> dict[str, Any]:
        """Gives a record with its event time moved, and its id changed by a suffix.

        Args:
            record: The record.
            seconds: By how much; whole seconds, so that any unit can hold them.
            suffix: What its id gets.

        Raises:
            ValueError: If the time leaves years 1 to 9999.
        """
        copy = dict(record)
        copy[self.time.field] = shift_time(record[self.time.field], seconds, self.time.unit)
        if not is_event_time(self.time_of(copy)):
            msg = "no time of years 1 to 9999"
            raise ValueError(msg)
        if suffix and self.id is not None and self.id in record:
            copy[self.id] = f"{record[self.id]}{suffix}"
        return copy


def shift_time(value: Any, seconds: int, unit: str) -> Any:
    """Moves a time by whole seconds, in its own unit and form.

    Args:
        value: The time.
        seconds: By how much.
        unit: `s`, `ms`, `us`, `ns` or `iso`.

    Raises:
        ValueError: If there is no such time.

    Example:
        >>> shift_time("2026-01-01T00:59:30.25+01:00", 60, "iso")
        '2026-01-01T01:00:30.25+01:00'
        >>> shift_time(1_767_225_600_000_123, -60, "us")
        1767225540000123
    """
    if unit != "iso":
        moved = value + seconds * _PER_SECOND[unit]
        # In seconds, to the whole microseconds that are read of them.
        return round(moved, 6) if isinstance(moved, float) else moved
    match = _ISO.fullmatch(value)
    if match is None:
        msg = f"not ISO 8601 with a zone: {value!r}"
        raise ValueError(msg)
    second = match["second"]
    known = datetime.fromisoformat(f"{match['minute']}:{second or '00'}")  # of the zone's clock
    try:
        moved = known + timedelta(seconds=seconds)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    text = moved.isoformat(sep=value[10])
    return (text if second or moved.second else text[: -len(":00")]) + match["rest"]


def parse_faults(text: str) -> dict[str, float]:
    """Reads `--inject`: faults with commas, each with a rate after a colon or 1%.

    Raises:
        ValueError: If there is no such fault, it stands twice, or a rate is not in 0 to 1.

    Example:
        >>> parse_faults("late:0.05,duplicate")
        {'late': 0.05, 'duplicate': 0.01}
    """
    rates: dict[str, float] = {}
    for part in text.split(","):
        name, colon, rate = part.strip().partition(":")
        if name not in FAULTS:
            msg = f"--inject must be of {', '.join(FAULTS)} (with commas), got {part.strip()!r}"
            raise ValueError(msg)
        if name in rates:
            msg = f"--inject names {name!r} twice; name it once"
            raise ValueError(msg)
        try:
            rates[name] = float(rate) if colon else RATE
        except ValueError:
            rates[name] = -1
        if not 0 <= rates[name] <= 1:
            msg = f"--inject={part.strip()} must have a rate of 0 to 1, such as {name}:0.05"
            raise ValueError(msg)
    return rates


def bind_time(head: Sequence[bytes], time: FieldTime) -> FieldTime:
    """Settles the unit of the event time from the lines at the head of a file.

    Raises:
        ValueError: If it cannot be told, or no line has such a field.
    """
    fields = Fields("", None, None, None, time)
    values = []
    for line in head:
        try:
            values.append(read_json_line(line, fields).get(time.field))
        except BadRecordError:
            continue
    if all(value is None for value in values):
        msg = (
            f"no line at the head of the input has an event time in field {time.field!r}: name "
            "the field with --time_field"
        )
        raise ValueError(msg)
    return time.bind(values)


def feed(
    lines: Iterable[bytes],
    fields: FeedFields,
    rates: Mapping[str, float],
    seed: int = 0,
    begin_ms: int | None = None,
) -> Iterator[Item]:
    """Gives the messages of a file: its lines in order, and faults after what they are made of.

    A fault comes of records only, each kind by dice of its own: the same seed gives the same
    stream, and one kind more changes nothing of the others.

    - `late`: the record again, 1 to 10 min earlier (`-late` behind its id);
    - `invalid`: the record cut in half, without its key field, or with an impossible time;
    - `duplicate`: the same once more;
    - `future`: the record again, a year ahead (`-future` behind its id).

    Args:
        lines: The lines, without line breaks; blank ones are no records and left out.
        fields: Which fields mean what.
        rates: The share of records, by fault.
        seed: Of the dice.
        begin_ms: All event times are moved so that the first record's is this one, ms, to the whole
            second; None to leave them.

    Example:
        >>> fields = FeedFields(FieldTime("at", unit="s"))
        >>> [item.kind for item in feed([b'{"at":60}', b"{"], fields, {"duplicate": 1})]
        ['record', 'duplicate', 'unreadable']
    """
    # Text seeds are hashed by SHA-512: the same on any machine.
    dice = {fault: random.Random(f"{seed} {fault}") for fault in FAULTS}  # noqa: S311 (no secret)
    clock_ms: int | None = None
    shift_s: int | None = None if begin_ms is not None else 0
    for line in filter(bytes.strip, lines):
        try:
            record = fields.read(line)
            if shift_s is None and begin_ms is not None:
                shift_s = (begin_ms - fields.time_of(record)) // 1000
            if shift_s:
                record = fields.moved(record, shift_s)
                line = _dump(record)
        except ValueError:
            yield Item(UNREADABLE, line, None, None, clock_ms)
            continue
        time_ms = fields.time_of(record)
        clock_ms = time_ms if clock_ms is None else max(clock_ms, time_ms)
        item = Item(RECORD, line, fields.key_of(record), time_ms, clock_ms)
        yield item
        for fault in FAULTS:
            if dice[fault].random() < rates.get(fault, 0):
                try:
                    yield _FAULT[fault](item, record, fields, dice[fault])
                except ValueError:  # a time beyond years 1 to 9999: there is no such fault of it
                    continue


def _late(item: Item, record: dict[str, Any], fields: FeedFields, dice: random.Random) -> Item:
    least, most = _LATE_S
    seconds = least + int(dice.random() * (most - least + 1))
    return _moved(LATE, item, record, fields, -seconds)


def _future(item: Item, record: dict[str, Any], fields: FeedFields, _: random.Random) -> Item:
    return _moved(FUTURE, item, record, fields, _YEAR_S)


def _moved(kind: str, item: Item, record: dict[str, Any], fields: FeedFields, seconds: int) -> Item:
    moved = fields.moved(record, seconds, f"-{kind}")
    time_ms = fields.time_of(moved)
    return item._replace(kind=kind, payload=_dump(moved), event_time_ms=time_ms)


def _duplicate(item: Item, _: dict[str, Any], __: FeedFields, ___: random.Random) -> Item:
    return item._replace(kind=DUPLICATE)


def _invalid(item: Item, record: dict[str, Any], fields: FeedFields, dice: random.Random) -> Item:
    time = fields.time.field
    how = ["cut", "time", *(["key"] if fields.key in record and fields.key != time else [])]
    way = how[int(dice.random() * len(how))]
    item = item._replace(kind=INVALID)
    if way == "cut":
        return item._replace(payload=item.payload[: max(1, len(item.payload) // 2)])
    if way == "key":
        rest = {name: value for name, value in record.items() if name != fields.key}
        return item._replace(payload=_dump(rest), key=None)
    impossible = {**record, time: _impossible(fields.time.unit)}
    return item._replace(payload=_dump(impossible), event_time_ms=None)


def _impossible(unit: str) -> int | str:
    if unit == "iso":
        return _NO_ISO
    return (MAX_EVENT_TIME_MS // 1000 + 86_400) * _PER_SECOND[unit]


_FAULT: Final[Mapping[str, Callable[[Item, dict[str, Any], FeedFields, random.Random], Item]]] = {
    LATE: _late,
    INVALID: _invalid,
    DUPLICATE: _duplicate,
    FUTURE: _future,
}


def _dump(record: Mapping[str, Any]) -> bytes:
    """Writes a record; `ValueError` for what JSON has not (1e999, which is read as infinity)."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


class Pacer:
    """Says when an event time is due.

    Args:
        speed: Event time per wall time: 1 as it happened, 60 a minute a second; None for at once.
        clock: Gives the time in seconds, from anywhere.
    """

    def __init__(self, speed: float | None, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._clock = clock
        self._epoch: tuple[float, int] | None = None  # wall and event time where it began

    def due_in(self, clock_ms: int | None) -> float:
        """Gives how long it is until an event time is due, in seconds; 0 if it is.

        The first event time asked for is due at once.
        """
        if self._speed is None or clock_ms is None:
            return 0.0
        now = self._clock()
        if self._epoch is None:
            self._epoch = (now, clock_ms)
        began, first_ms = self._epoch
        return max(0.0, began + (clock_ms - first_ms) / 1000 / self._speed - now)

"""What a record is: its fields, and the rules by which a line becomes one or is invalid.

`Fields.read` judges one line, and is the definition. The columnar parser (`parsing`) must
agree with it on every line, and leaves to it whatever looks odd.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from beam_lateness.transforms.times import is_event_time
from beam_lateness.transforms.watermarks.timestamps import FieldTime, MessageTime, TimestampAssigner

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_LONGEST_INTEGER: Final = 40  # digits; 64 bits take 20 with the sign
_BEYOND: Final = 10**_LONGEST_INTEGER

csv.field_size_limit(2**31 - 1)  # its default of 128 KiB is no rule of CSV

_CSV_INT: Final = re.compile(r"-?[0-9]+")
_CSV_FLOAT: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

Line: TypeAlias = Mapping[str, Any]


class BadRecordError(ValueError):
    """A line that is no record.

    Args:
        reason: A fixed word to count and route by, such as `missing_key`.
        detail: A sentence for a person.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Record(NamedTuple):
    """One line, read: a record, or a marker (which has a time only)."""

    key: str | None
    value: int | float | None
    id: str | None
    event_time_ms: int
    marker: bool = False


@dataclass(frozen=True)
class Fields:
    """Which fields of a line mean what.

    Args:
        key: Field to group by: text, or an integer (which is read as its text).
        value: Number to aggregate; None to aggregate nothing but a count.
        id: Field that identifies a record, for dead letters and reconciliation.
        marker: Field that, when true, makes the line a marker.
        timestamps: Where the event time is.
    """

    key: str
    value: str | None
    id: str | None
    marker: str | None
    timestamps: TimestampAssigner

    @property
    def names(self) -> frozenset[str]:
        """Every field that is read."""
        time = self.timestamps.field if isinstance(self.timestamps, FieldTime) else None
        return frozenset({self.key, self.value, self.id, self.marker, time} - {None})  # type: ignore[arg-type]

    def read(self, line: Line, latest_ms: int | None, given_ms: int | None = None) -> Record:
        """Reads one parsed line.

        Args:
            line: Its fields.
            latest_ms: An event time after this one is "from the future"; None for no limit.
            given_ms: The event time, where it stands beside the line and not in it.

        Raises:
            BadRecordError: If it is no record.
        """
        marker = self._marker(line)
        event_time_ms = self._event_time(line, latest_ms, given_ms)
        if marker:
            return Record(None, None, None, event_time_ms, marker=True)
        return Record(self._key(line), self._value(line), self.read_id(line), event_time_ms)

    def _marker(self, line: Line) -> bool:
        flag = line.get(self.marker) if self.marker is not None else None
        if flag is None or isinstance(flag, bool):
            return bool(flag)
        detail = f"field {self.marker!r} must be true or false, got {flag!r}"
        raise BadRecordError("bad_marker", detail)

    def _event_time(self, line: Line, latest_ms: int | None, given_ms: int | None) -> int:
        try:
            if given_ms is not None:
                ms = given_ms
            elif isinstance(self.timestamps, FieldTime):
                raw = line.get(self.timestamps.field)
                if raw is None:
                    detail = f"no field {self.timestamps.field!r}"
                    raise BadRecordError("missing_event_time", detail)
                ms = self.timestamps.to_ms(raw)
            else:
                assert not isinstance(self.timestamps, MessageTime)  # noqa: S101 (given_ms then)
                ms = self.timestamps(line)
                if isinstance(ms, bool) or not isinstance(ms, int):
                    detail = f"the timestamp assigner must return int (ms), got {ms!r}"
                    raise BadRecordError("bad_event_time", detail)
        except BadRecordError:
            raise
        except Exception as error:  # a user's assigner may raise anything: the record is at fault
            raise BadRecordError("bad_event_time", str(error)) from error
        if not is_event_time(ms):
            shown = f"{ms} ms" if -_BEYOND < ms < _BEYOND else "the time"
            raise BadRecordError("event_time_out_of_range", f"{shown} is not in years 1 to 9999")
        if latest_ms is not None and ms > latest_ms:
            raise BadRecordError("future_event_time", f"{ms} ms is after {latest_ms} ms")
        return ms

    def _key(self, line: Line) -> str:
        key = line.get(self.key)
        if key is None:
            raise BadRecordError("missing_key", f"no field {self.key!r}")
        text = _text(key)
        if text is None:
            detail = f"field {self.key!r} must be text or an integer"
            raise BadRecordError("bad_key", detail)
        return text

    def _value(self, line: Line) -> int | float | None:
        if self.value is None:
            return None
        value = line.get(self.value)
        if value is None:
            raise BadRecordError("missing_value", f"no field {self.value!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadRecordError("bad_value", f"field {self.value!r} must be a number")
        if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            detail = f"field {self.value!r} does not fit 64 bits"
            raise BadRecordError("value_out_of_range", detail)
        if not math.isfinite(value):
            raise BadRecordError("bad_value", f"field {self.value!r} must be finite, got {value}")
        return value

    def read_id(self, line: Line) -> str | None:
        """Gives the record's own id; None where it has none that is text or an integer."""
        value = line.get(self.id) if self.id is not None else None
        return None if value is None else _text(value)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate escape is no text
            return None
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if INT64_MIN <= value <= INT64_MAX else None
    return None


class _RepeatedFields(dict[str, Any]):
    """An object in which some field stands twice; it matters only if that field is one of ours."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(name for name, _ in pairs)
        self.repeated = {name for name, count in counts.items() if count > 1}


def read_json_line(raw: bytes, fields: Fields) -> Line:
    """Parses one JSON line.

    Raises:
        BadRecordError: `invalid_utf8`, `malformed_json`, `duplicate_field` or `not_an_object`.
    """
    try:
        line = _JSON.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise BadRecordError("invalid_utf8", str(error)) from error
    except BadRecordError:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecordError("malformed_json", str(error)) from error
    if not isinstance(line, dict):
        raise BadRecordError("not_an_object", f"got {type(line).__name__}")
    if isinstance(line, _RepeatedFields) and (twice := line.repeated & fields.names):
        raise BadRecordError("duplicate_field", f"field {min(twice)!r} stands twice")
    return line


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _RepeatedFields(pairs)


def _integer(digits: str) -> int:
    """Reads an integer; of one far beyond 64 bits (Python limits digits) only that is kept."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else _BEYOND


def _no_constant(name: str) -> float:
    raise BadRecordError("malformed_json", f"{name} is no JSON number")


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_constant
)


def read_csv_line(raw: bytes, header: tuple[str, ...], fields: Fields) -> Line:
    """Parses one CSV line; an empty cell is a missing field.

    The fields that must be numbers or flags are converted; the rest stays text.

    Raises:
        BadRecordError: `invalid_utf8` or `malformed_csv`.
    """
    try:
        rows = list(csv.reader([raw.decode()], strict=True))
    except UnicodeDecodeError as error:
        raise BadRecordError("invalid_utf8", str(error)) from error
    except csv.Error as error:
        raise BadRecordError("malformed_csv", str(error)) from error
    cells = rows[0] if rows else []
    if len(cells) != len(header):
        detail = f"{len(cells)} cells where the header has {len(header)}"
        raise BadRecordError("malformed_csv", detail)
    line: dict[str, Any] = {
        name: cell for name, cell in zip(header, cells, strict=True) if cell != ""
    }
    numbers = {fields.value} if fields.value is not None else set()
    if isinstance(fields.timestamps, FieldTime) and fields.timestamps.unit != "iso":
        numbers.add(fields.timestamps.field)
    for name in numbers & line.keys():
        line[name] = csv_number(line[name])
    if fields.marker is not None and fields.marker in line:
        cell = line[fields.marker]
        line[fields.marker] = {"true": True, "false": False}.get(cell.lower(), cell)
    return line


def csv_number(cell: str) -> int | float | str:
    """Reads a CSV cell as the number it spells, if it does; else gives the text back."""
    text = cell.strip(" \t")
    if _CSV_INT.fullmatch(text):
        return _integer(text)
    return float(text) if _CSV_FLOAT.fullmatch(text) else cell

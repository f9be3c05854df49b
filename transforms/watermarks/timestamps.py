"""Where a record's event time comes from: a field in a declared or detected unit, or a function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_lateness.transforms.times import Millis, is_event_time

TIME_UNITS: Final = ("auto", "s", "ms", "us", "ns", "iso")

_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_ISO: Final = (  # for Python and for RE2 (Arrow): both readings of a column must agree
    r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?"
    r"(?:Z|([+-])([01]\d|2[0-3]):?([0-5]\d))"
)
_ISO_PATTERN: Final = re.compile(_ISO, re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,25}(\.[0-9]{1,25})?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND: Final = timedelta(milliseconds=1)

# A unit is detected when it, and it alone, puts every sample between 1980 and 2100.
_PLAUSIBLE_S: Final = (315_532_800, 4_102_444_800)


@dataclass(frozen=True)
class FieldTime:
    """Reads the event time from a field.

    Args:
        field: Name of the field.
        unit: `s`, `ms`, `us` or `ns` since the epoch, `iso` for ISO 8601 with a zone, or `auto`
            to detect it once, from the head of the input.

    Raises:
        ValueError: If the unit is none of these.

    Example:
        >>> FieldTime("at", unit="s").to_ms(1357035300.25)
        1357035300250
        >>> FieldTime("at", unit="iso").to_ms("2013-01-01T10:15:00+01:00")
        1357031700000
    """

    field: str
    unit: str = "auto"

    def __post_init__(self) -> None:
        if self.unit not in TIME_UNITS:
            msg = f"unit (--time_unit) must be one of {', '.join(TIME_UNITS)}, got {self.unit!r}"
            raise ValueError(msg)

    def bind(self, samples: Iterable[Any]) -> FieldTime:
        """Settles `auto` from the values at the head of the input; other units stay.

        Args:
            samples: The field's values in the first records.

        Raises:
            ValueError: If the samples disagree, or make no sense in the declared unit.
        """
        values = [value for value in samples if value is not None]
        bound = self
        if self.unit == "auto":
            bound = replace(self, unit=_detect(self.field, values))
        bound._check(values)
        return bound

    def _check(self, values: list[Any]) -> None:
        """Refuses a unit in which no sample is a time, or in which it is another one's."""
        if values and not any(self._reads(value) for value in values):
            msg = (
                f"time field {self.field!r} holds no event time in unit {self.unit!r} at the head "
                f"of the input, such as {_short(values[0])}; mend --time_field or --time_unit"
            )
            raise ValueError(msg)
        looks = _units(values, all)
        if self.unit in _PER_SECOND and looks and self.unit not in _units(values, any):
            msg = (
                f"--time_unit={self.unit} makes {_short(values[0])} in field {self.field!r} a time "
                f"long past or far ahead, where {next(iter(looks))!r} makes it one of our days; "
                "mend --time_unit"
            )
            raise ValueError(msg)

    def _reads(self, value: Any) -> bool:
        try:
            return is_event_time(self.to_ms(value))
        except ValueError:
            return False

    def to_ms(self, value: Any) -> int:
        """Gives one value in ms since the epoch, rounded down.

        Raises:
            ValueError: If it is no time in this unit; the message says why.
        """
        if self.unit == "iso":
            return _iso_to_ms(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            msg = f"not a number: {_short(value)}"
            raise ValueError(msg)
        if isinstance(value, int):
            return value * 1000 // _PER_SECOND[self.unit]
        if not math.isfinite(value):
            msg = f"not a finite number: {value}"
            raise ValueError(msg)
        if self.unit == "s":  # keep whole microseconds: 0.251 s is 250.9999 ms in binary
            whole = math.floor(value)
            return whole * 1000 + math.floor(round((value - whole) * 1e6) / 1000)
        return math.floor(value) * 1000 // _PER_SECOND[self.unit]

    @property
    def column_type(self) -> Any:
        """The Arrow type in which a column of these values is parsed."""
        return {"s": pa.float64(), "iso": pa.string()}.get(self.unit, pa.int64())

    def column_to_ms(self, column: pa.Array) -> Millis:
        """Gives a whole column in ms, exactly as `to_ms` would value by value.

        Nulls come out as some number: the caller knows where they are.

        Raises:
            ValueError: If a value needs `to_ms` to be judged.
        """
        if self.unit == "iso":
            if pc.all(pc.match_substring_regex(column, f"^{_ISO}$")).as_py() is False:
                msg = "a value is not ISO 8601 with a zone"
                raise ValueError(msg)
            micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            return _numbers(micros) // 1000
        if self.unit == "s":
            seconds = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
            if not (np.abs(seconds) < 2**52).all():  # false for NaN too
                msg = "a value is out of range"
                raise ValueError(msg)
            whole = np.floor(seconds)
            part = np.floor(np.round((seconds - whole) * 1e6) / 1000)
            return whole.astype(np.int64) * 1000 + part.astype(np.int64)
        numbers = _numbers(column)
        per_ms = _PER_SECOND[self.unit] // 1000
        return numbers if per_ms == 1 else numbers // per_ms


@dataclass(frozen=True)
class MessageTime:
    """Takes the event time from the message around a record, not from the record.

    Args:
        attribute: Name of a Pub/Sub attribute or Kafka header that holds it; None for the time of
            the message itself: Pub/Sub's publish time, Kafka's CreateTime or LogAppendTime
            (whichever the topic has).
        unit: Unit of the attribute: `s`, `ms`, `us`, `ns` or `iso`.

    Raises:
        ValueError: If the unit is none of these.

    Example:
        >>> MessageTime("created_at", unit="iso").to_ms("2013-01-01T10:15:00Z")
        1357035300000
    """

    attribute: str | None = None
    unit: str = "ms"

    def __post_init__(self) -> None:
        if self.unit not in TIME_UNITS or self.unit == "auto":
            msg = (
                "the unit of an attribute (--time_unit with --time_source=attribute) must be one "
                f"of {', '.join(TIME_UNITS[1:])}, got {self.unit!r}"
            )
            raise ValueError(msg)

    def to_ms(self, value: str) -> int:
        """Gives an attribute's value in ms since the epoch, rounded down.

        Raises:
            ValueError: If it is no time in this unit.
        """
        if self.unit == "iso":
            return _iso_to_ms(value)
        if not _NUMBER.fullmatch(value):
            msg = f"not a number: {_short(value)}"
            raise ValueError(msg)
        number = int(value) if value.lstrip("-").isdigit() else float(value)
        return FieldTime("", self.unit).to_ms(number)


TimestampAssigner: TypeAlias = FieldTime | MessageTime | Callable[[Mapping[str, Any]], int]
"""A `FieldTime`, a `MessageTime`, or a function from the record's fields to its event time in ms
(at the price of parsing record by record)."""


def _numbers(column: pa.Array) -> Millis:
    filled = pc.fill_null(column, 0) if column.null_count else column
    numbers: Millis = filled.to_numpy(zero_copy_only=False)
    return numbers


def _iso_to_ms(value: Any) -> int:
    match = _ISO_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        msg = f"not ISO 8601 with a zone: {_short(value)}"
        raise ValueError(msg)
    year, month, day, hour, minute, second, fraction, sign, off_h, off_m = match.groups()
    moment = datetime(
        int(year),
        int(month),
        int(day),
        int(hour),
        int(minute),
        int(second or 0),
        tzinfo=timezone.utc,
    )
    ms = (moment - _EPOCH) // _MILLISECOND
    if sign:
        offset = (int(off_h) * 60 + int(off_m)) * 60_000
        ms += offset if sign == "-" else -offset
    return ms + int(((fraction or "") + "000")[:3])


def _units(values: list[Any], how: Callable[[Iterable[bool]], bool]) -> set[str]:
    """Gives the units that make any, or all, of the numbers among `values` dates of our time."""
    low, high = _PLAUSIBLE_S
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return {
        unit
        for unit, per_second in _PER_SECOND.items()
        if numbers and how(low * per_second <= n < high * per_second for n in numbers)
    }


def _detect(field: str, values: list[Any]) -> str:
    texts = [isinstance(value, str) for value in values]
    if values and all(texts):
        return "iso"
    units = _units(values, any)
    # No unit makes them dates of our time (0, 5, 1000 ...): such input counts in our own unit.
    if not units and not any(texts):
        return "ms"
    if len(units) == 1 and not any(texts):
        return units.pop()
    msg = (
        f"the values of time field {field!r} look like different units; "
        "declare it with --time_unit s|ms|us|ns|iso (FieldTime(unit=...))"
    )
    raise ValueError(msg)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

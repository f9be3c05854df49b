"""Durations, event times and the range they may lie in, all in whole milliseconds.

Everything here is plain arithmetic: no Beam type enters or leaves (`beam_time` is the edge).
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Duration: TypeAlias = "str | float | timedelta"
"""A length of time: `"200ms"`, `"2m"`, `"1h30m"`, a `timedelta`, or a number of **seconds**."""

Millis: TypeAlias = npt.NDArray[np.int64]
"""An array of times in ms."""

Flags: TypeAlias = npt.NDArray[np.bool_]
"""An array of yes or no, one a record."""

MIN_EVENT_TIME_MS: Final = -62_135_596_800_000
"""0001-01-01T00:00:00Z. The range of event times is what ISO 8601 writes with four-digit years."""

MAX_EVENT_TIME_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the other end of that range."""

NO_WATERMARK_MS: Final = -9_223_372_036_854_776
"""Inclusive watermark before the first record: 1 ms under Beam's smallest timestamp
(`MIN_TIMESTAMP`, -2**63 microseconds in whole ms), so that + 1 ms gives exactly that one and
subtracting a bound from it cannot wrap a 64-bit integer."""

MAX_DURATION_MS: Final = 200 * 365 * 86_400_000
"""200 years. Beam's Go engines hold durations in 64-bit nanoseconds (292 years)."""

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_TEXT: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def duration_ms(value: Duration, *, name: str, minimum_ms: int = 0) -> int:
    """Turns a duration into whole milliseconds, once, where configuration enters.

    Args:
        value: `"200ms"`, `"10s"`, `"2m"`, `"1h30m"`, a `timedelta`, or seconds as a number.
        name: The parameter or flag, for the error message.
        minimum_ms: The least value accepted, in ms.

    Returns:
        The duration in ms.

    Raises:
        ValueError: If it is no duration, not whole milliseconds, or out of range.

    Example:
        >>> duration_ms("1m30s", name="--window")
        90000
        >>> duration_ms(0.2, name="bound")
        200
    """
    exact = _to_ms(value, name)
    whole = abs(exact) > MAX_DURATION_MS or abs(exact - round(exact)) <= 1e-6
    if not whole:
        msg = f"{name} must be whole milliseconds, got {value!r} ({exact} ms)"
        raise ValueError(msg)
    if not minimum_ms <= exact <= MAX_DURATION_MS:
        low = format_duration(minimum_ms)
        msg = f"{name} must lie between {low} and 73000d (200 years), got {value!r}"
        raise ValueError(msg)
    return round(exact)


def _to_ms(value: Duration, name: str) -> float:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, str):
        text = value.strip()
        if text == "0":
            return 0
        if not _TEXT.fullmatch(text):
            msg = (
                f"{name} must be a duration such as 200ms, 10s, 2m, 1h30m or 1d, got {value!r}; "
                "write the unit, and no sign: a duration is never negative"
            )
            raise ValueError(msg)
        return sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        return value * 1000
    msg = f"{name} must be a duration (text, timedelta or seconds), got {value!r}"
    raise ValueError(msg)


def format_duration(ms: int) -> str:
    """Writes milliseconds the way `duration_ms` reads them.

    Example:
        >>> format_duration(90_000), format_duration(200), format_duration(0)
        ('1m30s', '200ms', '0s')
    """
    if ms == 0:
        return "0s"
    parts = []
    rest = abs(ms)
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if ms < 0 else "") + "".join(parts)


def is_event_time(ms: int) -> bool:
    """Says whether `ms` lies in the range of event times (years 1 to 9999)."""
    return MIN_EVENT_TIME_MS <= ms <= MAX_EVENT_TIME_MS

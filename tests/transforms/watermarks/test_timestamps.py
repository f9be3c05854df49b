"""Event times from fields: units, detection, ISO 8601, and the column against the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import is_event_time
from beam_lateness.transforms.watermarks.timestamps import FieldTime

FEW = settings(max_examples=50, deadline=None)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
INT64 = st.integers(-(2**63), 2**63 - 1)
PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
ZONES = st.sampled_from(["Z", "+00:00", "-00:00", "+05:30", "-0800", "+23:59", "-23:59"])
MOMENTS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))
FRACTIONS = st.sampled_from(["", ".1", ".12", ".123", ".1239", ".123456", ".123456789", ".000999"])


@st.composite
def iso_times(draw: st.DrawFn) -> str:
    """ISO 8601 times with a zone, in all the spellings that are accepted."""
    moment = draw(MOMENTS)
    day, minute = moment.strftime("%m-%d"), moment.strftime("%H:%M")
    second = draw(st.sampled_from(["", ":00", ":59", f":{moment.second:02}"]))
    fraction = draw(FRACTIONS) if second else ""
    return f"{moment.year:04}-{day}{draw(st.sampled_from('T '))}{minute}{second}{fraction}" + draw(
        ZONES
    )


ODD_ISO = st.sampled_from(
    [
        "2013-02-30T00:00:00Z",
        "2013-13-01T00:00:00Z",
        "2013-01-01T24:00:00Z",
        "2013-01-01T23:59:60Z",
        "2013-01-01T23:60:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+10:00",
        "9999-12-31T23:59:59-10:00",
        "2013-01-01T00:00:00",
        "2013-01-01",
        "2013-01-01T00:00:00.Z",
        "2013-01-01T00:00:00Z\n",
        " 2013-01-01T00:00:00Z",
        "2013-01-01t00:00:00Z",
        "2013-01-01T00:00:00z",
        "2013-01-01T00:00:00+24:00",
        "2013-01-01T00:00:00+05",
        "\uff12\uff1013-01-01T00:00:00Z",
        "1357035300000",
        "",
    ]
)


def agree(rule: FieldTime, values: list[Any]) -> None:
    """Compares a column with its values: equal, or left to the value's own judgement."""
    column = pa.array(values, rule.column_type)
    try:
        times = rule.column_to_ms(column).tolist()
    except ValueError:  # the caller then judges value by value
        return
    for value, ms in zip(values, times, strict=True):
        if value is None:
            continue
        try:
            expected = rule.to_ms(value)
        except ValueError:
            assert not is_event_time(ms), f"{value!r} is no time, the column says {ms}"
        else:
            assert ms == expected, f"{value!r}: the column says {ms}, the value {expected}"


@pytest.mark.parametrize("unit", sorted(PER_MS))
@FEW
@given(values=st.lists(st.none() | INT64 | st.integers(-5_000, 5_000), max_size=8))
def test_a_column_of_integers_gives_what_its_values_give(
    unit: str, values: list[int | None]
) -> None:
    """Rounded down to the millisecond, before 1970 too."""
    agree(FieldTime("at", unit), values)
    given_values = [value for value in values if value is not None]
    exact = [math.floor(Decimal(value) / PER_MS[unit]) for value in given_values]
    assert [FieldTime("at", unit).to_ms(value) for value in given_values] == exact


@FEW
@given(
    st.lists(
        st.none()
        | st.floats()
        | st.floats(-1e10, 1e10)
        | st.integers(-(2**53), 2**53).map(float)
        | st.integers(-(10**13), 10**13).map(lambda ms: ms / 1000),
        max_size=8,
    )
)
def test_a_column_of_seconds_gives_what_its_values_give(values: list[float | None]) -> None:
    """Or refuses, where a value is out of range."""
    agree(FieldTime("at", "s"), values)


@FEW
@given(st.integers(-(2**32) * 1000, 2**32 * 1000))
def test_seconds_with_three_digits_give_that_millisecond(ms: int) -> None:
    """The nearest float of 0.251 s is below 251 ms, and still means 251 (from 1833 to 2106: a
    64-bit float holds the microseconds no further)."""
    assert FieldTime("at", "s").to_ms(float(Decimal(ms) / 1000)) == ms


@FEW
@given(st.lists(st.none() | iso_times(), max_size=6))
def test_a_column_of_iso_times_gives_what_its_values_give(values: list[str | None]) -> None:
    """Zones, fractions of any length and both separators."""
    agree(FieldTime("at", "iso"), values)


@FEW
@given(st.lists(st.none() | iso_times() | ODD_ISO | st.text(max_size=4), max_size=3))
def test_a_column_with_odd_iso_times_never_gives_a_time_its_values_do_not(
    values: list[str | None],
) -> None:
    """Where a value is refused, the column refuses or shows a time out of range."""
    agree(FieldTime("at", "iso"), values)


@FEW
@given(MOMENTS, st.integers(0, 999), st.integers(-23 * 60, 23 * 60))
def test_iso_times_mean_what_python_says(moment: datetime, ms: int, offset_min: int) -> None:
    """Python's own arithmetic of zones is the reference."""
    zone = timezone(timedelta(minutes=offset_min))
    local = moment.replace(microsecond=ms * 1000, tzinfo=zone)
    expected = (local - EPOCH) // timedelta(milliseconds=1)
    text = local.isoformat(timespec="milliseconds")
    assert FieldTime("at", "iso").to_ms(text) == expected
    column = pa.array([text])
    assert FieldTime("at", "iso").column_to_ms(column).tolist() == [expected]


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        *[("iso", text) for text in ("2013-01-01", "2013-01-01T00:00:00", "2013-02-30T00:00:00Z")],
        ("iso", "2013-01-01T00:00:00Z\n"),
        ("iso", "\uff12\uff1013-01-01T00:00:00Z"),
        ("iso", 1_357_035_300_000),
        ("iso", None),
        *[("ms", value) for value in ("5", True, None, [5], math.nan, math.inf, -math.inf)],
        ("s", math.nan),
        ("us", "5"),
        ("ns", False),
    ],
)
def test_what_is_no_time_in_the_unit_is_refused(unit: str, value: Any) -> None:
    """With a sentence, not an exception of the arithmetic."""
    with pytest.raises(ValueError, match=r"\S"):
        FieldTime("at", unit).to_ms(value)


def test_an_unknown_unit_is_refused_by_its_flag() -> None:
    """At construction."""
    with pytest.raises(ValueError, match=r"unit \(--time_unit\) must be one of .*'min'"):
        FieldTime("at", "min")


@pytest.mark.parametrize(
    ("unit", "make"),
    [
        ("s", lambda ms: ms // 1000),
        ("s", lambda ms: ms / 1000),
        ("ms", lambda ms: ms),
        ("us", lambda ms: ms * 1_000),
        ("ns", lambda ms: ms * 1_000_000),
        ("iso", lambda ms: (EPOCH + timedelta(milliseconds=ms)).isoformat()),
    ],
)
@FEW
@given(times=st.lists(st.integers(315_532_800_000, 4_102_444_799_999), min_size=1, max_size=5))
def test_the_unit_of_dates_from_1980_to_2100_is_detected(
    unit: str, make: Callable[[int], Any], times: list[int]
) -> None:
    """From the head of the input, nulls left out."""
    samples = [None, *map(make, times)]
    assert FieldTime("at").bind(samples) == FieldTime("at", unit)


@pytest.mark.parametrize("samples", [[], [None], [0], [5, 1000]])
def test_times_that_are_no_dates_are_milliseconds(samples: list[Any]) -> None:
    """No unit makes them dates of our time: they count in our own."""
    assert FieldTime("at").bind(samples).unit == "ms"


def test_samples_that_disagree_are_refused() -> None:
    """Seconds and milliseconds in one field: somebody must say which."""
    with pytest.raises(ValueError, match=r"'at'.*--time_unit"):
        FieldTime("at").bind([1_357_035_300, 1_357_035_300_000])


@pytest.mark.parametrize("samples", [[2**80], [True], [["x"]], ["x"]])
def test_a_head_without_an_event_time_is_refused(samples: list[Any]) -> None:
    """The wrong field, most likely: the error shows a value and names the flags."""
    with pytest.raises(ValueError, match=r"'at' holds no event time.*--time_field"):
        FieldTime("at").bind(samples)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("samples", [[], [None], [0, 1_000]])
def test_a_declared_unit_stays_where_the_samples_tell_nothing(
    unit: str, samples: list[Any]
) -> None:
    """Times that are no dates of ours are in whatever unit was declared."""
    assert FieldTime("at", unit).bind(samples).unit == unit


@pytest.mark.parametrize(
    ("unit", "sample"),
    [
        ("s", 1_357_035_300_000),
        ("ms", 1_357_035_300),
        ("ms", 1_357_035_300_000_000),
        ("ns", 1_357_035_300),
    ],
)
def test_a_declared_unit_that_is_plainly_another_is_refused(unit: str, sample: int) -> None:
    """Taken at its word, it would put all records long past or far ahead."""
    with pytest.raises(ValueError, match=r"'at'.*--time_unit"):
        FieldTime("at", unit).bind([sample])

"""Durations and the range of event times."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import (
    MAX_DURATION_MS,
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    NO_WATERMARK_MS,
    Duration,
    duration_ms,
    format_duration,
    is_event_time,
)

FEW = settings(max_examples=50, deadline=None)
DURATIONS = st.one_of(st.integers(0, 200_000), st.integers(0, MAX_DURATION_MS))


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("200ms", 200),
        ("10s", 10_000),
        ("2m", 120_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("1.5s", 1_500),
        ("0.25h", 900_000),
        (" 5s ", 5_000),
        (0, 0),
        (2, 2_000),
        (0.2, 200),
        (0.1 + 0.2, 300),
        (timedelta(minutes=2, milliseconds=1), 120_001),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_read_in_its_unit(value: Duration, ms: int) -> None:
    """Text by its units, a number as seconds, a timedelta as it is."""
    assert duration_ms(value, name="--x") == ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "5",
        "5.0",
        "-5s",
        "+5s",
        "5 s",
        "s",
        "5sec",
        "5S",
        "1h 30m",
        "1,5s",
        "1e3s",
        "5s;",
        "ms",
        ".5s",
        True,
        None,
        b"5s",
        float("nan"),
        [5],
    ],
)
def test_what_is_no_duration_is_refused_by_name(value: object) -> None:
    """The error names the parameter and shows the value."""
    with pytest.raises(ValueError, match=r"^--x must be a duration") as refusal:
        duration_ms(value, name="--x")  # type: ignore[arg-type]
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["0.5ms", 0.0001, timedelta(microseconds=1), "1.0005s"])
def test_a_part_of_a_millisecond_is_refused(value: Duration) -> None:
    """Nothing is rounded in silence."""
    with pytest.raises(ValueError, match="--x must be whole milliseconds"):
        duration_ms(value, name="--x")


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        timedelta(milliseconds=-1),
        "73000d1ms",
        timedelta(days=80_000),
        1e12,
        math.inf,
        -math.inf,
    ],
)
def test_a_duration_out_of_range_is_refused(value: Duration) -> None:
    """The range is zero to 200 years."""
    with pytest.raises(ValueError, match="--x must lie between 0s and 73000d"):
        duration_ms(value, name="--x")


def test_the_least_duration_is_the_one_asked_for() -> None:
    """A window, say, cannot be empty."""
    assert duration_ms("1ms", name="--window", minimum_ms=1) == 1
    with pytest.raises(ValueError, match="--window must lie between 1ms and"):
        duration_ms("0s", name="--window", minimum_ms=1)


@pytest.mark.parametrize("value", ["9" * 400 + "s", 1e308, 10**400], ids=["text", "float", "int"])
def test_a_duration_too_large_for_a_float_is_refused_like_any_other(value: Duration) -> None:
    """The documented error is `ValueError`, however large the number."""
    with pytest.raises(ValueError, match="--x must"):
        duration_ms(value, name="--x")


@FEW
@given(DURATIONS)
def test_format_writes_what_duration_reads(ms: int) -> None:
    """Formatting and reading are inverse."""
    assert duration_ms(format_duration(ms), name="--x") == ms


@FEW
@given(DURATIONS)
def test_text_seconds_and_timedelta_mean_the_same(ms: int) -> None:
    """Three spellings of one duration."""
    assert duration_ms(timedelta(milliseconds=ms), name="--x") == ms
    assert duration_ms(f"{ms}ms", name="--x") == ms
    assert duration_ms(ms // 1000, name="--x") == ms // 1000 * 1000


@FEW
@given(st.integers(1, MAX_DURATION_MS))
def test_a_negative_length_is_written_with_a_sign(ms: int) -> None:
    """Messages may show a distance that is negative."""
    assert format_duration(-ms) == "-" + format_duration(ms)


def test_no_watermark_is_just_under_beams_least_timestamp() -> None:
    """Plus the millisecond of the exclusive reading, it is Beam's minimum exactly."""
    assert MIN_TIMESTAMP.micros == (NO_WATERMARK_MS + 1) * 1000


def test_no_watermark_minus_a_bound_does_not_wrap() -> None:
    """The minimum less the longest duration still fits 64 bits."""
    assert NO_WATERMARK_MS - MAX_DURATION_MS - 1 > -(2**63)


def test_event_times_with_any_lateness_lie_within_beams_range() -> None:
    """An event time, its window's end and the longest lateness are all Beam timestamps."""
    assert MIN_TIMESTAMP.micros < (MIN_EVENT_TIME_MS - MAX_DURATION_MS) * 1000
    assert MAX_TIMESTAMP.micros > (MAX_EVENT_TIME_MS + 3 * MAX_DURATION_MS) * 1000


def test_event_times_are_the_years_1_to_9999() -> None:
    """The range is what ISO 8601 writes with four digits."""
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    first = datetime(1, 1, 1, tzinfo=timezone.utc)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    assert (first - epoch) // timedelta(milliseconds=1) == MIN_EVENT_TIME_MS
    assert (last - epoch) // timedelta(milliseconds=1) == MAX_EVENT_TIME_MS
    assert is_event_time(MIN_EVENT_TIME_MS)
    assert is_event_time(MAX_EVENT_TIME_MS)
    assert not is_event_time(MIN_EVENT_TIME_MS - 1)
    assert not is_event_time(MAX_EVENT_TIME_MS + 1)

"""The edge between our milliseconds and Beam's timestamps."""

from __future__ import annotations

from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.beam_time import interval, to_ms, to_timestamp

MS = st.integers(-9_223_372_036_854_775, 9_223_372_036_854_774)


@settings(max_examples=50, deadline=None)
@given(MS)
def test_milliseconds_survive_the_way_through_beam(ms: int) -> None:
    """There and back is the same."""
    assert to_ms(to_timestamp(ms)) == ms


@settings(max_examples=50, deadline=None)
@given(MS, st.integers(0, 999))
def test_a_part_of_a_millisecond_is_rounded_down(ms: int, micros: int) -> None:
    """Down for negative times as well: a watermark never gets ahead of itself."""
    assert to_ms(Timestamp(micros=ms * 1000 + micros)) == ms


def test_a_time_beyond_beams_range_is_clamped() -> None:
    """Beam refuses timestamps out of its range."""
    assert to_timestamp(-(2**63)) == MIN_TIMESTAMP
    assert to_timestamp(2**63) == to_timestamp(to_ms(MAX_TIMESTAMP))
    assert to_timestamp(2**63) <= MAX_TIMESTAMP


def test_an_interval_holds_its_start_and_not_its_end() -> None:
    """Windows are half open."""
    window = interval(60_000, 120_000)
    assert (window.start, window.end) == (Timestamp(60), Timestamp(120))
    assert to_ms(window.max_timestamp()) == 119_999

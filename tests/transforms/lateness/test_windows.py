"""`Windows`: the arithmetic of fixed windows, before and after the epoch."""

from __future__ import annotations

import pickle
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness import Windows
from beam_lateness.transforms.beam_time import to_ms, to_timestamp
from beam_lateness.transforms.lateness.window_with_lateness import fixed_windows
from beam_lateness.transforms.times import (
    MAX_DURATION_MS,
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    Duration,
)
from tests.cases.load import windows_of
from tests.model import Windowed

EVENT_TIMES = st.one_of(
    st.integers(MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS), st.integers(-100_000, 100_000)
)
SIZES = st.one_of(st.integers(1, 100_000), st.integers(1, MAX_DURATION_MS))


@st.composite
def any_windows(draw: st.DrawFn) -> Windows:
    """Draws windows of any size, offset and allowed lateness."""
    size = draw(SIZES)
    offset = draw(st.integers(0, size - 1))
    return windows_of(size, draw(st.integers(0, MAX_DURATION_MS)), offset)


@given(any_windows(), EVENT_TIMES)
def test_an_event_time_lies_in_its_window(windows: Windows, event_time: int) -> None:
    """start <= event time < end, and end - start is the size."""
    start, end = windows.start_of(event_time), windows.end_of(event_time)
    assert start <= event_time < end
    assert end - start == windows.size_ms


@given(any_windows(), EVENT_TIMES)
def test_windows_start_at_the_offset_plus_whole_sizes(windows: Windows, event_time: int) -> None:
    """Windows are aligned to the epoch plus the offset, on both sides of it."""
    assert (windows.start_of(event_time) - windows.offset_ms) % windows.size_ms == 0


@given(any_windows(), EVENT_TIMES)
def test_windows_tile_time(windows: Windows, event_time: int) -> None:
    """The last moment before a window is in the one before, its end in the one after."""
    start, end = windows.start_of(event_time), windows.end_of(event_time)
    assert windows.start_of(start) == start
    assert windows.end_of(start - 1) == start
    assert windows.start_of(end - 1) == start
    assert windows.start_of(end) == end


@given(any_windows(), EVENT_TIMES)
def test_a_window_closes_its_allowed_lateness_after_its_end(
    windows: Windows, event_time: int
) -> None:
    """closed_at = end + allowed lateness."""
    assert windows.closed_at(event_time) == windows.end_of(event_time) + windows.allowed_lateness_ms


@given(any_windows(), st.lists(EVENT_TIMES, max_size=20))
def test_arrays_give_what_single_times_give(windows: Windows, event_times: list[int]) -> None:
    """The vectorised arithmetic is the same arithmetic."""
    array = np.array(event_times, dtype=np.int64)
    assert windows.start_of(array).tolist() == [windows.start_of(t) for t in event_times]
    assert windows.end_of(array).tolist() == [windows.end_of(t) for t in event_times]
    assert windows.closed_at(array).tolist() == [windows.closed_at(t) for t in event_times]


@given(any_windows(), EVENT_TIMES)
def test_the_model_puts_a_time_in_the_same_window(windows: Windows, event_time: int) -> None:
    """The reference model agrees."""
    model = Windowed(windows.size_ms, windows.allowed_lateness_ms, windows.offset_ms)
    assert windows.start_of(event_time) == model.start_of(event_time)


@given(any_windows(), EVENT_TIMES)
def test_beam_puts_a_time_in_the_same_window(windows: Windows, event_time: int) -> None:
    """Beam's own `FixedWindows` of the same size and offset agrees."""
    window_fn = fixed_windows(windows)
    context = window_fn.AssignContext(to_timestamp(event_time))
    (window,) = window_fn.assign(context)
    assert (to_ms(window.start), to_ms(window.end)) == (
        windows.start_of(event_time),
        windows.end_of(event_time),
    )


@pytest.mark.parametrize("size", ["1m", 60, timedelta(minutes=1), 60.0, "60000ms"])
def test_a_minute_is_a_minute_however_written(size: Duration) -> None:
    """Durations are text, seconds or timedeltas."""
    assert Windows(size).size_ms == 60_000


def test_windows_round_trip_through_pickle() -> None:
    """Configuration travels to workers."""
    windows = Windows("1m", allowed_lateness="2m", offset="5s")
    assert pickle.loads(pickle.dumps(windows)) == windows


@pytest.mark.parametrize(
    ("size", "lateness", "offset", "complaint"),
    [
        (0, 0, 0, r"size \(--window\) must lie between 1ms and 73000d"),
        (-1, 0, 0, r"size \(--window\) must lie between"),
        ("1 minute", 0, 0, r"size \(--window\) must be a duration such as .* got '1 minute'"),
        ("10", 0, 0, r"size \(--window\) must be a duration such as"),
        (0.0005, 0, 0, r"size \(--window\) must be whole milliseconds"),
        ("73001d", 0, 0, r"size \(--window\) must lie between .* \(200 years\)"),
        (float("nan"), 0, 0, r"size \(--window\) must be a duration"),
        (True, 0, 0, r"size \(--window\) must be a duration"),
        ("1m", -1, 0, r"allowed_lateness \(--allowed_lateness\) must lie between 0s"),
        ("1m", "-1s", 0, r"allowed_lateness \(--allowed_lateness\) .* a duration is never neg"),
        ("1m", "73001d", 0, r"allowed_lateness \(--allowed_lateness\) must lie between"),
        ("1m", 0, "1m", r"offset \(--window_offset\) must be less than the window size \(1m\)"),
        ("1m", 0, "2m", r"offset \(--window_offset\) must be less .* \(1m\), got 2m"),
        ("1m", 0, -1, r"offset \(--window_offset\) must lie between 0s"),
    ],
)
def test_a_wrong_duration_is_refused_by_its_name(
    size: Duration, lateness: Duration, offset: Duration, complaint: str
) -> None:
    """The message names parameter and flag, the rule and what it got."""
    with pytest.raises(ValueError, match=complaint):
        Windows(size, lateness, offset)

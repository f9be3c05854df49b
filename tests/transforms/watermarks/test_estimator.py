"""The adapter to Beam's watermark estimator: the one place of the extra millisecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.beam_time import to_ms
from beam_lateness.transforms.times import (
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    NO_WATERMARK_MS,
)
from beam_lateness.transforms.watermarks.estimator import (
    GroupState,
    GroupStateCoder,
    GroupWatermarkEstimator,
    SplitState,
    exclusive,
)

FEW = settings(max_examples=60, deadline=None)
WATERMARKS = st.integers(NO_WATERMARK_MS, MAX_EVENT_TIME_MS)
MOMENTS = st.none() | st.integers(0, MAX_EVENT_TIME_MS)
GENERATORS = st.recursive(
    st.none() | st.booleans() | st.integers(MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
STATES = st.builds(
    GroupState,
    WATERMARKS,
    st.dictionaries(
        st.text(max_size=5),
        st.builds(SplitState, GENERATORS, MOMENTS, st.booleans()),
        max_size=4,
    ),
    MOMENTS,
)


@FEW
@given(STATES)
def test_a_state_survives_its_coder_in_whole_milliseconds(state: GroupState) -> None:
    """C39: what a checkpoint restores is what was reported, exactly."""
    coder = GroupStateCoder()
    restored = coder.decode(coder.encode(state))
    assert restored == state
    assert list(restored.splits) == list(state.splits)
    before = GroupWatermarkEstimator(state).current_watermark()
    assert GroupWatermarkEstimator(restored).current_watermark() == before


@FEW
@given(STATES)
def test_equal_states_have_equal_bytes(state: GroupState) -> None:
    """The coder says it is deterministic."""
    coder = GroupStateCoder()
    assert coder.is_deterministic()
    same = replace(state, splits=dict(state.splits))
    assert coder.encode(state) == coder.encode(same)


@FEW
@given(st.lists(STATES, max_size=8))
def test_the_reported_watermark_never_goes_back(states: list[GroupState]) -> None:
    """A lower state has no effect on it, and the splits' states are the last ones."""
    estimator = GroupWatermarkEstimator(GroupState())
    highest = NO_WATERMARK_MS
    for state in states:
        estimator.advance(state)
        highest = max(highest, state.watermark_ms)
        assert to_ms(estimator.current_watermark()) == highest + 1
        assert estimator.get_estimator_state() == replace(state, watermark_ms=highest)


def test_before_the_first_record_the_watermark_is_beams_minimum() -> None:
    """Nothing can be late then."""
    assert GroupWatermarkEstimator(GroupState()).current_watermark() == MIN_TIMESTAMP


def test_the_watermark_is_below_beams_maximum_while_the_source_lives() -> None:
    """C34: not even the largest of markers, or many empty polls, end time."""
    estimator = GroupWatermarkEstimator(GroupState())
    for watermark_ms in (MAX_EVENT_TIME_MS, 2**62, 0, 0, 0):
        estimator.advance(GroupState(watermark_ms))
        assert estimator.current_watermark() < MAX_TIMESTAMP


@FEW
@given(st.lists(WATERMARKS, max_size=5))
def test_exclusive_is_one_millisecond_more(watermarks: list[int]) -> None:
    """For one watermark and for an array."""
    expected = [each + 1 for each in watermarks]
    assert [exclusive(each) for each in watermarks] == expected
    assert exclusive(np.array(watermarks, dtype=np.int64)).tolist() == expected


def test_output_timestamps_do_not_move_the_watermark() -> None:
    """The generators have seen the records already."""
    estimator = GroupWatermarkEstimator(GroupState(5))
    estimator.observe_timestamp(Timestamp(1_000_000))
    assert to_ms(estimator.current_watermark()) == 6

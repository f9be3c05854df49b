"""The source's checkpoints: what the engine keeps of a group between two polls."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.reader import ReadEvents
from beam_lateness.transforms.sources.restriction import (
    PositionsTracker,
    Restriction,
    RestrictionCoder,
)
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.estimator import GroupStateCoder, GroupWatermarkEstimator
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.model import Event
from tests.transforms.sources.memory import by_split, expected, stamped, written

FEW = settings(max_examples=50, deadline=None)
POSITIONS = st.dictionaries(
    st.text(max_size=5),
    st.builds(
        SplitPosition,
        st.integers(0, 2**40),
        st.none() | st.integers(0, 2**40),
        st.booleans(),
    ),
    max_size=4,
)
ZERO = WatermarkStrategy.for_monotonous_timestamps()


@FEW
@given(POSITIONS)
def test_positions_survive_their_coder(positions: dict[str, SplitPosition]) -> None:
    """In their order, so that equal ones have equal bytes."""
    coder = RestrictionCoder()
    encoded = coder.encode(Restriction(positions))
    restored = coder.decode(encoded)
    assert list(restored.positions.items()) == list(positions.items())
    assert coder.encode(restored) == encoded
    assert coder.is_deterministic()


@FEW
@given(POSITIONS, st.floats(0.01, 0.99))
def test_a_group_is_split_at_a_checkpoint_only(
    positions: dict[str, SplitPosition], fraction: float
) -> None:
    """It is read in one order: an engine cannot take half of it away."""
    tracker = PositionsTracker(Restriction(positions))
    assert tracker.try_split(fraction) is None
    split = tracker.try_split(0)
    assert split is not None
    primary, residual = split
    assert residual.positions == positions
    assert all(position.done for position in primary.positions.values())
    assert tracker.try_split(0) is None
    assert not tracker.try_claim(Restriction(positions))
    assert tracker.check_done()


def test_a_group_that_is_not_read_to_its_end_is_not_done() -> None:
    """Beam is told so, with the names of what is left."""
    tracker = PositionsTracker(
        Restriction({"a": SplitPosition(5, 9), "b": SplitPosition(9, 9, True)})
    )
    with pytest.raises(ValueError, match="splits left unread: a"):
        tracker.check_done()
    assert tracker.try_claim(
        Restriction({"a": SplitPosition(9, 9, True), "b": SplitPosition(9, 9, True)})
    )
    assert tracker.check_done()


@FEW
@given(POSITIONS)
def test_progress_is_a_fraction(positions: dict[str, SplitPosition]) -> None:
    """Between nothing and all, also of nothing at all."""
    progress = PositionsTracker(Restriction(positions)).current_progress()
    assert 0 <= progress.fraction_completed <= 1


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abc"), st.lists(st.integers(0, 60), max_size=9), min_size=1, max_size=3
    ),
    st.sampled_from([40, 100, 1_000]),
)
def test_a_checkpoint_after_every_poll_changes_nothing(
    times: dict[str, list[int]], size: int
) -> None:
    """Each poll by a new reader, from the coded residual and the coded watermark state."""
    streams = {
        split: [Event("k", 1, ts, f"{split}{i}") for i, ts in enumerate(each)]
        for split, each in times.items()
    }
    source = written(streams)
    coder, state_coder = RestrictionCoder(), GroupStateCoder()
    restriction = coder.encode(Restriction(source.initial_positions()))
    state = state_coder.encode(source.reader(ZERO).state)
    polls: list[Poll] = []
    while not polls or not polls[-1].finished:
        tracker = PositionsTracker(coder.decode(restriction))
        estimator = GroupWatermarkEstimator(state_coder.decode(state))
        reader = source.reader(
            ZERO,
            ReadSettings(block_bytes=size),
            tracker.current_restriction().positions,
            estimator.get_estimator_state(),
        )
        polls.append(reader.poll())
        reader.close()
        assert tracker.try_claim(Restriction(polls[-1].positions))
        estimator.advance(polls[-1].state)
        split = tracker.try_split(0)
        assert split is not None
        restriction = coder.encode(split[1])
        state = state_coder.encode(estimator.get_estimator_state())
        assert len(polls) < 1_000
    assert by_split(stamped(polls)) == expected(streams, 0)


@pytest.mark.parametrize(
    ("follows", "speed"), [(True, None), (False, 1.0)], ids=["follow", "paced"]
)
def test_an_embedded_run_is_finite_and_at_full_speed(follows: bool, speed: float | None) -> None:
    """What cannot be run there is refused at construction."""
    source = written({"a": []}, follows)
    with pytest.raises(ValueError, match="embedded"):
        ReadEvents(source, ZERO, ReadSettings(replay_speed=speed), embedded=True)


def test_beams_python_runner_is_refused_without_embedded() -> None:
    """It would fail while it runs, with an error about its own inside."""
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner())
    with pytest.raises(ValueError, match=r"give it embedded=True .* or run on Prism"):
        _ = pipeline | ReadEvents(
            written({"a": [Event("k", 1, 5, "x")]}),
            ZERO.with_timestamp_assigner(FieldTime("t", "ms")),
        )


@pytest.mark.parametrize(("done", "counted"), [(True, [1, 2, 3]), (False, [0, 0, 0])])
def test_calls_are_counted_once_all_has_been_read(done: bool, counted: list[int]) -> None:
    """A finite input ends some calls after its last poll; until then nothing counts."""
    coder = RestrictionCoder()
    restriction = Restriction({"a": SplitPosition(5, done=True), "b": SplitPosition(7, done=done)})
    found = []
    for _ in counted:
        tracker = PositionsTracker(coder.decode(coder.encode(restriction)))
        assert tracker.try_claim(restriction)
        split = tracker.try_split(0)
        assert split is not None
        restriction = split[1]
        found.append(restriction.closing)
    assert found == counted

"""The laws of the running watermark generators."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import (
    MAX_DURATION_MS,
    MAX_EVENT_TIME_MS,
    MIN_EVENT_TIME_MS,
    NO_WATERMARK_MS,
)
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    BoundedOutOfOrdernessGenerator,
    HighestWatermark,
    NoWatermarksGenerator,
    PunctuatedGenerator,
)

Maker: TypeAlias = Callable[[int | None], BlockGenerator]
Stream: TypeAlias = list[tuple[int, bool]]

FEW = settings(max_examples=60, deadline=None)
TIMES = st.integers(-50, 50) | st.integers(MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS)
STREAMS = st.lists(st.tuples(TIMES, st.booleans()), max_size=20)
BOUNDS = st.sampled_from([0, 1, 20, MAX_DURATION_MS])


def bounded(bound_ms: int) -> Maker:
    """Makes generators with a bound."""
    return lambda state: BoundedOutOfOrdernessGenerator(bound_ms, state)


def punctuated(state: int | None) -> BlockGenerator:
    """Makes generators that go by the field `end`."""
    return PunctuatedGenerator("end", state)


def without(state: int | None) -> BlockGenerator:
    """Makes generators that emit nothing."""
    assert state is None
    return NoWatermarksGenerator()


MAKERS: st.SearchStrategy[Maker] = st.one_of(
    BOUNDS.map(bounded), st.just(punctuated), st.just(without)
)


def one_by_one(generator: BlockGenerator, stream: Stream) -> list[int]:
    """The highest watermark emitted so far, after each record and its periodic emit."""
    output = HighestWatermark()
    after = []
    for ts, marker in stream:
        generator.on_event({"end": marker}, ts, output)
        generator.on_periodic_emit(output)
        after.append(output.watermark_ms)
    return after


def at_once(generator: BlockGenerator, stream: Stream) -> list[int]:
    """The same by the vectorised callback."""
    times = np.array([ts for ts, _ in stream], dtype=np.int64)
    flags = np.array([marker for _, marker in stream], dtype=np.bool_)
    after: list[int] = generator.on_events(times, flags).tolist()
    return after


@FEW
@given(MAKERS, STREAMS)
def test_a_block_gives_what_its_records_give_one_by_one(make: Maker, stream: Stream) -> None:
    """`on_events` is `on_event` and `on_periodic_emit`, record by record."""
    whole, single = make(None), make(None)
    assert at_once(whole, stream) == one_by_one(single, stream)
    assert whole.state == single.state
    assert whole.watermark_ms == single.watermark_ms


@FEW
@given(MAKERS, STREAMS, st.data())
def test_a_generator_goes_on_from_its_state_at_any_cut(
    make: Maker, stream: Stream, data: st.DataObject
) -> None:
    """A checkpoint anywhere changes no watermark after it."""
    cut = data.draw(st.integers(0, len(stream)))
    expected = at_once(make(None), stream)
    first = make(None)
    before = at_once(first, stream[:cut])
    second = make(first.state)
    assert second.watermark_ms == first.watermark_ms
    assert before + at_once(second, stream[cut:]) == expected


@FEW
@given(MAKERS, STREAMS, st.data())
def test_block_sizes_do_not_matter(make: Maker, stream: Stream, data: st.DataObject) -> None:
    """Any cut of the stream into blocks gives the same watermarks."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    generator = make(None)
    after: list[int] = []
    for low, high in pairwise([0, *cuts, len(stream)]):
        after += at_once(generator, stream[low:high])
    assert after == at_once(make(None), stream)


@FEW
@given(MAKERS, STREAMS)
def test_watermark_never_goes_back(make: Maker, stream: Stream) -> None:
    """Whatever the order of the records."""
    generator = make(None)
    after = [generator.watermark_ms, *at_once(generator, stream), generator.watermark_ms]
    assert after == sorted(after)


@FEW
@given(BOUNDS, STREAMS)
def test_bounded_watermark_is_largest_less_bound_less_one(bound_ms: int, stream: Stream) -> None:
    """`T = max - bound - 1 ms` after every record."""
    largest = accumulate((ts for ts, _ in stream), max)
    assert at_once(bounded(bound_ms)(None), stream) == [each - bound_ms - 1 for each in largest]


@FEW
@given(STREAMS)
def test_punctuated_watermark_is_the_highest_marker(stream: Stream) -> None:
    """Records that are no markers leave it alone."""
    markers = (ts if marker else NO_WATERMARK_MS for ts, marker in stream)
    assert at_once(punctuated(None), stream) == list(accumulate(markers, max))


@FEW
@given(STREAMS)
def test_no_watermarks_means_none_ever(stream: Stream) -> None:
    """Nothing moves it."""
    generator = NoWatermarksGenerator()
    assert set(at_once(generator, stream)) <= {NO_WATERMARK_MS}
    assert set(one_by_one(generator, stream)) <= {NO_WATERMARK_MS}
    assert generator.state is None


@pytest.mark.parametrize("make", [bounded(0), bounded(MAX_DURATION_MS), punctuated, without])
def test_there_is_no_watermark_before_the_first_record(make: Maker) -> None:
    """Minimum less bound does not wrap, and an empty block or a periodic emit emits nothing."""
    generator, output = make(None), HighestWatermark()
    generator.on_periodic_emit(output)
    assert at_once(generator, []) == []
    assert generator.state is None
    assert generator.watermark_ms == output.watermark_ms == NO_WATERMARK_MS


def test_the_earliest_event_time_less_the_longest_bound_does_not_wrap() -> None:
    """The watermark of the first record is still above "none yet"."""
    (after,) = at_once(bounded(MAX_DURATION_MS)(None), [(MIN_EVENT_TIME_MS, False)])
    assert after == MIN_EVENT_TIME_MS - MAX_DURATION_MS - 1
    assert after > NO_WATERMARK_MS


@pytest.mark.parametrize("flag", [None, False, 1, "true", "yes"])
def test_only_true_marks_a_marker(flag: object) -> None:
    """Not everything that Python takes for true."""
    generator, output = PunctuatedGenerator("end"), HighestWatermark()
    generator.on_event({} if flag is None else {"end": flag}, 7, output)
    assert output.watermark_ms == NO_WATERMARK_MS


@FEW
@given(MAKERS, STREAMS.filter(bool))
def test_a_block_is_left_as_it_was(make: Maker, stream: Stream) -> None:
    """The event times are the batch's own column: a generator does not write into them."""
    times = np.array([ts for ts, _ in stream], dtype=np.int64)
    flags = np.array([marker for _, marker in stream], dtype=np.bool_)
    times.flags.writeable = flags.flags.writeable = False
    make(None).on_events(times, flags)


@FEW
@given(st.lists(st.integers(-9, 9), max_size=9))
def test_the_output_keeps_the_highest_watermark(emitted: list[int]) -> None:
    """A generator that emits a lower one has no effect."""
    output = HighestWatermark()
    for watermark_ms in emitted:
        output.emit_watermark(watermark_ms)
    assert output.watermark_ms == max([NO_WATERMARK_MS, *emitted])

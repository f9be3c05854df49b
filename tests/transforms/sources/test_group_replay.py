"""A finite replay of a group of splits: each record is judged by its own split's watermark."""

from __future__ import annotations

import json
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import GroupStateCoder, exclusive
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.model import Event, Marker
from tests.transforms.sources.memory import (
    MemoryInput,
    by_split,
    drain,
    expected,
    line_of,
    stamped,
    too_late,
    written,
)

Streams: TypeAlias = dict[str, list[Event | Marker]]

FEW = settings(max_examples=50, deadline=None)
SIZES = st.sampled_from([1, 40, 90, 200, 1_000, 1 << 20])
BOUNDS = st.sampled_from([0, 1, 7, 1_000])
RUBBISH = st.sampled_from([b"", b"  ", b"{oops", b'{"k":"a"}', b"\xff", b'{"end":3,"t":1}'])


def bounded(bound_ms: int) -> WatermarkStrategy:
    """A strategy with a bound in ms."""
    return WatermarkStrategy.for_bounded_out_of_orderness(bound_ms / 1000)


MARKERS = WatermarkStrategy.for_markers("end")


@st.composite
def streams_of(draw: st.DrawFn, markers: bool = False) -> Streams:
    """Streams of up to four splits, each record with a name of its own."""
    streams: Streams = {}
    for split in draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]:
        start = draw(st.sampled_from([0, 50, -50]))
        steps: list[Event | Marker] = []
        for ts in draw(st.lists(st.integers(0, 60), max_size=25)):
            if markers and draw(st.booleans()):
                steps.append(Marker(start + ts))
            else:
                steps.append(Event("k", 1, start + ts, f"{split}{len(steps)}"))
        streams[split] = steps
    return streams


@FEW
@given(streams_of(), BOUNDS, SIZES)
def test_stamps_are_those_of_each_splits_own_model(streams: Streams, bound: int, size: int) -> None:
    """Whatever the block size and the order of the splits."""
    polls = drain(written(streams).reader(bounded(bound), ReadSettings(block_bytes=size)))
    assert by_split(stamped(polls)) == expected(streams, bound)


@FEW
@given(streams_of(markers=True), SIZES)
def test_stamps_between_markers_are_those_of_the_model(streams: Streams, size: int) -> None:
    """A marker moves the watermark and is no record."""
    polls = drain(written(streams).reader(MARKERS, ReadSettings(block_bytes=size)))
    assert by_split(stamped(polls)) == expected(streams)


@FEW
@given(streams_of(), SIZES)
def test_without_watermarks_no_record_has_one(streams: Streams, size: int) -> None:
    """Nothing is late then."""
    strategy = WatermarkStrategy.no_watermarks()
    polls = drain(written(streams).reader(strategy, ReadSettings(block_bytes=size)))
    assert {record.stamp for record in stamped(polls)} <= {exclusive(NO_WATERMARK_MS)}
    assert polls[-1].state.watermark_ms == NO_WATERMARK_MS


@FEW
@given(streams_of(markers=True), st.booleans(), BOUNDS, SIZES)
def test_the_groups_watermark_never_goes_back_nor_above_a_later_stamp(
    streams: Streams, by_markers: bool, bound: int, size: int
) -> None:
    """So the engine, which is told it after each poll, drops nothing that is stamped in time."""
    strategy = MARKERS if by_markers else bounded(bound)
    polls = drain(written(streams).reader(strategy, ReadSettings(block_bytes=size)))
    reported = exclusive(NO_WATERMARK_MS)
    for poll in polls:
        assert all(record.stamp >= reported for record in stamped([poll]))
        assert exclusive(poll.state.watermark_ms) >= reported
        reported = exclusive(poll.state.watermark_ms)


@FEW
@given(streams_of(markers=True), st.lists(st.tuples(st.integers(0, 9), RUBBISH)), SIZES)
def test_every_line_is_a_record_or_invalid_or_blank_or_a_marker(
    streams: Streams, rubbish: list[tuple[int, bytes]], size: int
) -> None:
    """Counts are conserved, and rubbish changes no record."""
    texts = {split: [line_of(step) for step in steps] for split, steps in streams.items()}
    for place, line in rubbish:
        split = sorted(texts)[place % len(texts)]
        texts[split].insert(min(place, len(texts[split])), line + b"\n")
    source = MemoryInput({split: b"".join(lines) for split, lines in texts.items()})
    polls = drain(source.reader(MARKERS, ReadSettings(block_bytes=size)))
    bad = [line for _, line in rubbish]
    blank = sum(not line.strip() for line in bad)
    assert by_split(stamped(polls)) == expected(streams)
    assert sum(poll.blank for poll in polls) == blank
    invalid = [record for poll in polls for record in poll.invalid]
    assert len(invalid) == len(bad) - blank
    for record in invalid:
        assert record.split is not None
        assert isinstance(record.position, int)
        assert record.payload is not None
        text = source.texts[record.split]
        assert text[record.position :].startswith(record.payload + b"\n")
        assert record.record_id == f"{record.split}:{record.position}"


@FEW
@given(streams_of(markers=True), st.booleans(), SIZES, SIZES, st.data())
def test_reading_goes_on_from_any_poll(
    streams: Streams, by_markers: bool, size: int, other_size: int, data: st.DataObject
) -> None:
    """A checkpoint of positions and state gives the rest, with the same stamps, once each."""
    strategy = MARKERS if by_markers else bounded(7)
    source = written(streams)
    reader = source.reader(strategy, ReadSettings(block_bytes=size))
    polls: list[Poll] = []
    for _ in range(data.draw(st.integers(1, 6))):
        polls.append(reader.poll())
        if polls[-1].finished:
            break
    positions = {name: SplitPosition(*p) for name, p in polls[-1].positions.items()}
    coder = GroupStateCoder()
    state = coder.decode(coder.encode(polls[-1].state))
    resumed = source.reader(strategy, ReadSettings(block_bytes=other_size), positions, state)
    assert (resumed.positions, resumed.state) == (polls[-1].positions, polls[-1].state)
    polls += drain(resumed)
    assert by_split(stamped(polls)) == expected(streams, None if by_markers else 7)
    watermarks = [poll.state.watermark_ms for poll in polls]
    assert watermarks == sorted(watermarks)


@FEW
@given(streams_of(markers=True), st.lists(st.tuples(st.integers(0, 9), RUBBISH)), st.data())
def test_invalid_and_blank_lines_are_counted_once_whatever_the_cut(
    streams: Streams, rubbish: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    """A restart neither repeats nor forgets one."""
    texts = {split: [line_of(step) for step in steps] for split, steps in streams.items()}
    for place, line in rubbish:
        split = sorted(texts)[place % len(texts)]
        texts[split].insert(min(place, len(texts[split])), line + b"\n")
    source = MemoryInput({split: b"".join(lines) for split, lines in texts.items()})
    whole = drain(source.reader(bounded(0)))
    settings_ = ReadSettings(block_bytes=data.draw(SIZES))
    reader = source.reader(bounded(0), settings_)
    polls = [reader.poll() for _ in range(data.draw(st.integers(1, 4)))]
    polls += drain(source.reader(bounded(0), settings_, reader.positions, reader.state))
    assert sum(len(poll.invalid) for poll in polls) == sum(len(poll.invalid) for poll in whole)
    assert sum(poll.blank for poll in polls) == sum(poll.blank for poll in whole)


def test_blank_lines_of_a_block_that_is_released_in_part_are_counted_once() -> None:
    """A restart in the middle of a block goes on behind the blank lines before it."""
    fast = [line_of(Event("k", 1, t * 1_000, f"f{t}")) for t in range(4)]
    slow = [line_of(Event("k", 1, t, f"s{t}")) for t in range(40)]
    source = MemoryInput({"fast": b"\n".join(fast), "slow": b"".join(slow)})
    settings_ = ReadSettings(block_bytes=400)
    reader = source.reader(bounded(0), settings_)
    first = reader.poll()
    assert 0 < first.positions["fast"].offset < len(source.texts["fast"])
    rest = drain(source.reader(bounded(0), settings_, first.positions, first.state))
    assert first.blank + sum(poll.blank for poll in rest) == 3


@FEW
@given(streams_of(), BOUNDS, st.sampled_from([1, 10]), st.sampled_from([0, 5]))
def test_too_late_records_are_those_of_the_model(
    streams: Streams, bound: int, size: int, lateness: int
) -> None:
    """The stamps are all that a verdict needs."""
    polls = drain(written(streams).reader(bounded(bound), ReadSettings(block_bytes=90)))
    judged = [record for records in expected(streams, bound).values() for record in records]
    assert too_late(stamped(polls), size, lateness) == too_late(judged, size, lateness)


@FEW
@given(streams_of().filter(lambda s: any(s.values())), SIZES)
def test_at_the_end_the_groups_watermark_is_the_highest(streams: Streams, size: int) -> None:
    """Nothing is to come from any split."""
    polls = drain(written(streams).reader(bounded(0), ReadSettings(block_bytes=size)))
    highest = max(step.ts for steps in streams.values() for step in steps)
    assert polls[-1].state.watermark_ms == highest - 1
    assert all(position.done for position in polls[-1].positions.values())


@pytest.mark.parametrize("size", [100, 1_000, 1 << 20])
@pytest.mark.parametrize("start", [0, 3_600_000])
def test_nothing_is_late_where_one_file_starts_an_hour_behind(size: int, start: int) -> None:
    """W11 and C32: per split all is in time; one maximum over both loses the second file."""
    streams: Streams = {
        "p0": [Event("k", 1, start + t * 10_000, f"p0:{t}") for t in range(101)],
        "p1": [Event("k", 1, t * 10_000, f"p1:{t}") for t in range(101)],
    }
    polls = drain(written(streams).reader(bounded(0), ReadSettings(block_bytes=size)))
    records = stamped(polls)
    assert len(records) == 202
    assert too_late(records, 60_000, 0) == set()
    merged: Streams = {"one": [*streams["p0"], *streams["p1"]]}
    lost = too_late(stamped(drain(written(merged).reader(bounded(0)))), 60_000, 0)
    assert len(lost) > 90
    assert all(name.startswith("p1") for name in lost)


def test_a_fast_split_waits_for_a_slow_one() -> None:
    """Only what the lowest watermark allows is released: the rest stays in the block."""
    streams: Streams = {
        "fast": [Event("k", 1, t * 1_000, f"f{t}") for t in range(50)],
        "slow": [Event("k", 1, t, f"s{t}") for t in range(50)],
    }
    reader = written(streams).reader(bounded(0), ReadSettings(block_bytes=400))
    first = stamped([reader.poll()])
    assert max(record.ts for record in first if record.split == "fast") <= 1_000
    assert {record.name for record in stamped(drain(reader))} | {r.name for r in first} == {
        step.name for steps in streams.values() for step in steps if isinstance(step, Event)
    }


def test_positions_are_those_of_the_lines() -> None:
    """A record can be found in its file again."""
    streams: Streams = {"a": [Event("k", i, i, f"n{i}") for i in range(9)]}
    source = written(streams)
    for poll in drain(source.reader(bounded(0), ReadSettings(block_bytes=100))):
        for batch in poll.batches:
            for row in batch.columns.to_pylist():
                line = source.texts["a"][row["position"] :].split(b"\n")[0]
                assert json.loads(line)["id"] == row["id"]
                assert row["payload"].rstrip(b"\r\n") == line

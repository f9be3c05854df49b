"""`TagLate`: records behind the watermark, in streams where nothing else would say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pvalue import TaggedOutput
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness import EventBatch, FieldTime, ReadEvents, ReadSettings, TagLate
from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import EventBatchCoder
from beam_lateness.transforms.lateness.tag_late import LATE_TAG, _TagByStamp, behind_ms
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.cases.engine import direct_pipeline, keep, kept
from tests.model import NO_WATERMARK, Event, bounded
from tests.transforms.lateness.batches import batch_of
from tests.transforms.sources.memory import drain, written

BOUND_MS = 20_000
M = 1_000_000  # the largest event time in the examples
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("20s")


@pytest.fixture(autouse=True)
def own_tally() -> Iterator[None]:
    """Begins and ends with nothing counted."""
    metrics.start_tally()
    yield
    metrics.start_tally()


def tagged(batch: EventBatch) -> tuple[list[EventBatch], list[EventBatch]]:
    """What is on time and what is late, without a runner."""
    on_time: list[EventBatch] = []
    late: list[Any] = []
    for output in _TagByStamp().process(batch):
        if isinstance(output, TaggedOutput):
            assert output.tag == LATE_TAG
            late.append(output.value)
        else:
            on_time.append(output)
    return on_time, late


def behind_of(batches: list[EventBatch]) -> dict[str, int]:
    """How far each record is behind, by its id."""
    return {row["record_id"]: row["behind_ms"] for batch in batches for row in batch.to_pylist()}


@pytest.mark.parametrize(("ts", "behind"), [(M - BOUND_MS, 0), (M - BOUND_MS - 1, 1)])
def test_a_record_at_the_watermark_is_on_time_and_one_below_is_late(ts: int, behind: int) -> None:
    """W5: off by one millisecond on purpose; the bound's own reading, by what the source stamps."""
    reader = written({"a": [Event("k", 1, M, "top"), Event("k", 1, ts, "x")]}).reader(STRATEGY)
    (batch,) = [batch for poll in drain(reader) for batch in poll.batches]
    on_time, late = tagged(batch)
    if behind:
        assert (behind_of(on_time), behind_of(late)) == ({"top": 0}, {"x": behind})
    else:
        assert (behind_of(on_time), behind_of(late)) == ({"top": 0, "x": 0}, {})


def test_an_equal_time_without_a_bound_is_not_late() -> None:
    """W5 with bound 0."""
    events = [Event("k", 1, ts, name) for ts, name in [(M, "x"), (M, "y"), (M - 1, "z")]]
    on_time, late = tagged(batch_of(list(bounded(events, 0))))
    assert (behind_of(on_time), behind_of(late)) == ({"x": 0, "y": 0}, {"z": 1})


TIMES = st.integers(-30, 30) | st.sampled_from([MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS])
STAMPED = st.lists(
    st.tuples(TIMES, TIMES | st.just(NO_WATERMARK)).map(
        lambda row: (Event("k", row[0] % 7, row[0], ""), row[1])
    ),
    max_size=30,
)


@given(STAMPED)
def test_each_record_is_either_on_time_or_late_and_nothing_else_changes(
    rows: list[tuple[Event, int]],
) -> None:
    """On time + late = input, in order, with all that the batch held."""
    stamped = [(event._replace(name=str(n)), stamp) for n, (event, stamp) in enumerate(rows)]
    batch = batch_of(stamped, split="day.jsonl")
    on_time, late = tagged(batch)
    given_ = {
        event.name: max(0, watermark - event.ts) if watermark > event.ts else 0
        for event, watermark in stamped
    }
    assert behind_ms(batch).tolist() == list(given_.values())
    assert list(behind_of(on_time).items()) == [(n, ms) for n, ms in given_.items() if ms == 0]
    assert list(behind_of(late).items()) == [(n, ms) for n, ms in given_.items() if ms > 0]
    assert all(len(each) for each in [*on_time, *late])
    whole = {row["record_id"]: row for row in batch.to_pylist()}
    for each in [*on_time, *late]:
        assert each.split == "day.jsonl"
        for row in each.to_pylist():
            assert row == {**whole[row["record_id"]], "behind_ms": given_[row["record_id"]]}


@given(STAMPED.filter(len))
def test_marked_batches_survive_their_coder(rows: list[tuple[Event, int]]) -> None:
    """With the column that was added."""
    coder = EventBatchCoder()
    on_time, late = tagged(batch_of(rows))
    for each in [*on_time, *late]:
        assert coder.decode(coder.encode(each)).to_pylist() == each.to_pylist()


def test_late_records_are_counted() -> None:
    """As `behind_watermark`: nothing was dropped, and no window was asked."""
    late = [(Event("k", 1, ts, str(ts)), 10) for ts in (9, 10, 11, 3)]
    tagged(batch_of(late))
    tagged(batch_of(late[:1]))
    assert metrics.tally() == {metrics.BEHIND_WATERMARK: 3}


def tag(events: list[Event], folder: Path, block_bytes: int) -> tuple[dict[str, int], ...]:
    """Runs a stream without windows; gives what is on time and what is late."""
    source = ReadEvents(
        written({"a": events}),
        STRATEGY.with_timestamp_assigner(FieldTime("t", "ms")),
        ReadSettings(block_bytes=block_bytes),
        embedded=True,
    )
    with direct_pipeline() as pipeline:
        result = (pipeline | source).events | TagLate()
        keep(result.on_time, folder, "on_time")
        keep(result.late, folder, "late")
    return behind_of(kept(folder, "on_time")), behind_of(kept(folder, "late"))


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_in_a_stream_without_windows_late_records_are_kept_and_marked(
    tmp_path: Path, block_bytes: int
) -> None:
    """W14: nothing drops them there, and nothing else routes them."""
    seconds = [0, 30, 5, 12, 60, 39, 40, 41, 10]
    events = [Event("k", 1, M + 1_000 * second, str(second)) for second in seconds]
    on_time, late = tag(events, tmp_path, block_bytes)
    assert late == {"5": 5_000, "39": 1_000, "10": 30_000}
    assert on_time == dict.fromkeys(["0", "30", "12", "60", "40", "41"], 0)
    assert metrics.tally()[metrics.BEHIND_WATERMARK] == 3
    assert metrics.tally()[metrics.INPUT] == len(events)


def test_marked_records_can_be_flattened_again(tmp_path: Path) -> None:
    """Where marks are enough: both outputs are batches as the source gives them."""
    source = ReadEvents(
        written({"a": [Event("k", 1, ts, str(ts)) for ts in (M, M - BOUND_MS - 7)]}),
        STRATEGY.with_timestamp_assigner(FieldTime("t", "ms")),
        embedded=True,
    )
    with direct_pipeline() as pipeline:
        result = (pipeline | source).events | TagLate()
        assert result.on_time.element_type is result.late.element_type is EventBatch
        keep((result.on_time, result.late) | beam.Flatten(), tmp_path, "all")
    assert behind_of(kept(tmp_path, "all")) == {str(M): 0, str(M - BOUND_MS - 7): 7}


def test_a_collection_without_stamps_is_refused() -> None:
    """At expansion: only `ReadEvents` knows the watermark at which a record came."""
    pipeline = direct_pipeline()
    pairs = pipeline | beam.Create([("k", 1)])
    with pytest.raises(ValueError, match=r"TagLate takes the events of ReadEvents.*Tuple"):
        _ = pairs | TagLate()

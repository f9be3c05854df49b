"""Traces: a pane of late records names exactly those, and the watermark when they came."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.testing import test_stream
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.window import TimestampedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import AggregateWindows, EventBatch, Pane, RouteTooLate, Windows
from beam_lateness.transforms.beam_time import to_timestamp
from beam_lateness.transforms.lateness.aggregation import ColumnAggregation
from beam_lateness.transforms.lateness.partials import PreAggregateBatches
from beam_lateness.transforms.lateness.traces import Trace, attach, detach, traces_of
from tests.cases.check import panes_by_cell
from tests.cases.engine import direct_pipeline, keep, kept, run_records, stream_of
from tests.cases.load import windows_of
from tests.model import NO_WATERMARK, Event, Windowed, bounded
from tests.transforms.lateness.batches import batch_of
from tests.transforms.lateness.script import run_file, steps_of
from tests.transforms.lateness.streams import Stamped, events, small_windows

WINDOWS: Final = windows_of(10_000, 20_000)
STEPS: Final = steps_of("a:1@1; wm 10; a:2@2; b:4@3; wm 12; a:8@4; wm 29.999; b:16@5; end")

# (key, window start) and then the late records, each with its stamp.
Late = dict[tuple[str, int], list[tuple[str, int]]]


def late_of(stamped: Stamped, windows: Windows) -> Late:
    """Says which records are late by the model, in the order in which they come."""
    model = Windowed(windows.size_ms, windows.allowed_lateness_ms, windows.offset_ms)
    found: Late = defaultdict(list)
    for event, watermark in stamped:
        model.watermark, before = watermark, len(model.late)
        model.record(event)
        if len(model.late) > before:
            found[event.key, model.start_of(event.ts)].append((event.name, watermark))
    return found


def cuts(stamped: Stamped, dice: random.Random) -> Iterator[Stamped]:
    """Cuts a stream into batches anywhere."""
    start = 0
    while start < len(stamped):
        end = start + dice.randint(1, 7)
        yield stamped[start:end]
        start = end


def stream(batches: Sequence[Stamped], dice: random.Random) -> test_stream.TestStream:
    """Feeds batches; the engine's watermark is anything up to the last stamp."""
    feed, reached = test_stream.TestStream(), NO_WATERMARK
    for batch in batches:
        earliest = min(event.ts for event, _ in batch)
        element = TimestampedValue(batch_of(batch), to_timestamp(earliest))
        feed = feed.add_elements([element])
        watermark = batch[-1][1] - dice.choice([0, 0, 3, 30])
        if watermark > reached and batch[-1][1] != NO_WATERMARK:
            feed, reached = feed.advance_watermark_to(to_timestamp(watermark)), watermark
    return feed.advance_watermark_to_infinity()


def check_traces(panes: Sequence[Pane], late: Late, *, discarding: bool) -> None:
    """ON_TIME panes have the window's end; LATE ones exactly the records that made them."""
    found: dict[tuple[str, int], list[str]] = {}
    for (key, (start, end)), group in panes_by_cell(panes).items():
        stamps = dict(late.get((key, start), ()))
        before = 0
        for pane in group:
            if pane.timing == "ON_TIME":
                assert (pane.watermark, pane.record_ids) == (end, None)
            else:
                assert pane.record_ids
                assert pane.watermark == max(stamps[name] for name in pane.record_ids)
                assert len(pane.record_ids) == pane.count - before
                found.setdefault((key, start), []).extend(pane.record_ids)
            before = 0 if discarding else pane.count
    assert found == {cell: [name for name, _ in records] for cell, records in late.items()}


@settings(max_examples=10)
@given(
    data=st.data(),
    windows=small_windows(),
    bound=st.integers(0, 15),
    num_shards=st.integers(1, 3),
    discarding=st.booleans(),
    seed=st.integers(0, 9999),
)
def test_panes_name_exactly_the_late_records_that_made_them(
    data: st.DataObject, windows: Windows, bound: int, num_shards: int, discarding: bool, seed: int
) -> None:
    """However batches are cut and the engine lags; without a trace the same panes have none."""
    stamped = list(bounded(data.draw(events(windows)), bound))
    dice = random.Random(seed)
    mode = AccumulationMode.DISCARDING if discarding else AccumulationMode.ACCUMULATING
    how: dict[str, Any] = {"num_shards": num_shards, "accumulation_mode": mode}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with direct_pipeline() as pipeline:
            batches = pipeline | stream(list(cuts(stamped, dice)), dice)
            batches.element_type = EventBatch
            accepted = (batches | RouteTooLate(windows)).accepted
            keep(accepted | "T" >> AggregateWindows(windows, trace=True, **how), folder, "traced")
            keep(accepted | "U" >> AggregateWindows(windows, **how), folder, "untraced")
        traced, untraced = kept(folder, "traced"), kept(folder, "untraced")
    check_traces(traced, late_of(stamped, windows), discarding=discarding)
    plain = [pane._replace(watermark=None, record_ids=None) for pane in traced]
    assert sorted(plain) == sorted(untraced)


def test_a_trace_joins_the_late_records_of_a_pane(tmp_path: Path) -> None:
    """Each correction has its own records and the stamp of the last one."""
    got = run_file(STEPS, WINDOWS, tmp_path, trace=True)
    assert [(p.key, p.value, p.timing, p.watermark, p.record_ids) for p in got.panes] == [
        ("a", 1, "ON_TIME", 10_000, None),
        ("a", 3, "LATE", 10_000, ("2",)),
        ("a", 11, "LATE", 12_000, ("5",)),
        ("b", 4, "LATE", 10_000, ("3",)),
        ("b", 20, "LATE", 29_999, ("7",)),
    ]


def test_records_without_stamps_have_no_ids(tmp_path: Path) -> None:
    """Only the engine knew when they came; the end of the window is known all the same."""
    got = run_records(STEPS, WINDOWS, tmp_path, trace=True)
    assert {(p.timing, p.watermark, p.record_ids) for p in got.panes} == {
        ("ON_TIME", 10_000, None),
        ("LATE", None, None),
    }


def test_a_key_may_have_no_hash(tmp_path: Path) -> None:
    """A list, where records are plain; no trace is looked up then."""
    keys = stream_of(steps_of("x:1@1; wm 10; x:4@3; end"), lambda event: ([1, 2], event.value))
    with direct_pipeline() as pipeline:
        records = pipeline | keys
        records.element_type = beam.typehints.Tuple[beam.typehints.Any, int]
        keep(records | AggregateWindows(WINDOWS), tmp_path, "panes")
    found = sorted(kept(tmp_path, "panes"), key=lambda pane: pane.index)
    assert [(pane.key, pane.value) for pane in found] == [([1, 2], 1), ([1, 2], 5)]


def partials(stamped: Stamped, *, trace: bool) -> list[tuple[int, bytes]]:
    """Gives what a batch becomes before the shuffle."""
    aggregate = PreAggregateBatches(ColumnAggregation(["sum"]), WINDOWS, 2, trace=trace)
    return [element.value for element in aggregate.process(batch_of(stamped))]


@given(rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9999)), min_size=1))
def test_records_that_are_not_late_carry_no_trace(rows: list[tuple[str, int]]) -> None:
    """Not a byte more goes through the shuffle."""
    stamped = [(Event(key, 1, ts, "name"), 9_999) for key, ts in rows]
    assert partials(stamped, trace=True) == partials(stamped, trace=False)


def test_without_a_trace_late_records_carry_none_either() -> None:
    """The ids are not there."""
    late = [(Event("a", 1, 1, "a-long-name"), 10_000)]
    (traced,), (untraced,) = partials(late, trace=True), partials(late, trace=False)
    assert b"a-long-name" in traced[1]
    assert b"a-long-name" not in untraced[1]


names: Final = st.text(st.characters(exclude_categories=()), max_size=4)
rows_of_late: Final = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0, 10_000]), st.integers(0, 99)), max_size=12
)


@given(rows=rows_of_late, split=names, cut=st.integers(0, 12))
def test_traces_come_out_of_partials_as_they_went_in(
    rows: list[tuple[str, int, int]], split: str, cut: int
) -> None:
    """By key, in order of arrival over several batches, whatever a file's name is."""
    late = [(Event(key, 1, start), stamp) for key, start, stamp in rows]
    parts, expected = [], defaultdict(list)
    for low, part in ((0, late[:cut]), (cut, late[cut:])):
        columns = batch_of(part).columns
        ids = pa.array([None] * len(part), pa.string())
        batch = EventBatch(split, columns.set_column(2, "id", ids))
        starts = np.array([event.ts for event, _ in part], dtype=np.int64)
        traces = traces_of(batch, starts).get(0, {})
        table = pa.RecordBatch.from_pydict({"key": pa.array(sorted(traces), pa.string())})
        parts.append(pa.Table.from_batches([attach(table, traces)]))
        for place, (key, start, stamp) in enumerate(rows[low : low + len(part)]):
            if start == 0:
                expected[key].append((stamp, f"{split}:{place}"))
    tables, found = detach(parts)
    assert all(table.column_names == ["key"] for table in tables)
    assert found == {
        key: Trace(max(stamp for stamp, _ in of_key), tuple(_escaped(name) for _, name in of_key))
        for key, of_key in expected.items()
    }


def _escaped(name: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in name)


def test_many_late_records_of_one_key_are_traced_in_order() -> None:
    """All of a block: each once (joining them one by one would take minutes)."""
    count = 60_000
    batch = batch_of([(Event("a", 1, 5, str(n)), n) for n in range(count)])
    trace = traces_of(batch, np.zeros(count, dtype=np.int64))[0]["a"]
    assert trace == Trace(count - 1, tuple(map(str, range(count))))

"""The columnar batch and its coder."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders.typecoders import registry
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.batch import (
    EventBatch,
    EventBatchCoder,
    decode_columns,
    encode_columns,
    record_id,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.text(max_size=5),
            "value": st.none() | INT64,
            "id": st.none() | st.text(max_size=5),
            "event_time": INT64,
            "watermark": INT64,
            "position": st.integers(0, 2**63 - 1),
            "payload": st.binary(max_size=9),
        }
    ),
    max_size=6,
)
SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "value": pa.int64(),
        "id": pa.string(),
        "event_time": pa.int64(),
        "watermark": pa.int64(),
        "position": pa.int64(),
        "payload": pa.binary(),
    }
)


def batch_of(rows: list[dict[str, object]], split: str = "a.jsonl") -> EventBatch:
    """A batch of plain rows."""
    return EventBatch(split, pa.RecordBatch.from_pylist(rows, SCHEMA))


@settings(max_examples=50, deadline=None)
@given(ROWS, st.text(st.characters(codec="utf-8"), min_size=1, max_size=9))
def test_a_batch_survives_its_coder(rows: list[dict[str, object]], split: str) -> None:
    """Every column and the split's name come back."""
    coder = EventBatchCoder()
    batch = batch_of(rows, split)
    assert coder.decode(coder.encode(batch)) == batch


@settings(max_examples=30, deadline=None)
@given(ROWS, st.data())
def test_a_part_of_a_batch_survives_its_coder(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    """A slice shares buffers with its whole, and its coded form holds the slice only."""
    low = data.draw(st.integers(0, len(rows)))
    high = data.draw(st.integers(low, len(rows)))
    part = EventBatch("a", batch_of(rows).columns.slice(low, high - low))
    coder = EventBatchCoder()
    assert coder.decode(coder.encode(part)).columns.to_pylist() == rows[low:high]


def test_a_split_named_in_bytes_that_are_no_text_survives_the_coder() -> None:
    """A file name may hold any bytes; Python shows the odd ones as lone surrogates."""
    split = b"logs/caf\xe9.jsonl".decode(errors="surrogateescape")
    coder = EventBatchCoder()
    assert coder.decode(coder.encode(batch_of([], split))).split == split


def test_beam_finds_the_coder_by_itself() -> None:
    """The batch's coder is registered: no pickling between steps."""
    assert isinstance(registry.get_coder(EventBatch), EventBatchCoder)


def test_the_coder_says_it_is_not_deterministic() -> None:
    """Batches are never keys."""
    assert not EventBatchCoder().is_deterministic()


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_filter_and_take_pick_whole_rows_in_order(rows: list[dict[str, object]]) -> None:
    """What is picked by flag or by index is what a list would give."""
    batch = batch_of(rows)
    odd = np.arange(len(rows)) % 2 == 1
    backwards = np.arange(len(rows), dtype=np.int64)[::-1].copy()
    assert batch.filter(odd).columns.to_pylist() == rows[1::2]
    assert batch.take(backwards).columns.to_pylist() == rows[::-1]
    assert len(batch) == len(rows)


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_times_and_stamps_are_the_columns(rows: list[dict[str, object]]) -> None:
    """The arrays are the columns, bit for bit."""
    batch = batch_of(rows)
    assert batch.event_times.tolist() == [row["event_time"] for row in rows]
    assert batch.watermarks.tolist() == [row["watermark"] for row in rows]
    assert batch.event_times.dtype == batch.watermarks.dtype == np.int64


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_columns_survive_arrow_ipc(rows: list[dict[str, object]]) -> None:
    """The plain encoding keeps the schema and the rows."""
    columns = batch_of(rows).columns
    assert decode_columns(encode_columns(columns)).equals(columns)


@pytest.mark.parametrize(("own", "expected"), [("x1", "x1"), (None, "a:7"), ("", "")])
def test_a_record_is_known_by_its_id_or_else_by_its_place(own: str | None, expected: str) -> None:
    """An empty id is an id."""
    assert record_id("a", {"id": own, "position": 7}) == expected


def test_rows_carry_their_split_and_their_record_id() -> None:
    """What leaves as dictionaries can be traced back."""
    row = dict.fromkeys(SCHEMA.names) | {"id": None, "position": 12}
    (given_row,) = batch_of([row], "b.jsonl").to_pylist()
    assert given_row["split"] == "b.jsonl"
    assert given_row["record_id"] == "b.jsonl:12"

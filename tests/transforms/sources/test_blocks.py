"""Blocks cut into lines, and columns put together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.blocks import Columns, Lines
from beam_lateness.transforms.sources.records import Record
from tests.transforms.sources.oracle import cut, in_column, rows_of

FEW = settings(max_examples=50, deadline=None)
BLOCKS = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.text("ab \t\r\n\x0b", min_size=1, max_size=30).map(str.encode),
)
RECORDS = st.lists(
    st.builds(
        Record,
        st.text(max_size=3),
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
        st.none() | st.text(max_size=3),
        st.integers(-99, 99),
        st.just(False),
    ),
    max_size=8,
)


@FEW
@given(BLOCKS)
def test_a_block_is_cut_at_its_line_breaks_and_blank_lines_are_counted(data: bytes) -> None:
    """A line is what a trivial split gives; one of white space alone is blank."""
    lines = Lines(data)
    expected = [raw for raw in cut(data) if raw.strip()]
    assert [lines[i] for i in range(len(lines))] == expected
    assert len(lines) + len(lines.blank_starts) == len(cut(data))


@FEW
@given(BLOCKS)
def test_a_line_starts_where_the_block_says(data: bytes) -> None:
    """Positions of records are these: a line break, or nothing, stands before each."""
    lines = Lines(data)
    for number, start in enumerate(lines.starts.tolist()):
        assert data[start:].startswith(lines[number])
    starts = sorted([*lines.starts.tolist(), *lines.blank_starts.tolist()])
    breaks = [i + 1 for i in range(len(data) - 1) if data[i : i + 1] == b"\n"]
    assert starts == [0, *breaks]


@FEW
@given(BLOCKS)
def test_payloads_give_each_line_exactly(data: bytes) -> None:
    """All lines that are not blank, in order, line breaks aside."""
    lines = Lines(data)
    payloads = [payload.rstrip(b"\r\n") for payload in lines.payloads().to_pylist()]
    assert payloads == [raw.rstrip(b"\r") for raw in cut(data) if raw.strip()]


def test_payloads_end_with_their_line_break() -> None:
    """As the docstring says, whether the block has blank lines or not."""
    assert Lines(b"a\nb\n").payloads().to_pylist() == [b"a\n", b"b\n"]
    assert Lines(b"a\n\nb\n").payloads().to_pylist() == [b"a\n", b"b\n"]


def test_an_empty_block_has_no_lines() -> None:
    """A block of nothing is a block."""
    assert len(Lines(b"")) == 0


@FEW
@given(RECORDS)
def test_columns_hold_their_records(records: list[Record]) -> None:
    """Integers stay integers, unless a float stands among them."""
    rows = list(enumerate(records))
    columns = Columns.of([line for line, _ in rows], records)
    assert rows_of(columns) == in_column(rows, columns.value.type)
    if not any(isinstance(record.value, float) for record in records):
        assert rows_of(columns) == rows


@FEW
@given(RECORDS.filter(bool), st.data())
def test_columns_of_parts_are_put_in_the_order_of_their_lines(
    records: list[Record], data: st.DataObject
) -> None:
    """Wherever each part comes from."""
    numbers = data.draw(st.permutations(range(len(records))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=3)))
    parts = [
        Columns.of(list(numbers[low:high]), [records[i] for i in numbers[low:high]])
        for low, high in pairwise([0, *cuts, len(records)])
        if low < high
    ]
    joined = Columns.concat(parts)
    if len(parts) > 1:
        assert rows_of(joined) == in_column(list(enumerate(records)), joined.value.type)


@FEW
@given(RECORDS, st.data())
def test_slices_and_picks_of_columns_are_those_of_a_list(
    records: list[Record], data: st.DataObject
) -> None:
    """Rows stay whole."""
    columns = Columns.of(list(range(len(records))), records)
    rows = rows_of(columns)
    low = data.draw(st.integers(0, len(records)))
    high = data.draw(st.integers(low, len(records)))
    assert rows_of(columns.slice(low, high)) == rows[low:high]
    picks = np.arange(low, high, dtype=np.int64)[::-1].copy()
    assert rows_of(columns.take(picks)) == rows[low:high][::-1]

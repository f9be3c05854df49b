"""The columnar parser of CSV against `Fields.read`, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.blocks import Lines
from beam_lateness.transforms.sources.parsing import CsvParser
from beam_lateness.transforms.sources.records import Fields, Line, read_csv_line
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.transforms.sources.oracle import FIELDS, in_column, read_each, rows_of

FEW = settings(max_examples=100, deadline=None)

HEADER: Final = ("x", "k", "v", "t", "id", "end")
PLAIN: Final = b",a,1,5,i,"
SAMPLES: Final[list[list[Line]]] = [
    [],
    [{"k": "a", "v": 1, "id": "i", "t": 5}],
    [{"k": "a", "v": 1.5, "id": "i", "t": 5}],
]
RULES: Final = [
    FIELDS,
    replace(FIELDS, marker=None),
    replace(FIELDS, value=None, id=None),
    replace(FIELDS, id="k"),
    replace(FIELDS, value="t"),
    *(replace(FIELDS, timestamps=FieldTime("t", unit)) for unit in ("s", "us", "ns", "iso")),
    replace(FIELDS, timestamps=lambda line: int(line["t"])),
]
CELLS: Final = [
    *("", "a", "a", "1", "5", "-5", "0", "007", "-0", "+1", " 1", "1 ", "1.", ".5", "--5"),
    *("1.5", "-1.5e3", "1E2", "1e400", "1e-400", "nan", "NaN", "inf", "Infinity", "1_000"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "0x10", "1,5"),
    *("9007199254740993", "253402300800000", "1" * 30, "null", "NULL", "N/A", "true", "TRUE"),
    *("True", "false", "False", "yes", "\u00e9", "\u00a01", "\u0661", "\x00", "'a'", "a b", " "),
    *("2013-01-01T10:15:00+01:00", "2013-01-01 10:15:00", "a\rb", "#", "\\", "\ufeff1"),
]
QUOTED: Final = ['""', '"a"', '"a,b"', '"a""b"', '"5"', '"a', 'a"', '"a"b', ' "a"', '"a" ', '"']


def record(cells: Iterable[str]) -> bytes:
    """A line of cells."""
    return ",".join(cells).encode()


LINES = st.one_of(
    st.just(PLAIN),
    st.lists(st.sampled_from(CELLS), min_size=6, max_size=6).map(record),
    st.lists(st.sampled_from(CELLS + QUOTED), min_size=6, max_size=6).map(record),
    st.tuples(
        st.sampled_from(CELLS),
        st.sampled_from(["a", "é", "b c"]),
        st.sampled_from(["1", "-1.5", "007", "99999999999999999999"]),
        st.sampled_from(["5", "-5", "1.5", "1357035300000"]),
        st.sampled_from(["", "i", "7"]),
        st.sampled_from(["", "", "true", "false", "no"]),
    ).map(record),
    st.lists(st.sampled_from(CELLS), max_size=8).map(record),
    st.sampled_from([b"", b" ", b"\t\r", b",", b",,,,,", PLAIN + b",", b"\xff,a,1,5,i,", b"\x00"]),
    st.binary(max_size=8),
)
BREAKS = st.sampled_from([b"\n", b"\n", b"\r\n"])


def check(
    data: bytes,
    fields: Fields,
    sample: list[Line],
    latest_ms: int | None = None,
    header: tuple[str, ...] = HEADER,
) -> None:
    """Compares the columns of a block with its lines read one by one."""
    read_line = partial(read_csv_line, header=header, fields=fields)
    expected = read_each(data, fields, read_line, latest_ms)
    lines = Lines(data)
    columns, rejected = CsvParser(fields, sample, header).parse(lines, latest_ms)
    assert rows_of(columns) == in_column(expected.records, columns.value.type)
    assert rejected == expected.rejected
    assert len(lines.blank_starts) == expected.blank


@FEW
@given(
    st.lists(st.tuples(LINES, BREAKS), min_size=1, max_size=8),
    st.sampled_from(RULES),
    st.sampled_from(SAMPLES),
    st.sampled_from([None, 4, 10**20]),
    st.booleans(),
)
def test_any_mix_of_lines_is_read_as_line_by_line(
    mix: list[tuple[bytes, bytes]],
    fields: Fields,
    sample: list[Line],
    latest_ms: int | None,
    open_end: bool,
) -> None:
    """Quotes, missing and extra cells, blanks: whatever the fields and the sample."""
    data = b"".join(line + end for line, end in mix)
    check(data[:-1] if open_end and data[:-1] else data, fields, sample, latest_ms)


@pytest.mark.parametrize("fields", RULES)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("column", range(len(HEADER)))
def test_every_odd_cell_is_read_as_line_by_line(
    fields: Fields, sample: list[Line], column: int
) -> None:
    """Each cell in each column, between two good lines."""
    plain = PLAIN.decode().split(",")
    for cell in CELLS + QUOTED:
        odd = record([*plain[:column], cell, *plain[column + 1 :]])
        check(b"\n".join([PLAIN, odd, PLAIN, b""]), fields, sample)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 500), LINES), max_size=3),
    st.sampled_from(SAMPLES),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_odd_lines_in_long_runs_are_read_as_line_by_line(
    odd: list[tuple[int, bytes]], sample: list[Line], end: bytes
) -> None:
    """Runs longer than those that are read one by one are halved, in the order of the lines."""
    lines = [b",k%d,%d,%d,," % (i % 7, i, i * 1000) for i in range(500)]
    for place, line in odd:
        lines.insert(place, line)
    check(end.join(lines), FIELDS, sample)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(b",a,100000000000000000000,5,,", id="integer beyond 64 bits"),
        pytest.param(b",a," + b"9" * 5_000 + b",5,,", id="value of 5,000 digits"),
        pytest.param(b",a,1," + b"9" * 5_000 + b",,", id="time of 5,000 digits"),
        pytest.param(b",a,1,5," + b"x" * 200_000 + b",", id="long id"),
        pytest.param(b"x" * 200_000 + b",a,1,5,,", id="long cell that is not read"),
    ],
)
def test_cells_of_any_length_are_read_as_line_by_line(odd: bytes, sample: list[Line]) -> None:
    """Without an exception that ends the job, whatever pyarrow would make of it."""
    check(b"\n".join([PLAIN, odd, PLAIN, b""]), FIELDS, sample)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_file_without_the_marker_column_has_no_markers(sample: list[Line]) -> None:
    """The header may lack the marker field: all lines are records then."""
    check(b"a,1,5\nb,2,6\n", replace(FIELDS, id=None), sample, header=("k", "v", "t"))


def test_a_line_is_not_read_under_the_header_of_another_width() -> None:
    """Two headers, two readings of the same lines."""
    data = b"5,a,1\n6,b,2\n"
    check(data, replace(FIELDS, id=None, marker=None), SAMPLES[1], header=("t", "k", "v"))
    check(data, replace(FIELDS, id=None, marker=None), SAMPLES[1], header=("v", "k", "t"))

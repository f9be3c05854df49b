"""The columnar parser of JSON lines against `Fields.read`, line by line."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.blocks import Lines
from beam_lateness.transforms.sources.parsing import JsonLinesParser
from beam_lateness.transforms.sources.records import Fields, Line, read_json_line
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.transforms.sources.oracle import FIELDS, in_column, read_each, rows_of

FEW = settings(max_examples=100, deadline=None)
DEEP: Final = 20_000

PLAIN: Final = b'{"k":"a","v":1,"id":"x","t":5}'
SAMPLES: Final[list[list[Line]]] = [
    [],
    [{"k": "a", "v": 1, "id": "x", "t": 5}],
    [{"k": "a", "v": 1.5, "id": "x", "t": 5}],
    [{"k": 7, "v": 1, "id": 8, "t": 5}],
    [{"k": "a", "v": 1, "t": 1.5}],
]
RULES: Final = [
    FIELDS,
    replace(FIELDS, marker=None),
    replace(FIELDS, value=None, id=None),
    replace(FIELDS, id="k"),
    replace(FIELDS, value="t"),
    *(replace(FIELDS, timestamps=FieldTime("t", unit)) for unit in ("s", "us", "ns", "iso")),
    replace(FIELDS, timestamps=lambda line: line["t"]),
]

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.sampled_from(
        [2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, 253_402_300_800_000]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, -0.0, 1e300, 1.0]),
    st.text(max_size=4),
    st.sampled_from(
        ["5", "", " ", "é", "\x00", "\x7f", "\ud800", "null", "} null", "a\nb", "{}", '"']
    ),
    st.sampled_from(["2013-01-01T10:15:00+01:00", "2013-01-01T10:15:00", "2013-02-30T00:00:00Z"]),
)
NESTED = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.just({"k": 1, "t": {"k": [{}]}}))
NAMES = st.sampled_from(["k", "v", "id", "t", "end", "x", "", "k2"])
SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r : ")])


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """One JSON object a line: mostly records, in which one field or two may be anything."""
    pairs: dict[str, Any] = {"k": "a", "v": 1, "id": "x", "t": 5}
    pairs |= draw(st.dictionaries(NAMES, NESTED, max_size=2))
    for name in draw(st.sets(NAMES, max_size=1)):
        pairs.pop(name, None)
    comma, colon = draw(SPACES)
    ascii_only = draw(st.booleans())
    items = [
        f"{json.dumps(name)}{colon}{json.dumps(value, ensure_ascii=ascii_only)}"
        for name, value in pairs.items()
    ]
    if draw(st.integers(0, 9)) == 0:  # a field that stands twice
        items += items[:1]
    text = "{" + comma.join(items) + "}"
    return text.encode(errors="surrogatepass")


MARKERS = st.builds(
    lambda flag, rest: b'{"end":' + flag + rest + b"}",
    st.sampled_from([b"true", b"false", b"null", b"1", b'"true"', b"[]"]),
    st.sampled_from([b"", b',"t":7', b',"t":7,"k":3', b',"t":null', b',"t":7,"v":"n"']),
)
ODD_LINES: Final = [
    b"",
    b" ",
    b"\t \r",
    b"\x0b\x0c",
    b"\x00",
    b"\xff\xfe",
    PLAIN[:-1] + b',"x":"\xff"}',
    PLAIN[:-1] + b',"x":"\xed\xa0\x80"}',
    PLAIN[:-1],
    PLAIN[:9],
    PLAIN + PLAIN,
    PLAIN + b" " + PLAIN,
    PLAIN + b" null",
    PLAIN + b"null" + PLAIN,
    PLAIN + b" null {}",
    PLAIN + b"\r" + PLAIN,
    PLAIN + b"\x00" + PLAIN,
    b"null",
    b"true",
    b"3",
    b'"text"',
    b"[]",
    b"[" + PLAIN + b"]",
    b"{}",
    b"{}{}",
    b"{} [] {}",
    b"{",
    b"}",
    b"{{}",
    b"{}}",
    b" " + PLAIN + b" ",
    b"\xef\xbb\xbf" + PLAIN,
    PLAIN + b",",
    PLAIN[:-1] + b",}",
    b"{/* c */}",
    b"{'k':1}",
    b'{"k":"a","v":NaN,"t":5}',
    b'{"k":"a","v":Infinity,"t":5}',
    b'{"k":"a","v":-Infinity,"t":5}',
    b'{"k":"a","v":1,"t":NaN}',
    b'{"k":"a","v":1e400,"t":5}',
    b'{"k":"a","v":1,"t":1e400}',
    b'{"k":"a","v":01,"t":5}',
    b'{"k":"a","v":+1,"t":5}',
    b'{"k":"a","v":.5,"t":5}',
    b'{"k":"a","v":5.,"t":5}',
    b'{"k":"a","v":1E2,"t":5}',
    b'{"k":"a","v":1,"t":5e0}',
    b'{"k":"a","v":-0,"t":-0}',
    b'{"k":"a","v":1,"t":"5"}',
    b'{"k":"a\tb","v":1,"t":5}',
    b'{"k":"\\u0000","v":1,"t":5}',
    b'{"k":"\\ud83d\\ude00","v":1,"t":5}',
    b'{"k":"\\ud83d","v":1,"t":5}',
    b'{"k":"\\x41","v":1,"t":5}',
    b'{"\\u006b":"b","v":1,"t":5}',
    b'{"k":"a","\\u006b":"b","v":1,"t":5}',
    b'{"k":null,"k":"a","v":1,"t":5}',
    b'{"x":{"k":"b","k":"c"},"k":"a","v":1,"t":5}',
    b'{"x":1,"x":2,"k":"a","v":1,"t":5}',
    b'{"x":nullnull,"k":"a","v":1,"t":5}',
    b'{"x":"} null","k":"a","v":1,"t":5}',
    b'{"x":[{},null],"k":"a","v":1,"t":5}',
]
# Python's json and pyarrow differ on each of these.
DISPUTED_LINES: Final = [
    pytest.param(b'{"k":"a","v":100000000000000000000,"t":5}', id="integer beyond 64 bits"),
    pytest.param(b'{"x":NaN,"k":"a","v":1,"t":5}', id="NaN in a field that is not read"),
    pytest.param(b'{"x":[-Infinity],"k":"a","v":1,"t":5}', id="nested Infinity"),
    pytest.param(
        b'{"x":' + b"[" * DEEP + b"]" * DEEP + b',"k":"a","v":1,"t":5}', id="deep nesting"
    ),
    pytest.param(b'{"x":' + b"9" * 5_000 + b',"k":"a","v":1,"t":5}', id="5,000 digits not read"),
    pytest.param(b'{"v":' + b"9" * 5_000 + b',"k":"a","t":5}', id="5,000 digits"),
    pytest.param(b'{"t":' + b"9" * 4_300 + b',"k":"a","v":5}', id="4,300 digits of time"),
]
LINES = st.one_of(
    st.just(PLAIN), objects(), objects(), MARKERS, st.sampled_from(ODD_LINES), st.binary(max_size=8)
)
BREAKS = st.sampled_from([b"\n", b"\n", b"\r\n"])


def check(data: bytes, fields: Fields, sample: list[Line], latest_ms: int | None = None) -> None:
    """Compares the columns of a block with its lines read one by one."""
    expected = read_each(data, fields, partial(read_json_line, fields=fields), latest_ms)
    lines = Lines(data)
    columns, rejected = JsonLinesParser(fields, sample).parse(lines, latest_ms)
    assert rows_of(columns) == in_column(expected.records, columns.value.type)
    assert rejected == expected.rejected
    assert len(lines.blank_starts) == expected.blank


@FEW
@given(
    st.lists(st.tuples(LINES, BREAKS), min_size=1, max_size=8),
    st.sampled_from(RULES),
    st.sampled_from(SAMPLES),
    st.sampled_from([None, 4, 5, 10**20]),
    st.booleans(),
)
def test_any_mix_of_lines_is_read_as_line_by_line(
    mix: list[tuple[bytes, bytes]],
    fields: Fields,
    sample: list[Line],
    latest_ms: int | None,
    open_end: bool,
) -> None:
    """Records, refusals, order and blank lines, whatever the fields and the sample."""
    data = b"".join(line + end for line, end in mix)
    check(data[:-1] if open_end and data[:-1] else data, fields, sample, latest_ms)


@pytest.mark.parametrize("fields", RULES)
@pytest.mark.parametrize("sample", SAMPLES)
def test_every_odd_line_is_read_as_line_by_line(fields: Fields, sample: list[Line]) -> None:
    """Each between two good lines."""
    for odd in ODD_LINES:
        check(b"\n".join([PLAIN, odd, PLAIN, b""]), fields, sample)


@pytest.mark.parametrize("odd", DISPUTED_LINES)
@pytest.mark.parametrize("sample", SAMPLES[1:3], ids=["integers", "floats"])
def test_where_pyarrow_and_json_differ_the_rules_decide(odd: bytes, sample: list[Line]) -> None:
    """Whatever pyarrow would make of it, and without an exception that ends the job."""
    fields = replace(FIELDS, timestamps=FieldTime("t", "s"))
    check(b"\n".join([PLAIN, odd, PLAIN, b""]), fields, sample)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 700), LINES), max_size=3),
    st.sampled_from(SAMPLES),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_odd_lines_in_long_runs_are_read_as_line_by_line(
    odd: list[tuple[int, bytes]], sample: list[Line], end: bytes
) -> None:
    """Runs longer than those that are read one by one are halved, in the order of the lines."""
    lines = [b'{"k":"k%d","v":%d,"t":%d}' % (i % 7, i, i * 1000) for i in range(700)]
    for place, line in odd:
        lines.insert(place, line)
    check(end.join(lines), FIELDS, sample)


@settings(max_examples=40, deadline=None)
@given(LINES.filter(lambda line: b"\n" not in line), st.integers(0, 300))
def test_one_line_does_not_change_the_others(odd: bytes, place: int) -> None:
    """The other lines give the same records with it and without it."""
    lines = [b'{"k":"k%d","v":%d,"t":%d}' % (i % 7, i, i * 1000) for i in range(300)]
    parser = JsonLinesParser(FIELDS, SAMPLES[1])
    alone, _ = parser.parse(Lines(b"\n".join(lines)))
    mixed, rejected = parser.parse(Lines(b"\n".join([*lines[:place], odd, *lines[place:]])))
    added = int(bool(odd.strip()))
    others = [
        (line - added * (line >= place), record)
        for line, record in rows_of(mixed)
        if not (added and line == place)
    ]
    assert others == in_column(rows_of(alone), mixed.value.type)
    assert {row.line for row in rejected} <= {place}


def test_an_integer_survives_beside_integers_to_the_last_digit() -> None:
    """64-bit integers do not pass through floats."""
    data = b'{"k":"a","v":9223372036854775807,"t":5}\n{"k":"a","v":-9223372036854775808,"t":5}'
    columns, _ = JsonLinesParser(FIELDS, SAMPLES[1]).parse(Lines(data))
    assert columns.value.to_pylist() == [2**63 - 1, -(2**63)]

"""Formats, and what the head of an input settles."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from beam_lateness.transforms.sources.blocks import Lines
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import Csv, JsonLines, LineFormat, bind
from beam_lateness.transforms.sources.parsing import CsvParser, JsonLinesParser
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1m").with_timestamp_assigner("t")
JSON = JsonLines("k", "v", "id")
SECONDS = 1_357_035_300


def json_lines(*records: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    """Records as the head of an input."""
    return [(b"", json.dumps(record).encode()) for record in records]


def test_the_time_unit_is_settled_from_the_head() -> None:
    """Once, before anything runs; the rest of the strategy stays."""
    lines = json_lines({"k": "a", "v": 1, "id": "x", "t": SECONDS})
    strategy, sample = bind(JSON, STRATEGY, lines)
    assert strategy.timestamps == FieldTime("t", "s")
    assert strategy.bound_ms == STRATEGY.bound_ms
    assert sample == [{"k": "a", "v": 1, "id": "x", "t": SECONDS}]


def test_the_head_is_its_good_lines() -> None:
    """Unreadable and blank lines, and markers, tell nothing of the fields."""
    marked = WatermarkStrategy.for_markers("end").with_timestamp_assigner("t")
    good = {"k": "a", "v": 1, "id": "x", "t": SECONDS * 1000}
    lines = [(b"", b"{oops"), (b"", b""), *json_lines({"end": True, "t": 5}, good)]
    strategy, sample = bind(JSON, marked, lines)
    assert strategy.timestamps == FieldTime("t", "ms")
    assert sample == [good]


def test_a_hundred_good_lines_are_enough() -> None:
    """A large input is not read to its end."""

    def endless() -> Any:
        while True:
            yield b"", b'{"k":"a","v":1,"id":"x","t":5}'

    _, sample = bind(JSON, STRATEGY, endless())
    assert len(sample) == 100


@pytest.mark.parametrize("name", ["k", "v", "id", "t"])
def test_a_field_that_no_record_has_is_refused_by_name(name: str) -> None:
    """A typing error in a flag shows before launch."""
    record = {"k": "a", "v": 1, "id": "x", "t": 5}
    del record[name]
    with pytest.raises(ValueError, match=f"has a field '{name}'; it has .*--key_field"):
        bind(JSON, STRATEGY, json_lines(record, record))


def test_a_field_that_some_records_lack_is_no_error() -> None:
    """Those records are invalid, one by one."""
    lines = json_lines({"k": "a", "v": 1, "t": 5}, {"id": "x"})
    assert len(bind(JSON, STRATEGY, lines)[1]) == 2


@pytest.mark.parametrize("lines", [[], [(b"", b"")], [(b"", b"{oops")]])
def test_a_head_without_a_good_line_settles_milliseconds(lines: list[tuple[bytes, bytes]]) -> None:
    """An input of nothing, or of rubbish, is still read: all of it is invalid."""
    strategy, sample = bind(JSON, STRATEGY, lines)
    assert strategy.timestamps == FieldTime("t", "ms")
    assert sample == []


def test_units_that_disagree_are_refused() -> None:
    """Before launch, by the flag that settles it."""
    record = {"k": "a", "v": 1, "id": "x", "t": SECONDS}
    with pytest.raises(ValueError, match="--time_unit"):
        bind(JSON, STRATEGY, json_lines(record, record | {"t": SECONDS * 1000}))


def test_an_assigner_function_is_left_alone() -> None:
    """It needs no unit."""
    strategy = STRATEGY.with_timestamp_assigner(len)
    lines = json_lines({"k": "a", "v": 1, "id": "x"})
    assert bind(JSON, strategy, lines)[0] is strategy


@pytest.mark.parametrize(("text", "unit"), [("2013-01-01T00:00:00Z", "iso"), (str(SECONDS), "s")])
def test_csv_times_are_told_apart_though_all_cells_are_text(text: str, unit: str) -> None:
    """Digits are a number, the rest is ISO."""
    line = f"a,1,x,{text}".encode()
    strategy, _ = bind(Csv("k", "v", "id"), STRATEGY, [(b"k,v,id,t", line)])
    assert strategy.timestamps == FieldTime("t", unit)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"k,v,id", "lacks t; it has k, v, id"),
        (b"k", "lacks id, t, v"),
        (b"k,v,id,t,k", "repeats a name"),
        (b"k,v,id,t,\xff", "cannot be read"),
        (b'k,v,id,t,"x', "cannot be read"),
    ],
)
def test_under_a_csv_header_that_cannot_serve_every_line_is_invalid(
    header: bytes, message: str
) -> None:
    """With what it lacks, and what it has: a bad file among many does not end the job."""
    csv_format = Csv("k", "v", "id")
    parser = csv_format.parser(csv_format.fields(STRATEGY), [], header)
    columns, rejected = parser.parse(Lines(b"a,1,x,5\n\nb,2,y,6\n"))
    assert len(columns) == 0
    assert [(row.line, row.reason) for row in rejected] == [(0, "bad_header"), (1, "bad_header")]
    assert all(message in row.detail for row in rejected)


def test_a_csv_header_may_be_quoted_and_have_a_byte_order_mark() -> None:
    """As spreadsheets write it."""
    names = ("k", "v", "i,d", "t")
    written = io.StringIO()
    csv.writer(written).writerow(names)
    header = b"\xef\xbb\xbf" + written.getvalue().strip().encode()
    csv_format = Csv("k", "v", "i,d")
    parser = csv_format.parser(csv_format.fields(STRATEGY), [], header)
    assert isinstance(parser, CsvParser)
    assert parser.header == names


def test_a_csv_header_need_not_have_the_marker_field() -> None:
    """Markers may come in some files only."""
    csv_format = Csv("k")
    marked = WatermarkStrategy.for_markers("end").with_timestamp_assigner("t")
    csv_format.parser(csv_format.fields(marked), [], b"k,t")


def test_a_format_makes_its_parser_and_its_fields() -> None:
    """The fields are the format's and the strategy's together."""
    fields = JSON.fields(STRATEGY)
    assert (fields.key, fields.value, fields.id, fields.marker) == ("k", "v", "id", None)
    assert fields.timestamps == FieldTime("t")
    assert isinstance(JSON.parser(fields, [], b""), JsonLinesParser)


@pytest.mark.parametrize("line_format", [JSON, Csv("k", "v", "id")], ids=["json", "csv"])
@pytest.mark.parametrize("follow", [False, True])
def test_an_empty_file_is_an_input_without_records(
    tmp_path: Path, line_format: LineFormat, follow: bool
) -> None:
    """Not an input whose records lack all fields."""
    path = tmp_path / "empty"
    path.touch()
    files = Files([str(path)], line_format, follow)
    assert bind(line_format, STRATEGY, files.head())[1] == []


def test_an_empty_csv_file_does_not_hide_the_one_after_it(tmp_path: Path) -> None:
    """The head of the input goes on in the next file."""
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").write_text(f"k,v,id,t\na,1,x,{SECONDS}\n")
    files = Files([str(tmp_path / "*.csv")], Csv("k", "v", "id"))
    _, sample = bind(files.line_format, STRATEGY, files.head())
    assert sample == [{"k": "a", "v": 1, "id": "x", "t": SECONDS}]

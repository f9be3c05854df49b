"""The rules by which a line is a record or is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from beam_lateness.transforms.sources.records import (
    BadRecordError,
    Fields,
    Record,
    csv_number,
    read_csv_line,
    read_json_line,
)
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.transforms.sources.oracle import FIELDS

GOOD: dict[str, Any] = {"k": "a", "v": 1, "id": "x", "t": 5}


def test_a_good_line_is_its_record() -> None:
    """Key, value, id and time."""
    assert FIELDS.read(GOOD, None) == Record("a", 1, "x", 5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"t": None}, "missing_event_time"),
        ({"t": "5"}, "bad_event_time"),
        ({"t": True}, "bad_event_time"),
        ({"t": float("nan")}, "bad_event_time"),
        ({"t": MIN_EVENT_TIME_MS - 1}, "event_time_out_of_range"),
        ({"t": MAX_EVENT_TIME_MS + 1}, "event_time_out_of_range"),
        ({"t": -9e15}, "event_time_out_of_range"),
        ({"t": 1_001}, "future_event_time"),
        ({"k": None}, "missing_key"),
        ({"k": True}, "bad_key"),
        ({"k": 1.0}, "bad_key"),
        ({"k": ["a"]}, "bad_key"),
        ({"k": 2**63}, "bad_key"),
        ({"k": "\ud800"}, "bad_key"),
        ({"v": None}, "missing_value"),
        ({"v": "1"}, "bad_value"),
        ({"v": True}, "bad_value"),
        ({"v": float("inf")}, "bad_value"),
        ({"v": float("nan")}, "bad_value"),
        ({"v": 2**63}, "value_out_of_range"),
        ({"v": -(2**63) - 1}, "value_out_of_range"),
        ({"end": 1}, "bad_marker"),
        ({"end": "true"}, "bad_marker"),
        ({"end": 1, "t": None, "k": None}, "bad_marker"),
    ],
)
def test_each_fault_has_its_word(change: dict[str, Any], reason: str) -> None:
    """A missing field and a field of null are the same fault."""
    with pytest.raises(BadRecordError) as refusal:
        FIELDS.read(GOOD | change, 1_000)
    assert refusal.value.reason == reason
    assert refusal.value.detail


@pytest.mark.parametrize("name", ["k", "v", "t"])
def test_a_field_that_is_absent_is_one_of_null(name: str) -> None:
    """Both are missing."""
    absent = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(BadRecordError, match=r"^missing_"):
        FIELDS.read(absent, None)


@pytest.mark.parametrize("ms", [MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS, 0, -1])
def test_the_ends_of_the_range_of_event_times_are_in_it(ms: int) -> None:
    """Years 1 to 9999."""
    assert FIELDS.read(GOOD | {"t": ms}, None).event_time_ms == ms


def test_the_limit_of_the_future_is_still_the_present() -> None:
    """Only what is after it is refused."""
    assert FIELDS.read(GOOD, 5).event_time_ms == 5
    with pytest.raises(BadRecordError, match=r"^future_event_time"):
        FIELDS.read(GOOD, 4)


@pytest.mark.parametrize(("key", "text"), [("a", "a"), ("", ""), (7, "7"), (-0, "0")])
def test_a_key_is_text_or_an_integer(key: Any, text: str) -> None:
    """An integer is read as its text."""
    assert FIELDS.read(GOOD | {"k": key}, None).key == text


@pytest.mark.parametrize("own", [None, True, 1.5, [1], 2**63, "\ud800"])
def test_an_odd_id_is_none(own: Any) -> None:
    """An id is for the record's good: a bad one does not cost the record."""
    assert FIELDS.read(GOOD | {"id": own}, None).id is None


def test_a_marker_needs_a_time_and_nothing_else() -> None:
    """It is no record: key, value and id are not looked at."""
    assert FIELDS.read({"end": True, "t": 5, "k": [], "v": "n"}, None) == Record(
        None, None, None, 5, marker=True
    )
    with pytest.raises(BadRecordError, match=r"^missing_event_time"):
        FIELDS.read({"end": True}, None)


@pytest.mark.parametrize("flag", [False, None])
def test_a_record_may_say_that_it_is_no_marker(flag: bool | None) -> None:
    """False and null are no marker."""
    assert not FIELDS.read(GOOD | {"end": flag}, None).marker


def test_without_a_value_field_only_the_key_counts() -> None:
    """A count needs no number."""
    assert replace(FIELDS, value=None).read({"k": "a", "v": "n", "t": 5}, None).value is None


@pytest.mark.parametrize(
    "returned", [None, 1.5, True, "5", pytest.param(10**5_000, id="5,001 digits")]
)
def test_an_assigner_must_return_whole_milliseconds_of_its_range(returned: Any) -> None:
    """Whatever a user's function returns, the record is at fault, never the job."""
    fields = replace(FIELDS, timestamps=lambda _: returned)
    with pytest.raises(BadRecordError):
        fields.read(GOOD, None)


def test_an_assigner_that_raises_makes_the_record_invalid() -> None:
    """A user's function may raise anything."""
    fields = replace(FIELDS, timestamps=lambda line: line["no such field"])
    with pytest.raises(BadRecordError, match=r"^bad_event_time"):
        fields.read(GOOD, None)


def test_the_names_of_the_fields_are_those_that_are_read() -> None:
    """A function may read any field: it has no name."""
    assert FIELDS.names == {"k", "v", "id", "end", "t"}
    assert Fields("k", None, None, None, lambda _: 0).names == {"k"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff", "invalid_utf8"),
        (b'{"k":"\xff"}', "invalid_utf8"),
        (b'{"k":1', "malformed_json"),
        (b'{"k":1}{}', "malformed_json"),
        (b'{"k":NaN}', "malformed_json"),
        (b'{"x":[-Infinity]}', "malformed_json"),
        pytest.param(b"[" * 100_000, "malformed_json", id="deep nesting"),
        (b"\xef\xbb\xbf{}", "malformed_json"),
        (b"null", "not_an_object"),
        (b"[{}]", "not_an_object"),
        (b'"{}"', "not_an_object"),
        (b'{"k":1,"k":1}', "duplicate_field"),
        (b'{"k":1,"\\u006b":2,"x":1,"x":2}', "duplicate_field"),
    ],
)
def test_what_is_no_json_object_has_its_word(raw: bytes, reason: str) -> None:
    """Each kind of unreadable line by one reason."""
    with pytest.raises(BadRecordError) as refusal:
        read_json_line(raw, FIELDS)
    assert refusal.value.reason == reason


def test_a_field_that_is_not_read_may_stand_twice() -> None:
    """It matters only if the field is one of ours, and at the top level."""
    line = read_json_line(b'{"x":1,"x":2,"y":{"k":1,"k":2},"k":"a"}', FIELDS)
    assert line == {"x": 2, "y": {"k": 2}, "k": "a"}


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("5", 5),
        ("-5", -5),
        ("007", 7),
        (" 5\t", 5),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1e3", -1000.0),
        ("9223372036854775808", 2**63),
        *[(cell, cell) for cell in ("", "+5", "1_0", "0x1", "nan", "inf", "5a", "\u0661", "--5")],
    ],
)
def test_a_csv_cell_is_the_number_it_spells(cell: str, number: int | float | str) -> None:
    """Or stays the text it is."""
    given_number = csv_number(cell)
    assert given_number == number
    assert type(given_number) is type(number)


def test_only_the_cells_that_must_be_numbers_or_flags_are_converted() -> None:
    """A key or an id that looks like a number stays as it is spelt."""
    line = read_csv_line(b"007,1.5,08,5,TRUE", ("k", "v", "id", "t", "end"), FIELDS)
    assert line == {"k": "007", "v": 1.5, "id": "08", "t": 5, "end": True}


def test_an_iso_time_in_csv_stays_text() -> None:
    """A cell of digits is no ISO time."""
    fields = replace(FIELDS, timestamps=FieldTime("t", "iso"))
    assert read_csv_line(b"2013", ("t",), fields) == {"t": "2013"}


def test_an_empty_cell_is_a_missing_field() -> None:
    """Quoted or not."""
    assert read_csv_line(b',"",a', ("k", "v", "t"), FIELDS) == {"t": "a"}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff,1", "invalid_utf8"),
        (b"a", "malformed_csv"),
        (b"a,1,2", "malformed_csv"),
        (b'"a,1', "malformed_csv"),
        (b'"a"b,1', "malformed_csv"),
        (b"a\rb,1", "malformed_csv"),
    ],
)
def test_what_is_no_csv_record_has_its_word(raw: bytes, reason: str) -> None:
    """Each kind of unreadable line by one reason."""
    with pytest.raises(BadRecordError) as refusal:
        read_csv_line(raw, ("k", "x"), FIELDS)
    assert refusal.value.reason == reason

"""Dead letters are read back: nothing raises, and every line becomes something."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness import Left
from beam_lateness.transforms.reconcile.letters import (
    INCOMPLETE,
    NOT_TOO_LATE,
    UNFINISHED,
    UNREADABLE,
    Letter,
    read_letters,
)
from beam_lateness.transforms.results import InvalidRecord, RefusedPane, TooLateRecord
from beam_lateness.transforms.sinks.dead_letters import REFUSED, dead_letter, encode_letter
from tests.transforms.reconcile.stores import pane

RUN = "20260101T000000.000000Z-ab12"
FILE = f"folder/dead-letters-{RUN}-0123abcd.jsonl"
RECORD = TooLateRecord("a", 5, 30_000, 0, 60_000, 120_000, 0, "s.jsonl", 7, "s.jsonl:7", b"{}")


def read(data: bytes, file: str = FILE) -> list[Letter | Left]:
    """Reads a file of such content."""
    return list(read_letters(io.BytesIO(data), file))


def read_one(**changes: Any) -> Letter | Left:
    """Reads the letter of a record with some fields changed."""
    (found,) = read(json.dumps(dead_letter(RECORD) | changes).encode() + b"\n")
    return found


def not_blank(data: bytes) -> int:
    """How many lines are there to read."""
    return sum(bool(line.strip()) for line in data.split(b"\n"))


records = st.builds(
    TooLateRecord,
    st.text() | st.integers(),
    st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**62), 2**62),
    st.integers(-(2**62), 2**62),
    st.integers(-(2**62), 2**62),
    st.none() | st.integers(-(2**62), 2**62),
    record_id=st.text(),
    payload=st.none() | st.binary(),
)
like_letters = st.dictionaries(
    st.sampled_from(["record_id", "key", "value", "window_start_ms", "window_end_ms", "reason"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("too_late"),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=3,
    ),
)
lines = st.one_of(
    st.binary(max_size=40),
    records.map(dead_letter).map(encode_letter),
    like_letters.map(json.dumps).map(str.encode),
    st.just(encode_letter(dead_letter(RECORD)) + b"\r"),
)


@given(parts=st.lists(lines, max_size=6), cut=st.integers(0, 2000))
def test_every_line_that_is_not_blank_becomes_one_letter_or_one_left(
    parts: list[bytes], cut: int
) -> None:
    """Whatever stands there, and wherever the file ends."""
    data = b"\n".join([*parts, b""])
    data = data[: max(0, len(data) - cut)]
    assert len(read(data)) == not_blank(data)


@given(record=records, cut=st.integers(0, 30))
def test_a_whole_letter_is_read_and_a_cut_one_is_unfinished(
    record: TooLateRecord, cut: int
) -> None:
    """A crash leaves a line without its end; all before it is whole."""
    line = encode_letter(dead_letter(record))
    whole, last = read(line + b"\n" + line[: len(line) - cut])
    assert isinstance(whole, Letter)
    assert whole[1:4] == (record.window_start, record.window_end, record.record_id)
    assert (whole.value, whole.watermark_ms) == (record.value, record.watermark)
    if cut:
        assert isinstance(last, Left)
        assert (last.reason, last.line) == (UNFINISHED, 2)
    else:
        assert last == whole


def test_a_letter_knows_its_file_and_the_run_in_its_name() -> None:
    """All of its fields."""
    assert read(encode_letter(dead_letter(RECORD)) + b"\n") == [
        Letter("a", 0, 60_000, "s.jsonl:7", 5, 120_000, RUN, FILE, "s.jsonl")
    ]


@pytest.mark.parametrize(
    "name", ["a.jsonl", f"dead-letters-{RUN}-0123abcd.jsonl.txt", f"dead-letters-{RUN}.jsonl"]
)
def test_a_file_of_another_name_has_letters_of_no_run(name: str) -> None:
    """They can be applied all the same."""
    (found,) = read(encode_letter(dead_letter(RECORD)), name)
    assert isinstance(found, Letter)
    assert (found.run, found.file) == ("", name)


@pytest.mark.parametrize(
    "record",
    [InvalidRecord("malformed_json", "...", "s", 1, "s:1", b"{"), RefusedPane(pane(1), "full")],
    ids=["invalid", "refused"],
)
def test_what_was_not_too_late_is_left(record: InvalidRecord | RefusedPane) -> None:
    """With the reason that it has."""
    (found,) = read(encode_letter(dead_letter(record)))
    assert isinstance(found, Left)
    assert found.reason == (REFUSED if isinstance(record, RefusedPane) else NOT_TOO_LATE)
    assert found.detail.endswith("full" if isinstance(record, RefusedPane) else "malformed_json")


@pytest.mark.parametrize(
    "changes",
    [
        {"record_id": None},
        {"record_id": 7},
        {"record_id": "\ud800"},
        {"key": "half \udc00"},
        {"window_start_ms": None},
        {"window_start_ms": 0.0},
        {"window_start_ms": True},
        {"window_start_ms": "0"},
        {"window_end_ms": 2**63},
        {"window_start_ms": -(2**70)},
    ],
    ids=str,
)
def test_a_letter_that_no_store_could_take_is_incomplete(changes: dict[str, Any]) -> None:
    """It names the field: one such letter must not end the job."""
    found = read_one(**changes)
    assert isinstance(found, Left)
    assert found.reason == INCOMPLETE
    assert found.detail.startswith(next(iter(changes)))


@pytest.mark.parametrize("line", [b"[1]", b"7", b"null", b"{]", b"\xff", b'{"a": 1} {}'])
def test_what_is_no_json_object_is_unreadable(line: bytes) -> None:
    """With its line's number, blank lines counted."""
    (found,) = read(b"\n \n" + line + b"\n")
    assert isinstance(found, Left)
    assert (found.reason, found.line) == (UNREADABLE, 3)


def test_a_line_that_is_nested_too_deeply_is_unreadable() -> None:
    """The parser gives up by another error then."""
    found, whole = read(b"[" * 100_000 + b"\n" + encode_letter(dead_letter(RECORD)))
    assert isinstance(found, Left)
    assert found.reason == UNREADABLE
    assert isinstance(whole, Letter)


@pytest.mark.parametrize("watermark", [None, "soon", True, 2**63, [1]])
def test_a_watermark_that_is_none_does_not_hold_a_letter_back(watermark: Any) -> None:
    """It is told in the audit trail only."""
    found = read_one(watermark_ms=watermark)
    assert isinstance(found, Letter)
    assert found.watermark_ms is None


@pytest.mark.parametrize(("key", "text"), [("JFK", "JFK"), (7, "7"), (["a", 1], '["a", 1]')])
def test_a_key_is_read_as_it_stands_in_the_table(key: Any, text: str) -> None:
    """What is no text is its JSON."""
    found = read_one(key=key)
    assert isinstance(found, Letter)
    assert found.key == text


def test_an_integer_keeps_all_of_its_digits() -> None:
    """Beyond 64 bits too."""
    found = read_one(value=10**30 + 1)
    assert isinstance(found, Letter)
    assert found.value == 10**30 + 1

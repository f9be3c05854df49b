"""`WriteDeadLetters`: nothing of a record is lost, and each has one stable id."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness import InvalidRecord, TooLateRecord, WriteDeadLetters
from beam_lateness.transforms.sinks.dead_letters import _Append, dead_letter
from tests.cases.engine import direct_pipeline

TOO_LATE = TooLateRecord(
    key="a",
    value=5,
    event_time=30_000,
    window_start=0,
    window_end=60_000,
    watermark=200_000,
    late_by_ms=20_000,
    split="day.jsonl",
    position=120,
    record_id="day.jsonl:120",
    payload=b'{"key": "a"}',
)
INVALID = InvalidRecord(
    reason="malformed_json",
    detail="no object",
    split="day.jsonl",
    position=240,
    record_id="day.jsonl:240",
    payload=b"{",
)


def letters(folder: Path) -> list[dict[str, Any]]:
    """Reads every line of every file of a folder."""
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines()]
    return [json.loads(line) for line in lines]


def run(records: list[Any], folder: Path, name: str = "run-1") -> list[dict[str, Any]]:
    """Writes records by a pipeline; gives all letters of the folder."""
    with direct_pipeline() as pipeline:
        _ = pipeline | beam.Create(records) | WriteDeadLetters(str(folder), name)
    return letters(folder)


def test_a_too_late_letter_has_every_field(tmp_path: Path) -> None:
    """Reason, record, window, watermark and distance, place and payload."""
    assert run([TOO_LATE], tmp_path) == [
        {
            "reason": "too_late",
            "record_id": "day.jsonl:120",
            "key": "a",
            "value": 5,
            "event_time_ms": 30_000,
            "window_start_ms": 0,
            "window_end_ms": 60_000,
            "watermark_ms": 200_000,
            "late_by_ms": 20_000,
            "split": "day.jsonl",
            "position": 120,
            "payload": '{"key": "a"}',
        }
    ]


def test_an_invalid_letter_tells_reason_and_detail(tmp_path: Path) -> None:
    """What is not known of it is null."""
    (letter,) = run([INVALID], tmp_path)
    known = {name: value for name, value in letter.items() if value is not None}
    assert known == {
        "reason": "malformed_json",
        "detail": "no object",
        "record_id": "day.jsonl:240",
        "split": "day.jsonl",
        "position": 240,
        "payload": "{",
    }


def test_both_kinds_have_the_same_fields() -> None:
    """So that one reader serves both; only `detail` is the invalid one's own."""
    assert dead_letter(INVALID).keys() - {"detail"} == dead_letter(TOO_LATE).keys()


@given(st.binary())
def test_any_payload_round_trips(payload: bytes) -> None:
    """As text where it is UTF-8, else whole in payload_base64."""
    letter = json.loads(json.dumps(dead_letter(INVALID._replace(payload=payload))))
    if "payload_base64" in letter:
        assert base64.b64decode(letter["payload_base64"]) == payload
        assert "�" in letter["payload"]
    else:
        assert letter["payload"].encode() == payload


def test_a_payload_that_is_no_utf8_reaches_the_file(tmp_path: Path) -> None:
    """Shown with replacement characters, and whole."""
    (letter,) = run([TOO_LATE._replace(payload=b"\xff\x00{")], tmp_path)
    assert base64.b64decode(letter["payload_base64"]) == b"\xff\x00{"
    assert letter["payload"] == "�\x00{"


def test_a_record_without_payload_is_a_letter_too(tmp_path: Path) -> None:
    """One of another source."""
    (letter,) = run([TooLateRecord("c", 9, 250, 0, 5000)], tmp_path)
    assert (letter["payload"], letter["record_id"], letter["late_by_ms"]) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**63 - 1, 2**63 - 1),
        (2**64 - 1, 2**64 - 1),
        (0.1, 0.1),
        ("é", "é"),
        ((1, 2), [1, 2]),
        (b"\xff", "b'\\xff'"),
        ({"n": [1]}, {"n": [1]}),
    ],
    ids=repr,
)
def test_values_of_any_type_are_written(value: Any, written: Any, tmp_path: Path) -> None:
    """As JSON where it can hold them, else as Python writes them."""
    (letter,) = run([TOO_LATE._replace(value=value)], tmp_path)
    assert letter["value"] == written


@pytest.mark.parametrize("value", [2**70, {1: "one"}, "\ud800"], ids=ascii)
def test_a_value_that_json_cannot_hold_does_not_stop_the_job(value: Any, tmp_path: Path) -> None:
    """A dead letter is where odd records end: it must take any."""
    records = [TOO_LATE._replace(value=value), TOO_LATE._replace(record_id="next")]
    assert [letter["record_id"] for letter in run(records, tmp_path)] == ["day.jsonl:120", "next"]


def test_a_line_break_in_a_payload_stays_in_its_line(tmp_path: Path) -> None:
    """One letter a line."""
    found = run([INVALID._replace(payload=b"a\nb\r\nc"), INVALID], tmp_path)
    assert sorted(letter["payload"] for letter in found) == ["a\nb\r\nc", "{"]


def test_a_repeated_bundle_writes_the_same_ids_again(tmp_path: Path) -> None:
    """An engine may repeat a bundle: readers count each record_id once."""
    writer = _Append(str(tmp_path), "run-1")
    writer.setup()
    for _ in range(2):
        writer.start_bundle()
        writer.process(TOO_LATE)
        writer.process(INVALID)
        writer.finish_bundle()
    found = letters(tmp_path)
    assert len(found) == 4
    assert {letter["record_id"] for letter in found} == {"day.jsonl:120", "day.jsonl:240"}


def test_a_bundle_that_fails_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    """Lines of an aborted bundle are dropped with it; its repetition writes them."""
    writer = _Append(str(tmp_path), "run-1")
    writer.setup()
    writer.start_bundle()
    writer.process(TOO_LATE)
    writer.start_bundle()
    writer.process(INVALID)
    writer.finish_bundle()
    assert [letter["record_id"] for letter in letters(tmp_path)] == ["day.jsonl:240"]


def test_workers_write_files_of_their_own(tmp_path: Path) -> None:
    """Named by the run, so that no two writers share one."""
    for _ in range(2):
        writer = _Append(str(tmp_path), "run-7")
        writer.setup()
        writer.start_bundle()
        writer.process(TOO_LATE)
        writer.finish_bundle()
    names = [file.name for file in tmp_path.iterdir()]
    assert len(names) == 2
    assert all(name.startswith("dead-letters-run-7-") for name in names)


def test_a_large_bundle_is_written_in_pieces_and_whole(tmp_path: Path) -> None:
    """More than is held at once."""
    records = [INVALID._replace(record_id=str(n), payload=b"x" * 300_000) for n in range(9)]
    found = run(records, tmp_path)
    assert sorted(letter["record_id"] for letter in found) == [str(n) for n in range(9)]
    assert {len(letter["payload"]) for letter in found} == {300_000}


def test_no_records_make_no_file(tmp_path: Path) -> None:
    """The folder stays empty."""
    writer = _Append(str(tmp_path), "run-1")
    writer.setup()
    writer.start_bundle()
    writer.finish_bundle()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    """If its parent exists."""
    WriteDeadLetters(str(tmp_path / "letters"), "run-1")
    assert (tmp_path / "letters").is_dir()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """At construction, by the flag's name."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        complaint = r"directory \(--dead_letters\) must be a writable local folder"
        with pytest.raises(ValueError, match=complaint):
            WriteDeadLetters(str(path), "run-1")


def test_a_remote_folder_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL is no folder, not even one named gs: in the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="must be a writable local folder: 'gs://bucket/letters'"):
        WriteDeadLetters("gs://bucket/letters", "run-1")
    assert list(tmp_path.iterdir()) == []

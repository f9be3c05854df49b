"""Messages as records: payloads are read as lines are, and each message is accounted for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.blocks import Columns, Lines, Rejected
from beam_lateness.transforms.sources.messages import MessageLines, Messages
from beam_lateness.transforms.sources.parsing import JsonLinesParser
from beam_lateness.transforms.sources.records import Fields, Line
from beam_lateness.transforms.watermarks.timestamps import MessageTime, TimestampAssigner
from tests.transforms.sources.oracle import FIELDS, rows_of
from tests.transforms.sources.test_parsing_json import LINES, PLAIN, SAMPLES

FEW = settings(max_examples=100, deadline=None)
MINUTE_MS: Final = 1_357_035_300_000
PAYLOADS = LINES.filter(
    lambda line: line.strip() and not line.endswith(b"\r") and b"\n" not in line
)


class Raw(NamedTuple):
    """A client library's message."""

    payload: bytes | None
    time_ms: int = MINUTE_MS
    attributes: Mapping[str, str] = {}


def messages_of(*raw: Raw, ids: bool = False) -> Messages:
    """Messages at the offsets 100, 102, 104 ... or with ids."""
    offsets = range(100, 100 + 2 * len(raw), 2)
    positions: Sequence[Any] = [f"id-{offset}" for offset in offsets] if ids else offsets
    return Messages(
        raw,
        [each.payload for each in raw],
        positions,
        offsets,
        100 + 2 * len(raw),
        lambda each: each.time_ms,
        lambda each, name: each.attributes.get(name),
    )


def lines_of(*raw: Raw, time: TimestampAssigner = FIELDS.timestamps) -> MessageLines:
    """Messages as lines."""
    return MessageLines.of(messages_of(*raw), time)


def parse(
    lines: Lines, fields: Fields = FIELDS, sample: Sequence[Line] = SAMPLES[1]
) -> tuple[Columns, list[Rejected]]:
    """Parses a block."""
    return JsonLinesParser(fields, sample).parse(lines)


def reasons(rejected: Sequence[Rejected]) -> list[tuple[int, str]]:
    """The messages that are no records, and why."""
    return [(row.line, row.reason) for row in rejected]


@FEW
@given(st.lists(PAYLOADS, min_size=1, max_size=8), st.sampled_from(SAMPLES))
def test_payloads_are_read_as_the_lines_of_a_file(
    payloads: list[bytes], sample: list[Line]
) -> None:
    """Same records, same refusals."""
    columns, rejected = parse(lines_of(*map(Raw, payloads)), sample=sample)
    wanted, refused = parse(Lines(b"\n".join(payloads)), sample=sample)
    assert rows_of(columns) == rows_of(wanted)
    assert rejected == refused


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.none() | st.binary(max_size=9)), max_size=4))
def test_odd_payloads_do_not_change_the_others(odd: list[tuple[int, bytes | None]]) -> None:
    """Tombstones, line breaks, anything: in a block that is long enough for pyarrow."""
    payloads: list[bytes | None] = [b'{"k":"a","v":%d,"t":%d}' % (i, i) for i in range(300)]
    for place, payload in odd:
        payloads.insert(place, payload)
    columns, rejected = parse(lines_of(*map(Raw, payloads)))
    good = [i for i, payload in enumerate(payloads) if payload and payload.startswith(b'{"k":"a"')]
    assert columns.line.tolist() == good
    assert columns.value.to_pylist() == [json.loads(payloads[i] or b"")["v"] for i in good]
    assert {row.line for row in rejected} == set(range(len(payloads))) - set(good)


@pytest.mark.parametrize("around", [0, 100])
def test_a_payload_with_line_breaks_is_one_record(around: int) -> None:
    """Pretty-printed JSON, or a line break at its end."""
    pretty = json.dumps({"k": "b", "v": 2, "t": 9}, indent=2).encode()
    plain = [Raw(PLAIN)] * around
    columns, rejected = parse(lines_of(*plain, Raw(pretty), *plain, Raw(PLAIN + b"\n")))
    assert rejected == []
    assert columns.line.tolist() == list(range(2 * around + 2))
    assert columns.key.to_pylist() == ["a"] * around + ["b"] + ["a"] * (around + 1)


@pytest.mark.parametrize("between", [b"", b" ", b"\n"])
@pytest.mark.parametrize("around", [0, 100])
def test_two_objects_in_one_payload_are_no_record(between: bytes, around: int) -> None:
    """A message is one record, or none: none of the two is taken."""
    plain = [Raw(PLAIN)] * around
    columns, rejected = parse(lines_of(*plain, Raw(PLAIN + between + PLAIN), *plain))
    assert reasons(rejected) == [(around, "malformed_json")]
    assert len(columns) == 2 * around


def test_a_message_without_a_payload_is_no_record() -> None:
    """A tombstone has no value; an empty payload has one, of no length; white space is no JSON."""
    lines = lines_of(Raw(None), Raw(b""), Raw(PLAIN), Raw(b" "), Raw(b""))
    columns, rejected = parse(lines)
    assert reasons(rejected) == [
        (0, "tombstone"),
        (1, "empty_payload"),
        (3, "malformed_json"),
        (4, "empty_payload"),
    ]
    assert columns.line.tolist() == [2]
    assert lines.blank == 0


@pytest.mark.parametrize("payload", [None, b""])
def test_messages_without_payloads_may_stand_alone(payload: bytes | None) -> None:
    """A block of nothing but these."""
    columns, rejected = parse(lines_of(*[Raw(payload)] * 3))
    assert len(columns) == 0
    assert [row.line for row in rejected] == [0, 1, 2]


def beside(*raw: Raw, time: MessageTime) -> tuple[list[int], list[tuple[int, str]]]:
    """Reads messages with the event time beside the payload; gives times and refusals."""
    fields = replace(FIELDS, timestamps=time)
    columns, rejected = parse(MessageLines.of(messages_of(*raw), time), fields)
    return columns.event_time.tolist(), reasons(rejected)


@pytest.mark.parametrize("count", [1, 200])
def test_the_event_time_may_be_the_messages_own(count: int) -> None:
    """Whatever the payload says of times."""
    raw = [Raw(PLAIN, MINUTE_MS + i) for i in range(count)]
    assert beside(*raw, time=MessageTime()) == ([MINUTE_MS + i for i in range(count)], [])


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("ms", "1357035300000"),
        ("s", "1357035300"),
        ("s", "1357035300.0"),
        ("us", "1357035300000999"),
        ("iso", "2013-01-01T10:15:00Z"),
        ("iso", "2013-01-01T11:15:00.000+01:00"),
    ],
)
def test_the_event_time_may_stand_in_an_attribute(unit: str, text: str) -> None:
    """In each unit, as text."""
    raw = Raw(PLAIN, 0, {"at": text})
    assert beside(raw, raw, time=MessageTime("at", unit)) == ([MINUTE_MS] * 2, [])


@pytest.mark.parametrize("around", [0, 100])
@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, "missing_event_time"),
        ({"At": "5"}, "missing_event_time"),
        ({"at": ""}, "bad_event_time"),
        ({"at": "soon"}, "bad_event_time"),
        ({"at": "0x5"}, "bad_event_time"),
        ({"at": "٣"}, "bad_event_time"),
        ({"at": "NaN"}, "bad_event_time"),
        ({"at": "2013-01-01T10:15:00Z"}, "bad_event_time"),
        ({"at": "9" * 25}, "bad_event_time"),
        ({"at": "9" * 16}, "event_time_out_of_range"),
        ({"at": "-" + "9" * 16}, "event_time_out_of_range"),
    ],
)
def test_a_message_with_no_such_time_is_no_record(
    attributes: dict[str, str], reason: str, around: int
) -> None:
    """And it leaves the others alone."""
    good = [Raw(PLAIN, 0, {"at": "5"})] * around
    found = beside(*good, Raw(PLAIN, 0, attributes), *good, time=MessageTime("at"))
    assert found == ([5] * 2 * around, [(around, reason)])


def test_a_tombstone_is_one_whatever_its_attributes() -> None:
    """What is wrong first is told."""
    assert beside(Raw(None), time=MessageTime("at")) == ([], [(0, "tombstone")])


def test_a_broker_without_times_gives_no_record() -> None:
    """Kafka's messages of old have none."""
    times, refused = beside(Raw(PLAIN, -(2**63)), Raw(PLAIN, 5), time=MessageTime())
    assert (times, refused) == ([5], [(0, "event_time_out_of_range")])


def test_a_record_needs_no_time_field_if_the_message_has_the_time() -> None:
    """The field may be missing, or anything."""
    raw = Raw(b'{"k":"a","v":1}', 7), Raw(b'{"k":"a","v":1,"t":{}}', 8)
    assert beside(*raw, time=MessageTime()) == ([7, 8], [])


@pytest.mark.parametrize(("ids", "kind"), [(False, pa.int64()), (True, pa.string())])
def test_positions_are_the_brokers_own(ids: bool, kind: pa.DataType) -> None:
    """Offsets, or message ids, of any of the messages."""
    messages = messages_of(*[Raw(PLAIN)] * 5, ids=ids)
    lines = MessageLines.of(messages, FIELDS.timestamps)
    found = lines.positions(np.array([4, 0, 2], dtype=np.int64))
    assert found.type == kind
    assert found.to_pylist() == [messages.positions[row] for row in (4, 0, 2)]


def test_reading_goes_on_before_any_message_or_after_the_last() -> None:
    """At its offset, or where the block stops: offsets may have gaps."""
    messages = messages_of(*[Raw(PLAIN)] * 3)
    lines = MessageLines.of(messages, FIELDS.timestamps)
    assert [lines.resume_at(row) for row in range(3)] == list(messages.offsets)
    assert lines.resume_at(None) == messages.stop


def test_payloads_stay_as_they_came() -> None:
    """Tombstones among them, and line breaks."""
    payloads = [PLAIN, None, b"", PLAIN + b"\n", b"\r\n"]
    assert lines_of(*map(Raw, payloads)).payloads().to_pylist() == payloads

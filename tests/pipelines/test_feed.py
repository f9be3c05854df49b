"""The stream that is made of a file: its lines, the faults, and when each is due."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.pipelines.feed import (
    DUPLICATE,
    FAULTS,
    FUTURE,
    INVALID,
    LATE,
    RATE,
    RECORD,
    UNREADABLE,
    FeedFields,
    Item,
    Pacer,
    bind_time,
    feed,
    parse_faults,
    shift_time,
)
from beam_lateness.transforms.sources.records import BadRecordError, Fields, read_json_line
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS
from beam_lateness.transforms.watermarks.timestamps import FieldTime

T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MINUTE = 60_000
YEAR = 365 * 86_400_000
FIELDS = FeedFields(FieldTime("at", "ms"), "key", "id")
READER = Fields("key", None, "id", None, FIELDS.time)
ALL = dict.fromkeys(FAULTS, 1.0)

# The same moment, T0 + 250 ms where the unit can hold it, in each unit and form.
TIMES: list[tuple[str, Any]] = [
    ("s", T0 // 1000),
    ("s", T0 / 1000 + 0.25),
    ("ms", T0 + 250),
    ("us", T0 * 1000 + 250_123),
    ("ns", T0 * 10**6 + 250_123_456),
    ("iso", "2026-01-01T00:00:00Z"),
    ("iso", "2026-01-01 00:00:00.250Z"),
    ("iso", "2026-01-01T01:30+01:30"),
    ("iso", "2025-12-31T19:00:00.25-05:00"),
]


def line(at: Any, number: int = 0, **more: Any) -> bytes:
    """Makes a line."""
    return json.dumps({"id": f"r{number}", "key": "a", "at": at, **more}).encode()


def lines(count: int, step_ms: int = 1000) -> list[bytes]:
    """Makes lines, one a second."""
    return [line(T0 + i * step_ms, i) for i in range(count)]


def stream(raw: Sequence[bytes], rates: Mapping[str, float], **how: Any) -> list[Item]:
    """Makes a stream."""
    return list(feed(raw, how.pop("fields", FIELDS), rates, **how))


def of(kind: str, items: Sequence[Item]) -> list[Item]:
    """Those of a kind."""
    return [item for item in items if item.kind == kind]


def time_of(item: Item) -> int:
    """The event time in a payload."""
    return FIELDS.time_of(json.loads(item.payload))


def test_without_faults_the_stream_is_the_file() -> None:
    """Byte by byte, in order; but blank lines are no records."""
    raw = [line(T0), b"  ", b"no json", b"", line(T0 - MINUTE), b'{"at": "soon"}']
    assert [item.payload for item in stream(raw, {})] == [each for each in raw if each.strip()]


def test_a_line_without_an_event_time_is_unreadable_and_sent_as_it_is() -> None:
    """No JSON, no object, no such field, no time, a year beyond 9999."""
    raw = [b"{", b"[1]", b"{}", b'{"at":true}', line(MAX_EVENT_TIME_MS + 1), b'{"at":1,"at":2}']
    items = stream(raw, ALL)
    assert {item.kind for item in items} == {UNREADABLE}
    assert [item.payload for item in items] == raw
    assert {item.event_time_ms for item in items} == {None}


@pytest.mark.parametrize(
    ("key", "wanted"), [("a", "a"), (7, "7"), (None, None), (True, None), (2**63, None)]
)
def test_the_key_is_text_or_an_integer(key: Any, wanted: str | None) -> None:
    """As the reader has it."""
    (item,) = stream([line(T0, key=key)], {})
    assert item.key == wanted


def test_the_clock_is_the_largest_event_time_so_far() -> None:
    """Of the file's own records: it never goes back, and a future record does not move it."""
    offsets = [0, 5, 3, 9, -100, 9]
    items = stream([line(T0 + o) for o in offsets], {FUTURE: 1, LATE: 1})
    wanted = [T0 + max(offsets[: i + 1]) for i in range(len(offsets))]
    assert [item.clock_ms for item in of(RECORD, items)] == wanted
    clocks = [item.clock_ms for item in items]
    assert clocks == sorted(clocks, key=lambda ms: ms or 0)


def test_the_same_seed_gives_the_same_stream_and_another_one_another() -> None:
    """Fault by fault."""
    raw, rates = lines(200), dict.fromkeys(FAULTS, 0.3)
    assert stream(raw, rates, seed=1) == stream(raw, rates, seed=1)
    assert stream(raw, rates, seed=1) != stream(raw, rates, seed=2)


@pytest.mark.parametrize("kind", FAULTS)
def test_another_kind_of_fault_changes_nothing_of_the_others(kind: str) -> None:
    """Each has dice of its own."""
    raw, rates = lines(200), dict.fromkeys(FAULTS, 0.3)
    without = {name: rate for name, rate in rates.items() if name != kind}
    others = [item for item in stream(raw, rates) if item.kind != kind]
    assert stream(raw, without) == others


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("rate", [0.0, 0.05, 1.0])
def test_a_fault_comes_at_its_rate(kind: str, rate: float) -> None:
    """Within five standard deviations."""
    count = 4000
    found = len(of(kind, stream(lines(count), {kind: rate})))
    assert abs(found - count * rate) <= 5 * (count * rate * (1 - rate)) ** 0.5


def test_faults_follow_the_record_that_they_are_made_of() -> None:
    """With its key, and all other fields as they were."""
    items = stream(lines(20), ALL)
    for start in range(0, len(items), 1 + len(FAULTS)):
        record, *faults = items[start : start + 1 + len(FAULTS)]
        assert record.kind == RECORD
        assert [fault.kind for fault in faults] == list(FAULTS)
        for fault in faults:
            assert fault.key == record.key or fault.kind == INVALID
            assert fault.clock_ms == record.clock_ms


def test_a_late_record_is_one_to_ten_minutes_back_under_an_id_of_its_own() -> None:
    """And nothing else of it is changed; the minutes vary."""
    items = stream(lines(300), {LATE: 1})
    backs = set()
    for record, late in zip(of(RECORD, items), of(LATE, items), strict=True):
        before, after = json.loads(record.payload), json.loads(late.payload)
        backs.add(before["at"] - after["at"])
        assert after == {**before, "at": after["at"], "id": before["id"] + "-late"}
        assert late.event_time_ms == after["at"]
    assert min(backs) >= MINUTE
    assert max(backs) <= 10 * MINUTE
    assert len(backs) > 100


def test_a_future_record_is_a_year_ahead() -> None:
    """Under an id of its own."""
    record, future = stream(lines(1), {FUTURE: 1})
    assert time_of(future) - time_of(record) == YEAR
    assert json.loads(future.payload)["id"] == json.loads(record.payload)["id"] + "-future"


def test_a_duplicate_is_the_same_again() -> None:
    """Its id too: that is the fault."""
    record, duplicate = stream(lines(1), {DUPLICATE: 1})
    assert duplicate == record._replace(kind=DUPLICATE)


@pytest.mark.parametrize(("unit", "value"), TIMES)
def test_no_broken_line_is_a_record_to_the_reader(unit: str, value: Any) -> None:
    """In any unit; and each way of breaking comes."""
    fields = FeedFields(FieldTime("at", unit), "key", "id")
    reader = Fields("key", None, "id", None, fields.time)
    reasons = Counter[str]()
    for item in of(INVALID, stream([line(value)] * 60, {INVALID: 1}, fields=fields)):
        with pytest.raises(BadRecordError) as caught:
            reader.read(read_json_line(item.payload, reader), None)
        reasons[caught.value.reason] += 1
    bad_time = "bad_event_time" if unit == "iso" else "event_time_out_of_range"
    assert set(reasons) == {"malformed_json", "missing_key", bad_time}


def test_without_a_key_field_no_line_loses_its_key() -> None:
    """It is broken in the other ways."""
    fields = FeedFields(FIELDS.time)
    items = of(INVALID, stream(lines(60), {INVALID: 1}, fields=fields))
    whole = [json.loads(item.payload) for item in items if item.payload.endswith(b"}")]
    assert whole
    assert all("key" in record for record in whole)


@pytest.mark.parametrize(("unit", "value"), TIMES)
@pytest.mark.parametrize("seconds", [1, -1, 600, -86_400, YEAR // 1000])
def test_a_shifted_time_is_moved_exactly_and_keeps_its_form(
    unit: str, value: Any, seconds: int
) -> None:
    """Type, digits below the second, separator and zone; and back again it is the same."""
    time, moved = FieldTime("at", unit), shift_time(value, seconds, unit)
    assert time.to_ms(moved) - time.to_ms(value) == seconds * 1000
    assert type(moved) is type(value)
    back = shift_time(moved, -seconds, unit)
    assert time.to_ms(back) == time.to_ms(value)
    if unit == "iso" and len(moved) == len(value):
        assert back == value
        assert moved[19:] == value[19:] or ":30+" in value


@given(ms=st.integers(0, 4 * 10**12), seconds=st.integers(-(10**9), 10**9))
def test_any_time_in_seconds_is_moved_to_the_millisecond(ms: int, seconds: int) -> None:
    """Though binary fractions are not exact."""
    time = FieldTime("at", "s")
    assert time.to_ms(shift_time(ms / 1000, seconds, "s")) == time.to_ms(ms / 1000) + seconds * 1000


@pytest.mark.parametrize(("unit", "value"), TIMES)
def test_a_stream_that_begins_now_has_its_first_time_there(unit: str, value: Any) -> None:
    """To the second; the distances between its times are those of the file."""
    fields = FeedFields(FieldTime("at", unit))
    raw = [b"{", *(line(shift_time(value, s, unit)) for s in (0, 7, -3))]
    begin = T0 + 40 * YEAR + 123
    items = stream(raw, {}, fields=fields, begin_ms=begin)
    assert items[0].kind == UNREADABLE
    times = [fields.time_of(json.loads(item.payload)) for item in items[1:]]
    assert times == [item.event_time_ms for item in items[1:]]
    assert 0 <= begin - times[0] < 1000
    assert [time - times[0] for time in times] == [0, 7000, -3000]


@pytest.mark.parametrize("kind", [LATE, FUTURE])
def test_a_fault_beyond_the_range_of_times_is_left_out(kind: str) -> None:
    """There is no such record."""
    edge = MAX_EVENT_TIME_MS if kind == FUTURE else -62_135_596_800_000
    assert [item.kind for item in stream([line(edge)], {kind: 1})] == [RECORD]


def test_a_number_that_json_has_not_leaves_a_line_as_it_is() -> None:
    """1e999 reads as infinity, which cannot be written again."""
    raw = b'{"at":%d,"x":1e999}' % T0
    items = stream([raw], {LATE: 1}, begin_ms=T0 + YEAR)
    assert [(item.kind, item.payload) for item in items] == [(UNREADABLE, raw)]


def test_faults_are_read_with_their_rates() -> None:
    """1% where none is given."""
    assert parse_faults("late, future:0.5,invalid:0") == {LATE: RATE, FUTURE: 0.5, INVALID: 0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lat", "late, invalid, duplicate, future .*got 'lat'"),
        ("", "got ''"),
        ("late,late:0.1", "'late' twice"),
        ("late:", "rate of 0 to 1, such as late:0.05"),
        ("late:2", "rate of 0 to 1"),
        ("late:-0.1", "rate of 0 to 1"),
        ("late:nan", "rate of 0 to 1"),
        ("late:many", "rate of 0 to 1"),
    ],
)
def test_a_wrong_fault_is_told(text: str, told: str) -> None:
    """With the flag."""
    with pytest.raises(ValueError, match=f"--inject.*{told}"):
        parse_faults(text)


@pytest.mark.parametrize(("unit", "value"), TIMES)
def test_the_unit_is_detected_from_the_head(unit: str, value: Any) -> None:
    """Past lines that are none."""
    assert bind_time([b"{", line(value)], FieldTime("at")) == FieldTime("at", unit)


@pytest.mark.parametrize("head", [[], [b"{"], [b'{"event_time":1}']])
def test_a_head_without_the_time_field_is_told(head: list[bytes]) -> None:
    """With the flag that names it."""
    with pytest.raises(ValueError, match=r"'at': name the field with --time_field"):
        bind_time(head, FieldTime("at"))


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("speed", [0.5, 1, 60])
def test_an_event_time_is_due_when_the_clock_has_come_to_it(speed: float) -> None:
    """The first at once; what is overdue, at once."""
    clock = Clock()
    pacer = Pacer(speed, clock)
    assert pacer.due_in(T0) == 0
    assert pacer.due_in(T0 + MINUTE) == pytest.approx(60 / speed)
    clock.now += 45 / speed
    assert pacer.due_in(T0 + MINUTE) == pytest.approx(15 / speed)
    clock.now += 45 / speed
    assert pacer.due_in(T0 + MINUTE) == 0


def test_at_most_speed_everything_is_due() -> None:
    """And lines before the first event time are at any speed."""
    assert Pacer(None, Clock()).due_in(T0) == 0
    pacer = Pacer(1, Clock())
    assert pacer.due_in(None) == 0
    assert pacer.due_in(T0) == 0

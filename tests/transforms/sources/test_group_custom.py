"""Custom generators on the source: what they see, when they tick, and what happens if they fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import Csv, JsonLines, LineFormat
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.estimator import GroupState, GroupStateCoder
from beam_lateness.transforms.watermarks.generators import WatermarkGenerator, WatermarkOutput
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.model import Event, Marker
from tests.transforms.sources.memory import (
    BEAM_MINIMUM,
    Live,
    MemoryInput,
    Stamped,
    Streams,
    by_split,
    drain,
    expected,
    stamped,
    watermark_of,
    written,
)

Record: TypeAlias = Mapping[str, Any]

FEW = settings(max_examples=50, deadline=None)
SIZES = st.sampled_from([1, 40, 90, 200, 1_000, 1 << 20])
BOUND_MS = 7


class ByType(WatermarkGenerator):
    """Punctuated: a record of the type `end` completes all up to and with its time."""

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        if record["type"] == "end":
            output.emit_watermark(event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing."""


@dataclass
class Largest:
    """What a bounded generator remembers."""

    event_time_ms: int | None = None


class HandWritten(WatermarkGenerator):
    """Periodic: bounded out-of-orderness, as a user writes it."""

    def __init__(self) -> None:
        self.state = Largest()

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        if self.state.event_time_ms is None or event_time_ms > self.state.event_time_ms:
            self.state.event_time_ms = event_time_ms

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self.state.event_time_ms is not None:
            output.emit_watermark(self.state.event_time_ms - BOUND_MS - 1)


class Picky(HandWritten):
    """Fails on some records, before it has done anything with them."""

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        if record["id"].endswith("!"):
            msg = f"no {record['id']}"
            raise KeyError(msg)
        super().on_event(record, event_time_ms, output)


class Hasty(HandWritten):
    """Fails on some records, after it has remembered their time."""

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        super().on_event(record, event_time_ms, output)
        if record["id"].endswith("!"):
            raise KeyError(record["id"])


class Rash(HandWritten):
    """Fails on some records, after it has emitted their time."""

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        if record["id"].endswith("!"):
            output.emit_watermark(event_time_ms)
            raise KeyError(record["id"])
        super().on_event(record, event_time_ms, output)


class Recorder(WatermarkGenerator):
    """Keeps what it sees."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        assert len(record) == len(list(record))
        assert record.get("no such field") is None
        self.seen.append({**record, "at": event_time_ms})

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing."""


class ByClock(WatermarkGenerator):
    """Periodic: the watermark is the wall clock."""

    def on_event(self, record: Record, event_time_ms: int, output: WatermarkOutput) -> None:
        """Does not look."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(round(self.clock() * 1_000) - 1)


def custom(generator: type[WatermarkGenerator], **how: Any) -> WatermarkStrategy:
    """A strategy that runs a generator."""
    return WatermarkStrategy.for_generator(generator, **how)


def typed(name: str, ts: int, kind: str) -> bytes:
    """A line with a type."""
    return json.dumps({"k": "a", "v": 1, "id": name, "t": ts, "type": kind}).encode()


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_a_punctuated_generator_goes_by_the_records_own_fields(size: int) -> None:
    """Between two punctuations the watermark stands; a punctuation is a record like any other."""
    source = MemoryInput({})
    rows = [("x", 5, "sale"), ("y", 9, "end"), ("z", 99, "sale"), ("v", 3, "end"), ("w", 20, "end")]
    source.write("a", *(typed(*row) for row in [*rows, ("last", 7, "sale")]))
    polls = drain(source.reader(custom(ByType), ReadSettings(block_bytes=size)))
    assert [(record.name, record.stamp) for record in stamped(polls)] == [
        ("x", BEAM_MINIMUM),
        ("y", BEAM_MINIMUM),
        ("z", 10),
        ("v", 10),
        ("w", 10),
        ("last", 21),
    ]


def read_files(path: Path, line_format: LineFormat) -> list[Poll]:
    """Reads files, so that a recorder sees them."""
    strategy = custom(Recorder).with_timestamp_assigner(FieldTime("t", "ms"))
    files = Files([str(path)], line_format)
    Recorder.seen.clear()
    return drain(Group(files, strategy, [], ReadSettings()).open())


def test_a_generator_sees_json_fields_as_they_stand_in_the_line(tmp_path: Path) -> None:
    """Also those that nobody else reads, of whatever type; never lines that are no records."""
    lines: list[dict[str, Any]] = [
        {"k": "a", "v": 1, "id": "x", "t": 5, "deep": {"er": [1, None, "ü"]}},
        {"k": 7, "v": 2.5, "t": 6, "flag": True, "nothing": None},
        {"k": "a", "v": 1, "id": 3, "t": 4, "type": "end"},
    ]
    path = tmp_path / "a.jsonl"
    rubbish = ["", "{oops", '{"k":"a","v":1}']
    path.write_text("\n".join([*rubbish, *(json.dumps(line) for line in lines)]))
    polls = read_files(path, JsonLines("k", "v", "id"))
    assert Recorder.seen == [{**line, "at": line["t"]} for line in lines]
    assert sum(len(poll.invalid) for poll in polls) == 2


def test_a_generator_sees_csv_cells_under_the_headers_names(tmp_path: Path) -> None:
    """Value and time are numbers, the rest is text, and an empty cell is no field."""
    path = tmp_path / "a.csv"
    path.write_text(
        'k,t,type,v,id\na,5,"sale, big",1,x\nb,6,,2.5,\nc,oops,end,1,y\n7,4,end,3,007\n'
    )
    read_files(path, Csv("k", "v", "id"))
    assert Recorder.seen == [
        {"k": "a", "t": 5, "type": "sale, big", "v": 1, "id": "x", "at": 5},
        {"k": "b", "t": 6, "v": 2.5, "at": 6},
        {"k": "7", "t": 4, "type": "end", "v": 3, "id": "007", "at": 4},
    ]


@st.composite
def streams_of(draw: st.DrawFn) -> dict[str, list[Event | Marker]]:
    """Streams of up to three splits; on records whose name ends with ! some generators fail."""
    streams: dict[str, list[Event | Marker]] = {}
    for split in "abc"[: draw(st.integers(1, 3))]:
        start = draw(st.sampled_from([0, 50, -50]))
        times = draw(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=15))
        streams[split] = [
            Event("k", 1, start + ts, f"{split}{number}{'!' if bad else ''}")
            for number, (ts, bad) in enumerate(times)
        ]
    return streams


def good(streams: Streams) -> dict[str, list[Event | Marker]]:
    """Streams without the records on which generators fail."""
    return {
        split: [e for e in events if isinstance(e, Event) and not e.name.endswith("!")]
        for split, events in streams.items()
    }


@FEW
@given(streams_of(), SIZES)
def test_a_hand_written_bound_stamps_as_the_built_in_one(streams: Streams, size: int) -> None:
    """In a replay a tick follows each record, so verdicts depend on the input alone."""
    polls = drain(written(streams).reader(custom(HandWritten), ReadSettings(block_bytes=size)))
    assert by_split(stamped(polls)) == expected(streams, BOUND_MS)


def resumed_at_every_poll(
    source: MemoryInput, strategy: WatermarkStrategy, size: int
) -> list[Poll]:
    """Reads to the end, each poll by a new reader, from what a checkpoint holds."""
    coder, how = GroupStateCoder(), ReadSettings(block_bytes=size)
    polls: list[Poll] = []
    positions, state = source.initial_positions(), GroupState()
    while not polls or not polls[-1].finished:
        reader = source.reader(strategy, how, positions, state)
        polls.append(reader.poll())
        reader.close()
        positions = {name: SplitPosition(*p) for name, p in polls[-1].positions.items()}
        state = coder.decode(coder.encode(polls[-1].state))
        assert len(polls) < 1_000
    return polls


@FEW
@given(streams_of(), st.sampled_from([HandWritten, Picky]), SIZES)
def test_a_replay_with_a_custom_generator_goes_on_from_any_poll(
    streams: Streams, generator: type[WatermarkGenerator], size: int
) -> None:
    """In the middle of a block too: the declared state is all that it needs."""
    polls = resumed_at_every_poll(written(streams), custom(generator), size)
    records = good(streams) if generator is Picky else streams
    assert by_split(stamped(polls)) == expected(records, BOUND_MS)
    lost = {e.name for events in streams.values() for e in events if isinstance(e, Event)} - {
        record.name for record in stamped(polls)
    }
    assert sorted(str(r.record_id) for poll in polls for r in poll.invalid) == sorted(lost)


def test_a_record_on_which_a_generator_fails_is_invalid_and_the_others_are_read_on() -> None:
    """With its reason, its own id, its payload, and its place."""
    events = [Event("k", 1, ts, name) for ts, name in [(9, "x"), (99, "bad!"), (5, "y"), (30, "z")]]
    source = written({"a": events, "b": [Event("k", 1, 100, "b")]})
    polls = drain(source.reader(custom(Picky)))
    (invalid,) = [record for poll in polls for record in poll.invalid]
    assert (invalid.reason, invalid.detail) == (
        "watermark_generator_failed",
        "Picky.on_event raised KeyError: 'no bad!'",
    )
    assert (invalid.split, invalid.record_id) == ("a", "bad!")
    line = source.texts["a"].split(b"\n")[1]
    assert invalid.payload == line
    assert isinstance(invalid.position, int)
    assert source.texts["a"][invalid.position :].startswith(line)
    assert [r for r in stamped(polls) if r.split == "a"] == [
        Stamped("a", "x", 9, BEAM_MINIMUM),
        Stamped("a", "y", 5, 9 - BOUND_MS),
        Stamped("a", "z", 30, 9 - BOUND_MS),
    ]


def test_a_failing_generator_does_not_stop_a_live_source() -> None:
    """A block in which it fails on every record among them."""
    live = Live(custom(Picky), "a")
    live.source.write("a", Event("k", 1, 10, "1!"), Event("k", 1, 20, "2!"))
    poll = live.poll(0)
    assert [record.record_id for record in poll.invalid] == ["1!", "2!"]
    assert (poll.batches, watermark_of(poll)) == ([], BEAM_MINIMUM)
    live.source.write("a", Event("k", 1, 30, "3!"), Event("k", 1, 20, "4"))
    poll = live.poll(1)
    assert [record.record_id for record in poll.invalid] == ["3!"]
    assert [record.name for record in stamped([poll])] == ["4"]
    assert watermark_of(poll) == 20 - BOUND_MS


HALF_WAY: dict[str, list[Event | Marker]] = {
    "fast": [
        Event("k", 1, 10 * n + 900 * (n % 3 == 1), f"fast{n}" + "!" * (n % 3 == 1))
        for n in range(12)
    ],
    "slow": [
        Event("k", 1, n + 900 * (n == 289), f"slow{n}" + "!" * (n == 289)) for n in range(300)
    ],
}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("generator", [Picky, Hasty, Rash])
@pytest.mark.parametrize("size", [100, 250, 1 << 20])
def test_a_record_on_which_a_generator_fails_moves_no_watermark(
    size: int, generator: type[WatermarkGenerator], restarts: bool
) -> None:
    """It is no record, whatever was done with it before; a replay depends on its input alone."""
    source, strategy = MemoryInput({}), custom(generator)
    for split, steps in HALF_WAY.items():
        source.write(split, *(line for step in steps for line in (step, b"{oops")))
    if restarts:
        polls = resumed_at_every_poll(source, strategy, size)
    else:
        polls = drain(source.reader(strategy, ReadSettings(block_bytes=size)))
    assert by_split(stamped(polls)) == expected(good(HALF_WAY), BOUND_MS)
    places = [r.position or 0 for poll in polls for r in poll.invalid if r.split == "fast"]
    assert len(places) == 12 + 4
    assert places == sorted(set(places))


class Broken(HandWritten):
    """Its tick fails."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        raise KeyError(self.state.event_time_ms)


@pytest.mark.parametrize("follows", [False, True])
def test_a_tick_that_fails_ends_the_job(follows: bool) -> None:
    """No record is at fault: the message names the generator."""
    reader = written({"a": [Event("k", 1, 5, "x")]}, follows).reader(custom(Broken))
    with pytest.raises(
        RuntimeError, match=r"generator Broken\.on_periodic_emit raised KeyError: 5"
    ):
        reader.poll()


def test_markers_are_seen_by_a_custom_generator_and_are_no_records() -> None:
    """They need no field but their time."""
    Recorder.seen.clear()
    polls = drain(
        written({"a": [Event("k", 1, 5, "x"), Marker(9)]}).reader(
            custom(Recorder, marker_field="end")
        )
    )
    assert [record.name for record in stamped(polls)] == ["x"]
    assert not any(poll.invalid for poll in polls)
    assert Recorder.seen[1:] == [{"end": True, "t": 9, "at": 9}]
    stream: Streams = {"a": [Event("k", 1, 5, "x"), Marker(90), Event("k", 1, 6, "y")]}
    polls = drain(written(stream).reader(custom(HandWritten, marker_field="end")))
    assert [(r.name, r.stamp) for r in stamped(polls)] == [("x", BEAM_MINIMUM), ("y", 83)]


def test_a_live_watermark_by_the_clock_advances_with_every_poll() -> None:
    """C36: a poll each second, and no record at all."""
    live = Live(custom(ByClock), ("p0", "p1"))
    assert [watermark_of(live.poll(now)) for now in range(9)] == [now * 1_000 for now in range(9)]


def test_a_live_generator_emits_on_the_ticks_of_its_interval_only() -> None:
    """The first at once; then whenever a second has passed, by the injected clock."""
    live = Live(custom(HandWritten, emit_interval="1s"), "a")
    ticks = {0: 0, 0.25: 0, 0.5: 0, 1: 1, 1.25: 1, 2.5: 2.5, 3: 2.5, 3.25: 2.5, 3.5: 3.5}
    reached = {now: watermark_of(live.poll(now, a=[now])) for now in ticks}
    assert reached == {now: tick * 1_000 - BOUND_MS for now, tick in ticks.items()}


def test_live_records_are_stamped_with_the_watermark_of_the_last_tick() -> None:
    """Those of one poll alike."""
    live = Live(custom(HandWritten, emit_interval="1s"), "a")
    polls = [live.poll(now, a=[now, now + 5, now + 1]) for now in (0, 0.5, 1, 1.5)]
    stamps = [{record.stamp for record in stamped([poll])} for poll in polls]
    assert stamps == [{BEAM_MINIMUM}, {4_993}, {4_993}, {5_993}]


def test_the_ticks_of_a_live_generator_go_on_over_a_restart() -> None:
    """A restart is no tick, and forgets nothing that was seen since the last one."""
    live = Live(custom(HandWritten, emit_interval="1s"), "a")
    reached = []
    for now in (0, 0.5, 0.75, 1):
        reached.append(watermark_of(live.poll(now, a=[now] if now < 0.75 else [])))
        live.restart()
    assert reached == [0 - BOUND_MS, 0 - BOUND_MS, 0 - BOUND_MS, 500 - BOUND_MS]


def test_an_idle_split_has_no_ticks() -> None:
    """It would go on holding the others, or let its own watermark run into the blue."""
    live = Live(custom(ByClock).with_idleness("2s"), ("p0", "p1"))
    for now in range(8):
        poll = live.poll(now, p0=[now])
    own = {split.split: split.watermark_ms for split in poll.status.splits}
    assert own == {"p0": 7_000, "p1": 2_000}, "p1 was active until 2 s"
    assert watermark_of(poll) == 7_000

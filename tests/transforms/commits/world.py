"""A small world for `InFlight`: a broker, a source, an engine, a store, and crashes between them.

It is simple where the code under test is not: everything that outlives a crash stands in `World`,
all else in `Run`, and every step between two effects may be the last one of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from beam_lateness import EventBatch, InvalidRecord, Pane, TooLateRecord, Windows
from beam_lateness.transforms.commits.checkpoints import Checkpoint, Checkpoints
from beam_lateness.transforms.commits.in_flight import InFlight, Read, Settled
from beam_lateness.transforms.commits.tally import Position
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, NO_WATERMARK_MS

SOURCE: Final = "source"
RECORD, INVALID, MARKER = "record", "invalid", "marker"

_T = TypeVar("_T")


class Event(NamedTuple):
    """What is published."""

    name: str
    kind: str
    key: str
    ts: int


class Row(NamedTuple):
    """A row of the store: the run and pane that wrote it, and the records it stands on."""

    run: str
    index: int  # type: ignore[assignment]
    count: int  # type: ignore[assignment]
    names: tuple[str, ...]


class CrashError(Exception):
    """The process dies here."""


def batch_of(split: str, rows: Sequence[tuple[Position, str, int, int]]) -> EventBatch:
    """Makes a batch of (position, key, event time, stamp)."""
    positions, keys, times, stamps = zip(*rows, strict=True)
    columns = {
        "key": pa.array(keys, pa.string()),
        "value": pa.array([1] * len(rows), pa.int64()),
        "id": pa.nulls(len(rows), pa.string()),
        "event_time": pa.array(times, pa.int64()),
        "watermark": pa.array(stamps, pa.int64()),
        "position": pa.array(positions),
        "payload": pa.array([b"{}"] * len(rows), pa.binary()),
    }
    return EventBatch(split, pa.RecordBatch.from_pydict(columns))


class MemoryCheckpoints(Checkpoints):
    """Keeps checkpoints in the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def sources(self) -> list[str]:
        return []

    def load(self, source: str) -> Checkpoint | None:
        return self._world.checkpoint

    def write(self, checkpoint: Checkpoint) -> None:
        world, before = self._world, self._world.checkpoint
        world.step()
        for split, log in world.logs.items():
            if split in checkpoint.splits:
                resume = checkpoint.splits[split].resume
                assert resume <= len(log)
                world.check_kept(log[:resume])
                assert before is None or resume >= before.splits[split].resume
        assert before is None or checkpoint.watermark_ms >= before.watermark_ms
        world.checkpoint = checkpoint
        world.step()


class World:
    """What outlives a crash.

    Args:
        logs: How many partitions there are, which are read again from an offset.
        queues: How many subscriptions, which give what is not acknowledged, in any order.
        lateness: The windows' allowed lateness, in ms; they are of 10 ms.
        bound: How far the watermark is behind the largest event time, in ms.
    """

    def __init__(self, logs: int, queues: int, lateness: int, bound: int) -> None:
        self.windows = Windows("10ms", f"{lateness}ms")
        self.bound = bound
        self.logs: dict[str, list[Event]] = {f"log-{n}": [] for n in range(logs)}
        self.queues: dict[str, dict[str, Event]] = {f"queue-{n}": {} for n in range(queues)}
        self.splits = [*self.logs, *self.queues]
        self.delivered: set[str] = set()  # to some run
        self.published: list[Event] = []
        self.rows: dict[tuple[str, int], Row] = {}
        self.letters: set[str] = set()
        self.checkpoint: Checkpoint | None = None
        self.now_s = 0.0
        self.runs = 0
        self.fuse: int | None = None  # steps that are left to the run

    def step(self) -> None:
        """Crashes, if it is time."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise CrashError

    def publish(self, split: str, kind: str, key: str, ts: int) -> None:
        """Appends something to the broker."""
        event = Event(f"{kind}-{len(self.published)}", kind, key, ts)
        self.published.append(event)
        if split in self.logs:
            self.logs[split].append(event)
        else:
            self.queues[split][event.name] = event

    def write_panes(self, panes: Iterable[Pane], run: str) -> None:
        """Upserts: a later run wins, or a later pane of the same run."""
        self.step()
        for pane in panes:
            cell = pane.key, pane.window_end
            new = Row(run, pane.index, pane.count, pane.value)
            if cell not in self.rows or self.rows[cell][:2] < new[:2]:
                self.rows[cell] = new
        self.step()

    def retract(self, runs: Sequence[str], low_ms: int, high_ms: int) -> None:
        """Removes rows that only earlier runs wrote."""
        self.step()
        for (key, end), row in list(self.rows.items()):
            if low_ms < end <= high_ms and row.run in runs:
                del self.rows[key, end]
        self.step()

    def check_kept(self, events: Iterable[Event]) -> None:
        """Asserts that what may be forgotten now is in the store, or among the dead letters."""
        for event in events:
            counted = any(event.name in row.names for row in self.rows.values())
            assert event.kind == MARKER or counted or event.name in self.letters, event

    def acknowledge(self, split: str, settled: Settled, fail: int) -> list[Position]:
        """Lets go of messages; gives those of which it may not know: from number `fail` on."""
        self.step()
        positions = settled.positions
        if split in self.logs:
            log = self.logs[split]
            self.check_kept(log[: settled.resume])
            self.check_kept(log[position] for position in positions if isinstance(position, int))
            return []
        for number, position in enumerate(positions):
            gone = self.queues[split].pop(str(position), None)
            self.check_kept([] if gone is None else [gone])
            self.step()
            if number == fail:  # it is the answer that was lost
                return positions[number:]
        return []

    def check_all_is_in_one_place(self) -> None:
        """Asserts that each record is in one row, once, or is a dead letter."""
        counted = [name for row in self.rows.values() for name in row.names]
        assert len(set(counted)) == len(counted)
        assert not self.letters & set(counted)
        wanted = {event.name for event in self.published if event.kind != MARKER}
        assert self.letters | set(counted) == wanted
        for (key, end), row in self.rows.items():
            assert row.count == len(row.names)
            own = {event.name: event for event in self.published}
            assert {own[name].key for name in row.names} == {key}
            assert {self.windows.end_of(own[name].ts) for name in row.names} == {end}

    def check_all_is_acknowledged(self) -> None:
        """Asserts that the broker holds nothing for this source any more."""
        assert not any(self.queues.values())
        assert self.checkpoint is not None
        for split, log in self.logs.items():
            assert self.checkpoint.splits[split].resume == len(log)


class _Cell:
    """A key's window in the engine."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.panes = self.told = 0


class Run:
    """A process: what it holds is gone when it dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.runs += 1
        self.name = f"run-{world.runs:05}"
        self.in_flight = InFlight(
            SOURCE,
            self.name,
            world.windows,
            MemoryCheckpoints(world),
            keep_too_late=True,
            keep_invalid=True,
            retract=self._retract,
            clock=lambda: world.now_s,
        )
        self.before = self.in_flight.restored
        known = {} if self.before is None else self.before.splits
        self.next = {s: known[s].resume if s in known else 0 for s in world.splits}
        self.in_flight.begin(self.next)
        self.watermark = self.in_flight.watermark_ms
        self.holds = self.before is not None
        self.impatient = False
        self.tops = dict.fromkeys(world.splits, NO_WATERMARK_MS)
        self.leased: set[str] = set()
        self.names: dict[tuple[str, Position], str] = {}
        self.elements: deque[EventBatch | InvalidRecord | int] = deque()
        self.engine_ms = NO_WATERMARK_MS
        self.cells: dict[tuple[str, int], _Cell] = {}
        self.panes: list[Pane] = []
        self.dead: list[TooLateRecord | InvalidRecord] = []

    def _retract(self, runs: Sequence[str], low_ms: int, high_ms: int) -> None:
        self.world.retract(runs, low_ms, high_ms)

    # The source.

    def poll(self, split: str, count: int, pick: int) -> None:
        """Reads some of a split, stamps it, and hands it to the engine."""
        rows: list[tuple[Position, str, int, int]] = []
        invalid: list[InvalidRecord] = []
        markers: list[tuple[str, Sequence[Position], int]] = []
        for position, event in self._read(split, count, pick):
            self.names[split, position] = event.name
            if event.kind == INVALID:
                invalid.append(InvalidRecord("bad", "", split, position, event.name))
                continue
            if event.kind == MARKER:
                markers.append((split, [position], event.ts))
            else:
                rows.append((position, event.key, event.ts, self.watermark))
            reached = event.ts + 1 if event.kind == MARKER else event.ts - self.world.bound
            self.tops[split] = max(self.tops[split], reached)
            self._advance(min(self.tops.values()))
        batches = [batch_of(split, rows)] if rows else []
        self._admit(Read(batches, invalid, markers, dict(self.next), self.watermark))
        if self.holds and self._recovered():
            self.holds = False
            self.in_flight.end_recovery()
            self._advance(min(self.tops.values()))

    def _read(self, split: str, count: int, pick: int) -> list[tuple[Position, Event]]:
        if split in self.world.logs:
            low = self.next[split]
            got: list[tuple[Position, Event]] = []
            got += enumerate(self.world.logs[split][low : low + count], low)
        else:
            free = [name for name in self.world.queues[split] if name not in self.leased]
            pick %= max(len(free), 1)
            taken = (free[pick:] + free[:pick])[:count]
            got = [(name, self.world.queues[split][name]) for name in taken]
            self.leased.update(taken)
            self.world.delivered.update(taken)
        self.next[split] += len(got)
        return got

    def _advance(self, watermark: int) -> None:
        if not self.holds:
            self.watermark = max(self.watermark, watermark)

    def _recovered(self) -> bool:
        assert self.before is not None
        for split, old in self.before.splits.items():
            if split in self.world.logs:
                if self.next[split] < old.next:
                    return False
            elif not self.impatient:
                coming = self.world.queues[split].keys() & self.world.delivered
                if coming - self.leased:
                    return False
        return True

    def _admit(self, read: Read) -> None:
        batches, invalid = self.in_flight.admit(read)
        self.elements += [*batches, *invalid, read.watermark_ms]

    def jump(self, watermark: int) -> None:
        """Moves the watermark on without a record, as when splits are idle."""
        self._advance(watermark)
        self._admit(Read([], [], [], dict(self.next), self.watermark))

    # The engine.

    def work(self, count: int) -> None:
        """Lets the engine take some of what it was given."""
        for _ in range(min(count, len(self.elements))):
            element = self.elements.popleft()
            if isinstance(element, InvalidRecord):
                self.dead.append(element)
            elif isinstance(element, int):
                self.engine_ms = max(self.engine_ms, element)
            else:
                self._take(element)
            for key, end in self.cells:
                if end <= self.engine_ms:
                    self._fire(key, end)

    def _take(self, batch: EventBatch) -> None:
        windows = self.world.windows
        for row in batch.to_pylist():
            ts, name = row["event_time"], self.names[batch.split, row["position"]]
            start, end = windows.start_of(ts), windows.end_of(ts)
            if row["watermark"] >= windows.closed_at(ts):
                place = batch.split, row["position"], name
                self.dead.append(
                    TooLateRecord(row["key"], 1, ts, start, end, row["watermark"], 0, *place)
                )
            else:
                self.cells.setdefault((row["key"], end), _Cell()).names.append(name)

    def _fire(self, key: str, end: int) -> None:
        cell = self.cells[key, end]
        if len(cell.names) > cell.told:
            index, cell.panes, cell.told = cell.panes, cell.panes + 1, len(cell.names)
            names = tuple(cell.names)
            start, timing = end - self.world.windows.size_ms, "LATE" if index else "ON_TIME"
            self.panes.append(Pane(key, start, end, names, len(names), index, timing))

    # The sinks.

    def store(self, count: int, pick: int) -> None:
        """Writes some panes, in any order, and tells so."""
        taken = _take_from(self.panes, count, pick)
        self.world.write_panes(taken, self.name)
        self.in_flight.panes_stored(taken)

    def bury(self, count: int, pick: int) -> None:
        """Writes some dead letters, and tells so."""
        taken = _take_from(self.dead, count, pick)
        self.world.step()
        self.world.letters.update(str(record.record_id) for record in taken)
        self.world.step()
        self.in_flight.letters_stored(taken)

    # The session.

    def commit(self, clean: bool = False, fail: int = -1) -> None:
        """Settles, and acknowledges; the broker may be told of some messages only."""
        for split, settled in self.in_flight.commit(clean).items():
            left = self.world.acknowledge(split, settled, fail)
            self.world.step()
            self.in_flight.confirm(split, left)

    def finish(self) -> None:
        """Reads everything, stores everything, and brings the watermark to its end."""
        everything = len(self.world.published) + 1
        for end in (False, True, True):
            for split in self.world.splits:
                self.poll(split, everything, 0)
            if end:
                self.jump(MAX_EVENT_TIME_MS)
            self.world.now_s += 10
            self.work(len(self.elements))
            self.store(len(self.panes), 0)
            self.bury(len(self.dead), 0)
            self.commit()


def _take_from(pending: list[_T], count: int, pick: int) -> list[_T]:
    """Takes some, beginning anywhere."""
    pick %= max(len(pending), 1)
    taken = (pending[pick:] + pending[:pick])[:count]
    pending[:] = (pending[pick:] + pending[:pick])[count:]
    return taken

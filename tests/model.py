"""The sequential reference model: one record at a time, no Beam, no Arrow, nothing shared with the
code under test but the rule itself.

A record is too late if and only if `watermark >= window end + allowed lateness` when it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

NO_WATERMARK = -(2**63) // 1000


class Event(NamedTuple):
    """A record: key, value, event time in ms, and a name to follow it by."""

    key: str
    value: int
    ts: int
    name: str = ""


class Marker(NamedTuple):
    """A punctuation: everything up to and with `ts` has come."""

    ts: int


class ModelPane(NamedTuple):
    """A pane, as the model emits it: one per late record."""

    key: str
    window: tuple[int, int]
    value: int
    timing: str


@dataclass
class Windowed:
    """What becomes of a stream, step by step: records and (exclusive) watermarks."""

    size: int
    lateness: int
    offset: int = 0
    discarding: bool = False
    watermark: int = NO_WATERMARK
    sums: dict[tuple[str, int], int] = field(default_factory=dict)
    fired: set[tuple[str, int]] = field(default_factory=set)
    panes: list[ModelPane] = field(default_factory=list)
    late: list[Event] = field(default_factory=list)
    too_late: list[Event] = field(default_factory=list)

    def start_of(self, ts: int) -> int:
        """Start of a time's window."""
        return (ts - self.offset) // self.size * self.size + self.offset

    def record(self, event: Event) -> bool:
        """Takes a record; says whether it was accepted."""
        start = self.start_of(event.ts)
        end = start + self.size
        if self.watermark >= end + self.lateness:
            self.too_late.append(event)
            return False
        cell = (event.key, start)
        self.sums[cell] = self.sums.get(cell, 0) + event.value
        if self.watermark >= end:
            self.late.append(event)
            self.fired.add(cell)
            value = event.value if self.discarding else self.sums[cell]
            self.panes.append(ModelPane(event.key, (start, end), value, "LATE"))
        return True

    def advance(self, watermark: int) -> None:
        """Moves the watermark; a lower one has no effect."""
        self.watermark = max(self.watermark, watermark)
        for key, start in sorted(self.sums, key=lambda cell: (cell[1], cell[0])):
            if (key, start) not in self.fired and self.watermark >= start + self.size:
                self.fired.add((key, start))
                window = (start, start + self.size)
                self.panes.append(ModelPane(key, window, self.sums[key, start], "ON_TIME"))

    @property
    def totals(self) -> dict[tuple[str, int], int]:
        """Final value of each key and window start."""
        return dict(self.sums)


def bounded(events: Iterable[Event], bound: int) -> Iterator[tuple[Event, int]]:
    """Gives each record of one split with the exclusive watermark just before it."""
    largest: int | None = None
    for event in events:
        yield event, NO_WATERMARK if largest is None else largest - bound
        largest = event.ts if largest is None else max(largest, event.ts)


def punctuated(steps: Iterable[Event | Marker]) -> Iterator[tuple[Event, int]]:
    """The same, for a split whose watermark is moved by markers."""
    watermark = NO_WATERMARK
    for step in steps:
        if isinstance(step, Marker):
            watermark = max(watermark, step.ts + 1)
        else:
            yield step, watermark


def verdicts(
    splits: Iterable[Iterable[tuple[Event, int]]], size: int, lateness: int, offset: int = 0
) -> Windowed:
    """Judges every record by its own split's watermark: what a finite replay promises."""
    result = Windowed(size, lateness, offset)
    for split in splits:
        for event, watermark in split:
            result.watermark = watermark
            result.record(event)
    return result

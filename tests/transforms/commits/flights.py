"""An `InFlight` in a test's hands: windows of 10 ms that take corrections for 5 ms more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from beam_lateness import InvalidRecord, Pane, Windows
from beam_lateness.transforms.commits.checkpoints import Checkpoint, Checkpoints, SplitCheckpoint
from beam_lateness.transforms.commits.in_flight import InFlight, Read, Settled
from beam_lateness.transforms.commits.tally import Position
from beam_lateness.transforms.results import TooLateRecord
from beam_lateness.transforms.times import NO_WATERMARK_MS
from tests.transforms.commits.world import batch_of

SOURCE: Final = "source"
WINDOWS: Final = Windows("10ms", "5ms")
LOG: Final = "log"
QUEUE: Final = "queue"


class Rec(NamedTuple):
    """A record: its position, its event time, the watermark at its arrival, its key."""

    position: Position
    ts: int
    stamp: int = NO_WATERMARK_MS
    key: str = "a"


class Kept(Checkpoints):
    """Keeps every checkpoint that was written, the latest last."""

    def __init__(self, *written: Checkpoint) -> None:
        self.written = list(written)
        self.told: list[str] = []

    @property
    def last(self) -> Checkpoint:
        """The latest."""
        return self.written[-1]

    def split(self, name: str = LOG) -> SplitCheckpoint:
        """A split in the latest."""
        return self.last.splits[name]

    def sources(self) -> list[str]:
        return [checkpoint.source for checkpoint in self.written]

    def load(self, source: str) -> Checkpoint | None:
        return self.written[-1] if self.written else None

    def write(self, checkpoint: Checkpoint) -> None:
        self.written.append(checkpoint)
        self.told.append("write")


class Flight:
    """An `InFlight` of one split, with the little that a session adds to it.

    Args:
        kept: Its checkpoints.
        split: The split.
        run: The run's name.
        retract: Called by it.
        keep: Whether dead letters are written.
    """

    def __init__(
        self,
        kept: Kept,
        split: str = LOG,
        run: str = "run-1",
        retract: Callable[[Sequence[str], int, int], bool | None] | None = None,
        keep: bool = True,
    ) -> None:
        self.kept, self.split = kept, split
        self.now_s = 0.0
        self.core = InFlight(
            SOURCE, run, WINDOWS, kept, keep, keep, retract, clock=lambda: self.now_s
        )
        before = self.core.restored
        self.next = before.splits[split].resume if before else 0
        self.core.begin({split: self.next})

    def admit(
        self,
        *records: Rec,
        watermark: int = NO_WATERMARK_MS,
        invalid: Sequence[Position] = (),
        markers: Sequence[tuple[Position, int]] = (),
    ) -> list[dict[str, Any]]:
        """Admits what a poll has read, and gives what may go on, as rows."""
        read = Read(
            [batch_of(self.split, [(r.position, r.key, r.ts, r.stamp) for r in records])]
            if records
            else [],
            [InvalidRecord("bad", "", self.split, position) for position in invalid],
            [(self.split, [position], ts) for position, ts in markers],
            {self.split: self._after([r.position for r in records], invalid, markers)},
            watermark,
        )
        batches, bad = self.core.admit(read)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [*rows, *(record._asdict() for record in bad)]

    def _after(
        self,
        records: Sequence[Position],
        invalid: Sequence[Position],
        markers: Sequence[tuple[Position, int]],
    ) -> int:
        positions = [*records, *invalid, *(position for position, _ in markers)]
        offsets = [position + 1 for position in positions if isinstance(position, int)]
        self.next = max([self.next, *offsets])
        if self.split == QUEUE:
            self.next += len(positions)
        return self.next

    def store(self, end: int, count: int, index: int = 0, key: str = "a") -> None:
        """Tells of a pane in the store."""
        timing = "LATE" if index else "ON_TIME"
        self.core.panes_stored([Pane(key, end - 10, end, 0, count, index, timing)])

    def bury(self, position: Position) -> None:
        """Tells of a dead letter that was written."""
        self.core.letters_stored([InvalidRecord("bad", "", self.split, position)])

    def bury_too_late(self, position: Position, ts: int) -> None:
        """The same of a too late record."""
        end = WINDOWS.end_of(ts)
        self.core.letters_stored(
            [TooLateRecord("a", 1, ts, end - 10, end, end + 5, 0, self.split, position)]
        )

    def commit(self, clean: bool = False) -> Settled:
        """Settles, a second later, and gives what may be acknowledged."""
        self.now_s += 1
        nothing = Settled([], 0)
        return self.core.commit(clean).get(self.split, nothing)

    def settle(self) -> set[Position]:
        """Settles and acknowledges; gives the positions."""
        settled = self.commit()
        positions = set(settled.positions)
        self.core.confirm(self.split, [])
        return positions

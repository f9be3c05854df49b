"""What has been read of a source and is not in the store yet: the rule of when to let go of it.

An engine that keeps nothing (Prism) loses all open windows when it dies. So a record may be
acknowledged only when no result depends on it any more: when its window is closed and every result
of it is in the store, or when its dead letter has been written. That it is *every* result is seen
by the law of conservation: the panes in the store stand on as many records as were accepted.

What must outlive the process is the *settled watermark*: up to it every window is closed and
stored. The next run begins with it, so that a record for a closed window is too late then as it was
before, and every record of a window that is not settled comes again, and is counted anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from beam_lateness.transforms.batch import POSITION, EventBatch
from beam_lateness.transforms.commits.checkpoints import Checkpoint, Checkpoints, SplitCheckpoint
from beam_lateness.transforms.commits.restore import restore, shape_of
from beam_lateness.transforms.commits.tally import Before, Position, WindowTally
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.results import InvalidRecord, Pane, TooLateRecord
from beam_lateness.transforms.times import (
    MIN_EVENT_TIME_MS,
    NO_WATERMARK_MS,
    Flags,
)

_CHECKPOINT_EVERY_S: Final = 1.0  # while no window is settled
_EXPECTED: Final = 100_000  # ids of earlier runs, not known to be acknowledged, that are kept


class Read(NamedTuple):
    """What one poll has read.

    Args:
        batches: The records, stamped.
        invalid: What is no record.
        markers: Markers, as (split, positions, largest time of one in ms).
        next: The offset of each split after it.
        watermark_ms: The exclusive watermark after it.
    """

    batches: Sequence[EventBatch]
    invalid: Sequence[InvalidRecord]
    markers: Sequence[tuple[str, Sequence[Position], int]]
    next: Mapping[str, int]
    watermark_ms: int


class Settled(NamedTuple):
    """What a split's source may forget: some records, and all before an offset."""

    positions: list[Position]
    resume: int


class InFlight:
    """Follows records from the source into the store.

    It may be called from several threads: the source's and the sinks'.

    Args:
        source: The source's name.
        run: The run's name.
        windows: The windows by which records are judged.
        checkpoints: Where the settled watermark is kept.
        keep_too_late: Whether too late records become dead letters (else they are counted only).
        keep_invalid: The same of what is no record.
        retract: Called before windows are settled in a run that goes on with an earlier one, with
            these earlier runs, and the range of their ends, in ms: removes what only an earlier
            run has written of them. If it gives true, no later window can have such results, and
            it is not called again.
        clock: Gives the time in seconds.

    Raises:
        ValueError: If the source's checkpoint was made with other windows or by a later run, or
            part of the source has a checkpoint as part of another one.
    """

    def __init__(
        self,
        source: str,
        run: str,
        windows: Windows,
        checkpoints: Checkpoints,
        keep_too_late: bool,
        keep_invalid: bool,
        retract: Callable[[Sequence[str], int, int], bool | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self._lock = threading.RLock()
        self._windows = windows
        self._checkpoints = checkpoints
        self._keep_too_late, self._keep_invalid = keep_too_late, keep_invalid
        self._retract = retract
        self._clock = clock
        self.restored = restore(checkpoints, source, run, windows)
        runs = () if self.restored is None else self.restored.runs
        floor_ms = NO_WATERMARK_MS if self.restored is None else self.restored.watermark_ms
        known = {} if self.restored is None else dict(self.restored.splits)
        self._saved = Checkpoint(source, shape_of(windows), (*runs, run), floor_ms, False, known)
        self._before = {name: Before(split) for name, split in known.items()}
        self._before_ms = floor_ms
        self._saved_at = clock()
        self._watermark_ms = floor_ms
        self._next = {name: split.resume for name, split in known.items()}
        self._open: dict[int, WindowTally] = {}  # by the watermark that closes them
        self._letters: dict[str, dict[Position, bool]] = {}  # not written yet; whether invalid
        self._held: list[EventBatch] = []  # too late, of windows that are not settled yet
        self._markers: list[tuple[str, Sequence[Position], int]] = []
        self._done: dict[str, list[Position]] = {}  # settled, to be acknowledged
        self._unconfirmed: dict[str, list[Position]] = {}
        self._singles = {  # offsets that are settled though their window is not: invalid ones
            name: {p for p in split.settled if isinstance(p, int)} for name, split in known.items()
        }
        self._expected: dict[
            str, dict[Position, None]
        ] = {  # ids that are settled, and may come again since they were not confirmed
            name: dict.fromkeys(p for p in split.settled if isinstance(p, str))
            for name, split in known.items()
        }
        self._recovered = self.restored is None or self.restored.clean
        self._changed = False  # since the checkpoint was written

    @property
    def watermark_ms(self) -> int:
        """The settled watermark, exclusive, in ms."""
        return self._saved.watermark_ms

    def begin(self, resume: Mapping[str, int]) -> None:
        """Writes down where the source begins, before anything is read."""
        with self._lock:
            for name, offset in resume.items():
                self._next.setdefault(name, offset)
            self._save(clean=False)

    def count(self) -> int:
        """Gives how many records are in flight."""
        with self._lock:
            return (
                sum(window.accepted for window in self._open.values())
                + sum(map(len, self._letters.values()))
                + sum(map(len, self._held))
            )

    def admit(self, read: Read) -> tuple[list[EventBatch], list[InvalidRecord]]:
        """Takes what was read, and gives the batches and the invalid records that may go on.

        Left out are records that were settled before (they came again), and, until their window is
        settled, those that are too late for it: so a dead letter is written only of a window that
        no later run opens again.
        """
        with self._lock:
            out = list(self._release_held())
            for batch in read.batches:
                out += self._admit(batch)
            invalid = [record for record in read.invalid if not self._was_settled(record)]
            for record in invalid:
                if record.split is not None and record.position is not None:
                    self._letter(record.split, record.position, self._keep_invalid, invalid=True)
            self._markers += read.markers
            self._changed = self._changed or read.next != self._next
            self._next.update(read.next)
            self._watermark_ms = max(self._watermark_ms, read.watermark_ms)
            return out, invalid

    def _was_settled(self, record: InvalidRecord) -> bool:
        if record.split is None or record.position is None or record.split not in self._before:
            return False
        settled = record.position in self._before[record.split].settled
        if settled:
            self._finish(record.split, [record.position])
        return settled

    def _admit(self, batch: EventBatch) -> Iterator[EventBatch]:
        positions = batch.columns.column(POSITION)
        closes = self._windows.closed_at(batch.event_times)
        before = self._before.get(batch.split)
        if before is not None:
            again = before.settled_among(positions, closes <= self._before_ms)
            if again.any():
                self._finish(batch.split, positions.filter(pa.array(again)).to_pylist())
                batch, closes = batch.filter(~again), closes[~again]
                positions = batch.columns.column(POSITION)
        too_late: Flags = batch.watermarks >= closes
        for close in np.unique(closes[~too_late]).tolist():
            rows = positions.filter(pa.array((closes == close) & ~too_late))
            self._open.setdefault(close, WindowTally()).accept(batch.split, rows)
        held: Flags = too_late & (closes > self._saved.watermark_ms)
        if held.any():
            self._held.append(batch.filter(held))
            batch, too_late = batch.filter(~held), too_late[~held]
        if too_late.any():
            self._letters_of(batch.filter(too_late))
        if len(batch):
            yield batch

    def _release_held(self) -> Iterator[EventBatch]:
        """Gives the too late records whose windows are settled now."""
        still = []
        for batch in self._held:
            closed = self._windows.closed_at(batch.event_times) <= self._saved.watermark_ms
            if closed.any():
                free = batch.filter(closed)
                self._letters_of(free)
                yield free
            if not closed.all():
                still.append(batch.filter(~closed))
        self._held = still

    def _letters_of(self, batch: EventBatch) -> None:
        for position in batch.columns.column(POSITION).to_pylist():
            self._letter(batch.split, position, self._keep_too_late, invalid=False)

    def _letter(self, split: str, position: Position, kept: bool, *, invalid: bool) -> None:
        self._letters.setdefault(split, {})[position] = invalid
        if not kept:
            self._written(split, position)

    def _written(self, split: str, position: Position) -> None:
        invalid = self._letters[split].pop(position)
        if invalid and isinstance(position, int):
            self._singles.setdefault(split, set()).add(position)
        self._finish(split, [position])

    def _finish(self, split: str, positions: Iterable[Position]) -> None:
        self._changed = True
        finished = list(positions)
        self._done.setdefault(split, []).extend(finished)
        expected = self._expected.get(split)
        if expected:
            for position in finished:
                expected.pop(position, None)

    def panes_stored(self, panes: Iterable[Pane]) -> None:
        """Takes note of panes that are in the store."""
        with self._lock:
            for pane in panes:
                window = self._open.get(pane.window_end + self._windows.allowed_lateness_ms)
                if window is not None:
                    window.store(pane.key, pane.count)

    def letters_stored(self, records: Iterable[TooLateRecord | InvalidRecord]) -> None:
        """Takes note of dead letters that have been written."""
        with self._lock:
            for record in records:
                if record.split is None or record.position is None:
                    continue
                if record.position in self._letters.get(record.split, ()):
                    self._written(record.split, record.position)

    def commit(self, clean: bool = False) -> dict[str, Settled]:
        """Settles the windows that are closed and stored; writes the checkpoint, if it moves.

        Args:
            clean: Whether the run ends here, and what is in flight is given back.

        Returns:
            What each split's source may be told to forget: nothing that the checkpoint, or a sink,
            does not hold for good.
        """
        with self._lock:
            self._settle(clean)
            ready, self._done = self._done, {}
            for name, positions in ready.items():
                self._unconfirmed.setdefault(name, []).extend(positions)
            return {
                name: Settled(self._unconfirmed.get(name, []), split.resume)
                for name, split in self._saved.splits.items()
                if self._unconfirmed.get(name) or split.resume > 0
            }

    def close(self) -> None:
        """Closes its checkpoints."""
        with self._lock:
            self._checkpoints.close()

    def confirm(self, split: str, unconfirmed: list[Position]) -> None:
        """Takes note of an acknowledgement.

        Args:
            split: The split.
            unconfirmed: What its source has not been told after all.
        """
        with self._lock:
            self._unconfirmed[split] = unconfirmed

    def end_recovery(self) -> None:
        """Takes note that what was in flight when the last run ended has come again."""
        with self._lock:
            self._recovered = True

    def _settle(self, clean: bool) -> None:
        floor_ms = self._watermark_ms
        closed = sorted(close for close in self._open if close <= floor_ms)
        for close in closed:
            if not self._open[close].complete:
                floor_ms = close - 1
                break
        floor_ms = max(floor_ms, self._saved.watermark_ms)
        settled = [close for close in closed if close <= floor_ms]
        due = self._clock() - self._saved_at >= _CHECKPOINT_EVERY_S
        moved = self._changed or floor_ms > self._saved.watermark_ms
        if not (settled or clean or (due and moved)):
            return
        if self.restored is not None and self._retract is not None:
            lateness_ms = self._windows.allowed_lateness_ms
            low = max(self._saved.watermark_ms, MIN_EVENT_TIME_MS) - lateness_ms
            *before, run = self._saved.runs
            if before and self._retract(before, low, floor_ms - lateness_ms):
                self._saved = replace(self._saved, runs=(run,))
        for close in settled:
            for split, ids in self._open.pop(close).ids:
                self._finish(split, ids.to_pylist())
        passed = [marker for marker in self._markers if marker[2] < floor_ms]
        self._markers = [marker for marker in self._markers if marker[2] >= floor_ms]
        for split, positions, _ in passed:
            self._finish(split, positions)
        self._save(clean, floor_ms)

    def _save(self, clean: bool, watermark_ms: int | None = None) -> None:
        lowest = dict(self._next)
        unsettled: dict[str, list[Position]] = {}
        for window in self._open.values():
            for split, offset in window.lowest.items():
                lowest[split] = min(lowest[split], offset)
        for split, positions, _ in self._markers:
            _lower(lowest, split, positions)
        pending = [(split, list(letters)) for split, letters in self._letters.items()]
        pending += [(b.split, b.columns.column(POSITION).to_pylist()) for b in self._held]
        for split, positions in pending:
            _lower(lowest, split, positions)
            unsettled.setdefault(split, []).extend(positions)
        for name, before in self._before.items():  # not read again as far as it was read before
            if self._next[name] < before.next:
                unsettled.setdefault(name, []).extend(before.open)
        splits = {
            name: SplitCheckpoint(
                max(offset, self._before[name].next if name in self._before else offset),
                lowest[name],
                [p for p in unsettled.get(name, ()) if isinstance(p, int)],
                self._settled_of(name, lowest[name]),
            )
            for name, offset in self._next.items()
        }
        clean = clean and self._recovered  # else what the run before held is not given back yet
        floor_ms = self._saved.watermark_ms if watermark_ms is None else watermark_ms
        self._saved = replace(self._saved, watermark_ms=floor_ms, clean=clean, splits=splits)
        self._checkpoints.write(self._saved)
        self._changed = False
        self._saved_at = self._clock()

    def _settled_of(self, name: str, resume: int) -> list[Position]:
        """Gives what is settled of a split, and may come again all the same."""
        singles = {offset for offset in self._singles.get(name, ()) if offset >= resume}
        self._singles[name] = singles
        told = (*self._unconfirmed.get(name, ()), *self._done.get(name, ()))
        ids = dict.fromkeys(p for p in told if isinstance(p, str))
        expected = list(self._expected.get(name, ()))
        if self._recovered:
            expected = expected[-_EXPECTED:]
        return [*sorted(singles), *expected, *ids]


def _lower(lowest: dict[str, int], split: str, positions: Sequence[Position]) -> None:
    offsets = [position for position in positions if isinstance(position, int)]
    if offsets:
        lowest[split] = min(lowest[split], min(offsets))

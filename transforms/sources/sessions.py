"""Sessions: an open live input, and the rule by which its records are acknowledged.

The broker keeps a record until it is acknowledged, so that must come late enough: when the engine
has kept it (`EngineSession`), or, where the engine keeps nothing, when the store has what follows
from it (`StoreSession`). A session belongs to the process, not to a DoFn: engines use several
copies of a DoFn in turn, and what one has read another may have to acknowledge.
"""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import POSITION
from beam_lateness.transforms.commits.in_flight import InFlight, Read
from beam_lateness.transforms.commits.store import forget
from beam_lateness.transforms.commits.tally import Position
from beam_lateness.transforms.sources.connector import AcknowledgingReader, Positions
from beam_lateness.transforms.sources.group import GroupReader
from beam_lateness.transforms.sources.held import HeldPolls
from beam_lateness.transforms.sources.restriction import Restriction
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.estimator import exclusive

_LOG = logging.getLogger(__name__)
_IN_FLIGHT = metrics.Gauge(metrics.IN_FLIGHT)


class Session(ABC):
    """An open live input.

    Args:
        reader: Reads it.
    """

    def __init__(self, reader: GroupReader) -> None:
        self.lock = threading.RLock()
        self.reader = reader
        self.closed = False

    @property
    def positions(self) -> Positions:
        """Where every split stands."""
        return self.reader.positions

    def stands_at(self, restriction: Restriction) -> bool:
        """Whether it can go on from where a restriction stands."""
        return bool(self.positions == restriction.positions)

    @abstractmethod
    def poll(self) -> Poll:
        """Acknowledges what may be acknowledged, and reads on."""

    def close(self) -> None:
        """Gives back what is not acknowledged, and closes the input."""
        with self.lock:
            self.closed = True
            self.reader.close()

    def _refuse_closed(self) -> None:
        if self.closed:
            msg = "the job is over: its inputs are closed"
            raise RuntimeError(msg)

    def _readers(self) -> Mapping[str, AcknowledgingReader]:
        return cast("Mapping[str, AcknowledgingReader]", self.reader.readers())


class EngineSession(Session):
    """Acknowledges what an engine with checkpoints has kept, one finalization later.

    On Flink finalizers are not aligned to the checkpoint: bundles after it may be finalized with
    it, and would be read again from it after a failure. So a poll is acknowledged when a later one
    that began after its finalization is finalized too.

    What the engine had kept of an earlier session, but was not acknowledged, comes again: it is
    told by its id, acknowledged, and left out.

    Args:
        reader: Reads the input.
        before: The ids of what an earlier session had read and not acknowledged, by split.
        holds: Whether its polls must be held back until the engine has kept them.
    """

    def __init__(
        self,
        reader: GroupReader,
        before: Mapping[str, Sequence[str]] | None = None,
        *,
        holds: bool = False,
    ) -> None:
        super().__init__(reader)
        self._id = uuid.uuid4().hex
        _engine_sessions[self._id] = self
        self._before = {name: set(ids) for name, ids in (before or {}).items()}
        self._number = 0
        self._finalized = 0  # the highest poll that was finalized
        self.held = HeldPolls(reader.state) if holds else None
        self._read: dict[int, tuple[dict[str, list[Position]], dict[str, int], int]] = {}
        self._left: dict[str, list[Position]] = {}  # of which the source could not be told yet

    @property
    def last_poll(self) -> str:
        """Names the poll that was read last, and the session; "" before the first."""
        return f"{self._id}:{self._number}" if self._number else ""

    def stands_at(self, restriction: Restriction) -> bool:
        """Whether it can go on; of one that holds polls, whether it holds those of the state."""
        if self.held is not None and self.last_poll != restriction.poll:
            return False
        return super().stands_at(restriction)

    def poll(self) -> Poll:
        """Reads on."""
        with self.lock:
            self._refuse_closed()
            before = self._finalized
            poll = self.reader.poll()
            self._number += 1
            if self.held is not None:
                self.held.add(self._number, poll)
            offsets = {name: position.offset for name, position in poll.positions.items()}
            self._read[self._number] = (_positions_of(poll), offsets, before)
            if any(self._before.values()):
                self._leave_out(poll)
            return poll

    def _leave_out(self, poll: Poll) -> None:
        """Leaves out of a poll what an earlier session has given already."""
        for number, batch in enumerate(poll.batches):
            known = self._before.get(batch.split, set())
            positions = batch.columns.column(POSITION).to_pylist()
            again = np.array([position in known for position in positions])
            if again.any():
                poll.batches[number] = batch.filter(~again)
        poll.batches = [batch for batch in poll.batches if len(batch)]
        poll.invalid = [
            record
            for record in poll.invalid
            if record.position not in self._before.get(record.split or "", set())
        ]
        for name, positions in self._read[self._number][0].items():
            self._before.get(name, set()).difference_update(map(str, positions))

    def unacknowledged(self) -> dict[str, list[str]]:
        """Gives the ids of what has been read, but may come again, by split."""
        with self.lock:
            found = {name: list(ids) for name, ids in self._before.items() if ids}
            read = [positions for positions, _, _ in self._read.values()]
            for by_split in (self._left, *read):
                for name, positions in by_split.items():
                    ids = [each for each in positions if isinstance(each, str)]
                    if ids:
                        found.setdefault(name, []).extend(ids)
            return found

    def name_poll(self) -> tuple[str, int]:
        """Names the poll that was read last, for `finalizer_of`."""
        return self._id, self._number

    def finalizer(self) -> Callable[[], None]:
        """Gives the callback of the poll that was read last."""
        return _Finalizer(self, self._number)

    def finalize(self, number: int) -> None:
        """Takes note that the engine has kept a poll."""
        with self.lock:
            self._finalized = max(self._finalized, number)
            until = self._read[number][2] if number in self._read else 0
            if self.held is not None:
                self.held.kept = max(self.held.kept, until)
            readers = self._readers()
            for each in sorted(n for n in self._read if n <= until):
                positions, offsets, _ = self._read.pop(each)
                for name in readers.keys() & offsets.keys():
                    done = [*self._left.pop(name, ()), *positions.get(name, ())]
                    self._left[name] = readers[name].acknowledge(done, offsets[name])


class _Finalizer:
    """Tells a session that a poll was kept."""

    def __init__(self, session: EngineSession, number: int) -> None:
        self._session, self._number = session, number

    def __call__(self) -> None:
        self._session.finalize(self._number)


_engine_sessions: weakref.WeakValueDictionary[str, EngineSession] = weakref.WeakValueDictionary()


def finalizer_of(session_id: str, number: int) -> Callable[[], None]:
    """Gives the callback of a poll of this process, by what `EngineSession.name_poll` gave."""
    session = _engine_sessions.get(session_id)
    return _nothing if session is None else _Finalizer(session, number)


def _nothing() -> None:
    """Nothing to do: the session is closed."""


class StoreSession(Session):
    """Acknowledges what no result depends on any more, since the store has all of them.

    Args:
        reader: Reads the input; its watermark is held, if an earlier run has left records that
            come again.
        in_flight: What has been read and is not in the store.
    """

    def __init__(self, reader: GroupReader, in_flight: InFlight) -> None:
        super().__init__(reader)
        self._in_flight = in_flight

    def poll(self) -> Poll:
        """Settles and acknowledges what is in the store, and reads on."""
        with self.lock:
            self._refuse_closed()
            self._commit()
            poll = self.reader.poll()
            read = Read(
                poll.batches,
                poll.invalid,
                poll.markers,
                {name: position.offset for name, position in poll.positions.items()},
                exclusive(poll.state.watermark_ms),
            )
            poll.batches, poll.invalid = self._in_flight.admit(read)
            _IN_FLIGHT.set(self._in_flight.count())
            if self.reader.holds and self._recovered():
                _LOG.info("what was in flight when the last run ended has been read again")
                self.reader.end_hold()
                self._in_flight.end_recovery()
            return poll

    def _commit(self) -> None:
        readers = self._readers()
        for name, settled in self._in_flight.commit().items():
            if name in readers:
                left = readers[name].acknowledge(settled.positions, settled.resume)
                self._in_flight.confirm(name, left)

    def _recovered(self) -> bool:
        before, readers = self._in_flight.restored, self._readers()
        if before is None:
            return True
        here = before.splits.keys() & self.positions.keys()
        return all(
            name in readers and readers[name].recovered(before.splits[name].next, before.clean)
            for name in here
        )

    def close(self) -> None:
        """Settles what is in the store, gives the rest back, and closes the input."""
        with self.lock:
            if self.closed:
                return
            readers = self._readers()
            try:
                self._commit()
            finally:
                super().close()
            self._in_flight.commit(clean=all(each.gave_back for each in readers.values()))


def _positions_of(poll: Poll) -> dict[str, list[Position]]:
    """Gives the positions of everything that a poll has read, by split."""
    read: dict[str, list[Position]] = {}
    for batch in poll.batches:
        read.setdefault(batch.split, []).extend(batch.columns.column(POSITION).to_pylist())
    for record in poll.invalid:
        if record.split is not None and record.position is not None:
            read.setdefault(record.split, []).append(record.position)
    for split, positions, _ in poll.markers:
        read.setdefault(split, []).extend(positions)
    return read


_sessions: dict[str, Session] = {}
_lock = threading.Lock()
_closed = False


def session_of(name: str, restriction: Restriction, create: Callable[[], Session]) -> Session:
    """Gives the session of this process that stands where a restriction does, or opens it.

    Args:
        name: Names the input.
        restriction: Where the engine wants to read on; it is elsewhere than the session after the
            engine has gone back to a checkpoint of its own.
        create: Opens it.

    Raises:
        RuntimeError: If the sessions were closed: the job is over.
    """
    with _lock:
        if _closed:
            msg = "the job is over: its inputs are closed"
            raise RuntimeError(msg)
        session = _sessions.get(name)
        if session is not None and not session.stands_at(restriction):
            session.close()
            session = None
        if session is None:
            session = _sessions[name] = create()
        return session


def close_sessions() -> None:
    """Ends the live inputs of this process in order; none can be opened again."""
    global _closed
    with _lock:
        _closed = True
        try:
            for session in _sessions.values():
                session.close()
        finally:
            _sessions.clear()
            forget()


def open_sessions() -> None:
    """Allows live inputs to be opened (again), for a new job in this process."""
    global _closed
    with _lock:
        _closed = False

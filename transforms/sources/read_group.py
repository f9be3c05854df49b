"""The splittable DoFn that reads a group of splits: its restriction, its tracker, its calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms.sources.connector import Positions, SplitPosition
from beam_lateness.transforms.sources.emit import emit
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.rhythm import PROMPT, Rhythm
from beam_lateness.transforms.sources.sessions import EngineSession
from beam_lateness.transforms.sources.share import Share
from beam_lateness.transforms.sources.unbounded import Unbounded
from beam_lateness.transforms.watermarks.estimator import GroupState


@dataclass(frozen=True)
class Restriction:
    """The positions of a group: an object, since Beam takes an empty one for no work left.

    Args:
        positions: Where every split stands.
        closing: How many calls there were since all was read.
        unacknowledged: Per split, the ids of messages that have been read, but may come again since
            the source was not told yet. (Offsets need none: they are not read again.)
    """

    positions: Positions
    closing: int = 0
    unacknowledged: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def all_read(self) -> bool:
        """Whether there are splits, and all of them have been read."""
        return bool(self.positions) and all(p.done for p in self.positions.values())


class RestrictionCoder(Coder):
    """Encodes the positions of a group as JSON."""

    def encode(self, value: Restriction) -> bytes:
        return json.dumps([value.positions, value.closing, value.unacknowledged]).encode()

    def decode(self, encoded: bytes) -> Restriction:
        positions, closing, unacknowledged = json.loads(encoded)
        found = {name: SplitPosition(*fields) for name, fields in positions.items()}
        return Restriction(found, closing, unacknowledged)

    def is_deterministic(self) -> bool:
        return True


class PositionsTracker(RestrictionTracker):
    """Tracks how far a group has been read.

    It is split at a checkpoint only, never for speed, since a group is read in one order.
    """

    def __init__(self, restriction: Restriction) -> None:
        self._at = restriction
        self._claimed = False
        self._split = False

    def current_restriction(self) -> Restriction:
        return self._at

    def try_claim(self, position: Restriction) -> bool:
        """Claims everything up to where the group stands after a poll."""
        if self._split:
            return False
        self._at, self._claimed = position, True
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Restriction, Restriction] | None:
        if fraction_of_remainder != 0 or self._split:
            return None
        self._split = True
        residual = self._at
        if residual.all_read:
            residual = replace(residual, closing=residual.closing + 1)
        self._at = Restriction(
            {
                name: position._replace(end=position.offset, done=True)
                for name, position in residual.positions.items()
            }
        )
        return self._at, residual

    def check_done(self) -> bool:
        positions = self._at.positions
        if self._split or (self._claimed and all(p.done for p in positions.values())):
            return True
        left = [name for name, position in positions.items() if not position.done]
        msg = f"splits left unread: {', '.join(left)}"
        raise ValueError(msg)

    def current_progress(self) -> RestrictionProgress:
        # As a fraction: completed/remaining of an empty restriction make some engines divide 0/0.
        positions = self._at.positions.values()
        if any(position.end is None for position in positions):
            return RestrictionProgress(fraction=0.0)
        done = sum(position.offset for position in positions)
        total = sum(max(p.end or 0, p.offset) for p in positions)
        return RestrictionProgress(fraction=done / total if total else 0.0)

    def is_bounded(self) -> bool:
        return False


class ReadGroup(Unbounded):
    """Reads a group of splits, a few polls a call; its elements are the readers' shares.

    Args:
        group: The input.
        rhythm: How the calls follow each other.
    """

    def __init__(self, group: Group, rhythm: Rhythm = PROMPT) -> None:
        self._group = group
        self.rhythm = rhythm
        self._readers: dict[bytes, GroupReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def initial_restriction(self, element: bytes) -> Restriction:
        share = Share.decode(element)
        return Restriction(share.of(self._group.connector.initial_positions()))

    def create_tracker(self, restriction: Restriction) -> PositionsTracker:
        return PositionsTracker(restriction)

    def restriction_size(self, element: bytes, restriction: Restriction) -> float:
        positions = restriction.positions.values()
        return float(sum(max((p.end or p.offset) - p.offset, 0) for p in positions))

    def restriction_coder(self) -> Coder:
        return RestrictionCoder()

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[Any]:
        restriction = tracker.current_restriction()
        positions = restriction.positions
        if restriction.all_read:
            self.close(element)
            if tracker.try_claim(restriction) and restriction.closing < self.rhythm.closing_calls:
                tracker.defer_remainder()
            return
        reader = self._reader_at(element, positions, estimator.get_estimator_state())
        for poll in self.rhythm.polls(reader):
            if not tracker.try_claim(Restriction(poll.positions)):
                self.close(element)
                return
            yield from emit(poll)
            estimator.advance(poll.state)
            delay_s = self.rhythm.delay_s(poll)
        tracker.defer_remainder(BeamDuration.of(delay_s))

    def teardown(self) -> None:
        for element in list(self._readers):
            self.close(element)

    def reader_for(self, element: bytes, restriction: Restriction, state: GroupState) -> Any:
        """Gives what polls a share from where a restriction stands."""
        return self._reader_at(element, restriction.positions, state)

    def kept_by(self, reader: Any) -> EngineSession | None:
        """Gives the session that the engine must tell what it has kept; None if there is none."""
        return None

    def _reader_at(self, element: bytes, positions: Positions, state: GroupState) -> GroupReader:
        """The reader of the last call if it stands there (it holds parsed blocks), or a new one."""
        reader = self._readers.get(element)
        if reader is None or reader.positions != positions or reader.state != state:
            self.close(element)
            share = Share.decode(element)
            reader = self._readers[element] = self._group.open(positions, state, share=share)
        return reader

    def close(self, element: bytes) -> None:
        """Closes the reader of a share."""
        reader = self._readers.pop(element, None)
        if reader is not None:
            reader.close()

"""How far a splittable DoFn of the source has come: its restriction, its tracker, its watermark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider

from beam_lateness.transforms.sources.connector import Positions, SplitPosition
from beam_lateness.transforms.watermarks.estimator import (
    GroupState,
    GroupStateCoder,
    GroupWatermarkEstimator,
)


@dataclass(frozen=True)
class Restriction:
    """The positions of a group: an object, since Beam takes an empty one for no work left.

    Args:
        positions: Where every split stands.
        closing: How many calls there were since all was read.
        unacknowledged: Per split, the ids of messages that have been read, but may come again since
            the source was not told yet. (Offsets need none: they are not read again.)
        poll: The last poll, of which session: the state goes with that one and no other.
    """

    positions: Positions
    closing: int = 0
    unacknowledged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    poll: str = ""

    @property
    def all_read(self) -> bool:
        """Whether there are splits, and all of them have been read."""
        return bool(self.positions) and all(p.done for p in self.positions.values())


class RestrictionCoder(Coder):
    """Encodes the positions of a group as JSON."""

    def encode(self, value: Restriction) -> bytes:
        return json.dumps(
            [value.positions, value.closing, value.unacknowledged, value.poll]
        ).encode()

    def decode(self, encoded: bytes) -> Restriction:
        positions, *rest = json.loads(encoded)
        found = {name: SplitPosition(*fields) for name, fields in positions.items()}
        return Restriction(found, *rest)

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


class Unbounded(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """A splittable DoFn that is read in one order, and whose watermark is that of a group."""

    def create_tracker(self, restriction: Restriction) -> PositionsTracker:
        return PositionsTracker(restriction)

    def restriction_size(self, element: bytes, restriction: Restriction) -> float:
        positions = restriction.positions.values()
        return float(sum(max((p.end or p.offset) - p.offset, 0) for p in positions))

    def restriction_coder(self) -> Coder:
        return RestrictionCoder()

    def split(self, element: bytes, restriction: Restriction) -> Iterator[Restriction]:
        yield restriction

    def truncate(self, element: bytes, restriction: Restriction) -> None:
        """Reads no more once the pipeline drains."""

    def initial_estimator_state(self, element: bytes, restriction: Restriction) -> GroupState:
        return GroupState()

    def create_watermark_estimator(self, estimator_state: GroupState) -> GroupWatermarkEstimator:
        return GroupWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        return GroupStateCoder()

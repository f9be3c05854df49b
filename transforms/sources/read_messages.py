"""The splittable DoFn that reads a live input whose records are acknowledged."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.sources.connector import AcknowledgingConnector, Positions
from beam_lateness.transforms.sources.emit import emit
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_group import ReadGroup, Restriction
from beam_lateness.transforms.sources.sessions import (
    EngineSession,
    Session,
    StoreSession,
    session_of,
)
from beam_lateness.transforms.watermarks.estimator import GroupState, exclusive


class ReadMessages(ReadGroup):
    """Reads a group of splits, a poll a call, and acknowledges what has been kept.

    Args:
        group: The input.
        commits: Acknowledge by the store; None to acknowledge by the engine's bundle finalization.
    """

    def __init__(self, group: Group, commits: CommitAfterStore | None) -> None:
        super().__init__(group)
        self._commits = commits
        self._name = uuid.uuid4().hex

    def initial_restriction(self, element: bytes) -> Restriction:
        positions = dict(self._group.connector.initial_positions())
        in_flight = self._in_flight()
        if in_flight is not None:
            before = {} if in_flight.restored is None else in_flight.restored.splits
            for name in positions.keys() & before.keys():
                positions[name] = positions[name]._replace(offset=before[name].resume)
            in_flight.begin({name: position.offset for name, position in positions.items()})
        return Restriction(positions)

    def initial_estimator_state(self, element: bytes, restriction: Restriction) -> GroupState:
        in_flight = self._in_flight()
        if in_flight is None or in_flight.restored is None:
            return GroupState()
        return GroupState(in_flight.watermark_ms - exclusive(0))

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[Any]:
        positions = tracker.current_restriction().positions
        state = estimator.get_estimator_state()
        session = session_of(self._name, positions, _Open(self, positions, state))
        poll = session.poll()
        if not tracker.try_claim(poll.positions):
            return
        yield from emit(poll)
        estimator.advance(poll.state)
        kept = session.finalizer()
        if kept is not None:
            finalizer.register(kept)
        tracker.defer_remainder(BeamDuration.of(poll.wait_s))

    def open(self, positions: Positions, state: GroupState) -> Session:
        """Opens the input at some positions."""
        in_flight = self._in_flight()
        if in_flight is None:
            return EngineSession(self._group.open(positions, state))
        hold = in_flight.restored is not None
        return StoreSession(self._group.open(positions, state, hold=hold), in_flight)

    def _in_flight(self) -> InFlight | None:
        connector = self._group.connector
        if self._commits is None or not isinstance(connector, AcknowledgingConnector):
            return None
        return self._commits.open(connector.source_id)


class _Open:
    """Opens the input of a DoFn."""

    def __init__(self, reader: ReadMessages, positions: Positions, state: GroupState) -> None:
        self._reader, self._positions, self._state = reader, positions, state

    def __call__(self) -> Session:
        return self._reader.open(self._positions, self._state)

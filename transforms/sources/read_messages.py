"""The splittable DoFns that read a live input whose records are acknowledged."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import apache_beam as beam

from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.sources.connector import AcknowledgingConnector
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_group import ReadGroup
from beam_lateness.transforms.sources.restriction import Restriction
from beam_lateness.transforms.sources.rhythm import PROMPT, Rhythm
from beam_lateness.transforms.sources.sessions import (
    EngineSession,
    Session,
    StoreSession,
    session_of,
)
from beam_lateness.transforms.sources.share import Share
from beam_lateness.transforms.watermarks.estimator import GroupState, inclusive


class ReadMessages(ReadGroup):
    """Reads a group of splits, a few polls a call, from the session of its process.

    Args:
        group: The input.
        rhythm: How the calls follow each other.
    """

    def __init__(self, group: Group, rhythm: Rhythm = PROMPT) -> None:
        super().__init__(group, rhythm)
        self._name = uuid.uuid4().hex

    def open(self, share: Share, restriction: Restriction, state: GroupState) -> Session:
        """Opens a share of the input where a restriction stands."""
        raise NotImplementedError

    def reader_for(self, element: bytes, restriction: Restriction, state: GroupState) -> Session:
        """Gives the session of this process that stands where a restriction does."""
        share = Share.decode(element)
        create = _Open(self, share, restriction, state)
        return session_of(f"{self._name}-{share.index}", restriction, create)

    def kept_by(self, reader: Any) -> EngineSession | None:
        """Gives the session, if it waits for the engine."""
        return reader if isinstance(reader, EngineSession) else None


class ReadKept(ReadMessages):
    """Acknowledges what the engine has made durable: by bundle finalization.

    Args:
        group: The input, of an `AcknowledgingConnector`.
        rhythm: How the calls follow each other.
        holds: Whether polls are held back until the engine has kept them, if the input would not
            give them again in the same order: the caller must give away what is released.
    """

    def __init__(self, group: Group, rhythm: Rhythm = PROMPT, *, holds: bool = False) -> None:
        super().__init__(group, rhythm)
        self._holds = holds

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[Any]:
        yield from self._read(element, tracker, estimator, finalizer)

    def open(self, share: Share, restriction: Restriction, state: GroupState) -> Session:
        """Opens a share of the input where a restriction stands."""
        # A connector of its own: several readers of a process must not share a client.
        group = replace(self._group, connector=copy.copy(self._group.connector))
        reader = group.open(restriction.positions, state, share=share)
        connector = group.connector
        assert isinstance(connector, AcknowledgingConnector)  # noqa: S101 (ReadEvents has looked)
        holds = self._holds and not connector.replays
        return EngineSession(reader, restriction.unacknowledged, holds=holds)


class ReadStored(ReadMessages):
    """Acknowledges what the job's own store has.

    Args:
        group: The input, of an `AcknowledgingConnector`.
        commits: Ties it to the sinks.
        rhythm: How the calls follow each other.
    """

    def __init__(self, group: Group, commits: CommitAfterStore, rhythm: Rhythm = PROMPT) -> None:
        super().__init__(group, rhythm)
        self._commits = commits

    def _connector(self) -> AcknowledgingConnector:
        connector = self._group.connector
        assert isinstance(connector, AcknowledgingConnector)  # noqa: S101 (ReadEvents has looked)
        return connector

    def _in_flight(self) -> InFlight:
        return self._commits.open(self._connector().source_id)

    def initial_restriction(self, element: bytes) -> Restriction:
        connector, in_flight = self._connector(), self._in_flight()
        if in_flight.restored is None:
            positions = connector.initial_positions()
        else:
            positions = connector.later_positions()
            before = in_flight.restored.splits
            for name in positions.keys() & before.keys():
                positions[name] = positions[name]._replace(offset=before[name].resume)
        in_flight.begin({name: position.offset for name, position in positions.items()})
        return Restriction(positions)

    def initial_estimator_state(self, element: bytes, restriction: Restriction) -> GroupState:
        in_flight = self._in_flight()
        if in_flight.restored is None:
            return GroupState()
        return GroupState(inclusive(in_flight.watermark_ms))

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[Any]:
        yield from self._read(element, tracker, estimator)

    def open(self, share: Share, restriction: Restriction, state: GroupState) -> Session:
        """Opens the input where a restriction stands; there is one reader."""
        in_flight = self._in_flight()
        hold = in_flight.restored is not None
        return StoreSession(self._group.open(restriction.positions, state, hold=hold), in_flight)


class _Open:
    """Opens the input of a DoFn."""

    def __init__(
        self, reader: ReadMessages, share: Share, restriction: Restriction, state: GroupState
    ) -> None:
        self._reader, self._share = reader, share
        self._restriction, self._state = restriction, state

    def __call__(self) -> Session:
        return self._reader.open(self._share, self._restriction, self._state)

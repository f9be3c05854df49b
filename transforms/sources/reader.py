"""`ReadEvents`: the one source. A splittable DoFn over a group of splits, whatever the connector.

Beam's Python DirectRunner cannot run an unbounded splittable DoFn. There (`embedded`) the input is
read ahead, and a `TestStream` replays its polls and watermarks: finite inputs, held in memory.
"""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import Coder, VarIntCoder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.beam_time import to_ms, to_timestamp
from beam_lateness.transforms.results import InvalidRecord
from beam_lateness.transforms.sources.connector import Connector, Positions, SplitPosition
from beam_lateness.transforms.sources.emit import INVALID_TAG, emit
from beam_lateness.transforms.sources.group import Group, GroupReader, ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import (
    GroupState,
    GroupStateCoder,
    GroupWatermarkEstimator,
    exclusive,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy

_CLOSING_CALLS: Final = 3
"""Calls between the last poll of a finite input and the one that ends it. Prism (2.77) may run a
call before it has noted the watermark of the one before; if that call ends the source, the
watermark noted late stands in for the end of time, and the job is stuck (seen in 1 of 200 sources).
Each call that reports the same watermark again makes the engine look at it once more."""


@dataclass(frozen=True)
class ReadEventsResult:
    """What `ReadEvents` gives.

    Args:
        events: `PCollection[EventBatch]`, stamped.
        invalid: `PCollection[InvalidRecord]`.
    """

    events: PCollection[EventBatch]
    invalid: PCollection[InvalidRecord]


@dataclass(eq=False)
class ReadEvents(beam.PTransform[PBegin, ReadEventsResult]):
    """Reads an input as stamped batches of records.

    Watermark: the minimum over the splits of what the strategy says, exclusive as Beam means it;
    it never goes back, and reaches the end of time only when a finite input has been read.

    Args:
        connector: The input, such as `Files`.
        strategy: Where event times come from and how the watermark follows them.
        settings: How to read: block size, pace, the guard against times from the future.
        embedded: Whether to run on Beam's Python DirectRunner: a finite input, held in memory.

    Returns:
        A `ReadEventsResult`.

    Raises:
        ValueError: Before launch, if there is nothing to read, a field or the time unit cannot be
            made out, or `embedded` is asked of an input that has no end.

    Example:
        >>> from beam_lateness import Files, JsonLines
        >>> source = ReadEvents(
        ...     Files(["flights.jsonl"], JsonLines("origin", "distance")),
        ...     WatermarkStrategy.for_bounded_out_of_orderness("15m"),
        ... )
        >>> source.embedded
        False
    """

    connector: Connector
    strategy: WatermarkStrategy
    settings: ReadSettings = field(default_factory=ReadSettings)
    embedded: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        if self.embedded and (self.connector.follows or self.settings.replay_speed is not None):
            msg = "embedded reads a finite input at full speed; follow and replay_speed need Prism"
            raise ValueError(msg)

    def expand(self, pbegin: PBegin) -> ReadEventsResult:
        """Binds the input's head, then reads it by the means of the engine."""
        self.connector.initial_positions()
        group = Group.bind(self.connector, self.strategy, self.settings)
        if self.embedded:
            _refuse_second_stream(pbegin)
            name = uuid.uuid4().hex
            weakref.finalize(self, _replays.pop, name, None)  # with the pipeline that holds us
            polls = pbegin | "ReplayPolls" >> _replay(group.open(), name)
            outputs = polls | "EmitPolls" >> beam.ParDo(_EmitReplay(name)).with_outputs(
                INVALID_TAG, main="events"
            )
        else:
            _refuse_direct_runner(pbegin)
            start = pbegin | "Group" >> beam.Impulse()
            outputs = start | "ReadGroup" >> beam.ParDo(_ReadGroup(group)).with_outputs(
                INVALID_TAG, main="events"
            )
        events, invalid = outputs.events, outputs[INVALID_TAG]
        events.element_type = EventBatch
        invalid.element_type = InvalidRecord
        return ReadEventsResult(events, invalid)


def _refuse_direct_runner(pbegin: PBegin) -> None:
    """Refuses the Python DirectRunner, which cannot run a splittable DoFn without end."""
    if isinstance(pbegin.pipeline.runner, BundleBasedDirectRunner):
        msg = (
            "Beam's BundleBasedDirectRunner cannot run ReadEvents as it is; give it embedded=True "
            "(a finite input, held in memory), or run on Prism (--runner=PrismRunner)"
        )
        raise ValueError(msg)


def _refuse_second_stream(pbegin: PBegin) -> None:
    """Refuses a pipeline that has a `TestStream`: the DirectRunner mixes up the events of two."""

    class _Find(PipelineVisitor):
        found = False

        def visit_transform(self, transform_node: AppliedPTransform) -> None:
            self.found = self.found or isinstance(transform_node.transform, TestStream)

    visitor = _Find()
    pbegin.pipeline.visit(visitor)
    if visitor.found:
        msg = (
            "embedded=True may stand once in a pipeline, and beside no TestStream; read several "
            "inputs by one ReadEvents, or on Prism"
        )
        raise ValueError(msg)


@dataclass(frozen=True)
class _Restriction:
    """The positions of a group: an object, since Beam takes an empty one for no work left.

    Args:
        positions: Where every split stands.
        closing: How many calls there were since all was read.
    """

    positions: Positions
    closing: int = 0

    @property
    def all_read(self) -> bool:
        """Whether there are splits, and all of them have been read."""
        return bool(self.positions) and all(p.done for p in self.positions.values())


class _RestrictionCoder(Coder):
    """Encodes the positions of a group as JSON."""

    def encode(self, value: _Restriction) -> bytes:
        return json.dumps([value.positions, value.closing]).encode()

    def decode(self, encoded: bytes) -> _Restriction:
        positions, closing = json.loads(encoded)
        return _Restriction(
            {name: SplitPosition(*fields) for name, fields in positions.items()}, closing
        )

    def is_deterministic(self) -> bool:
        return True


class _PositionsTracker(RestrictionTracker):
    """Tracks how far a group has been read.

    It is split at a checkpoint only, never for speed, since a group is read in one order.
    """

    def __init__(self, restriction: _Restriction) -> None:
        self._positions = restriction.positions
        self._closing = restriction.closing
        self._claimed = False
        self._split = False

    def current_restriction(self) -> _Restriction:
        return _Restriction(self._positions, self._closing)

    def try_claim(self, position: Positions) -> bool:
        """Claims everything up to the positions after a poll."""
        if self._split:
            return False
        self._positions, self._claimed = position, True
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[_Restriction, _Restriction] | None:
        if fraction_of_remainder != 0 or self._split:
            return None
        self._split = True
        residual = _Restriction(self._positions, self._closing)
        if residual.all_read:
            residual = _Restriction(self._positions, self._closing + 1)
        self._positions = {
            name: position._replace(end=position.offset, done=True)
            for name, position in residual.positions.items()
        }
        return _Restriction(self._positions), residual

    def check_done(self) -> bool:
        if self._split or (self._claimed and all(p.done for p in self._positions.values())):
            return True
        left = [name for name, position in self._positions.items() if not position.done]
        msg = f"splits left unread: {', '.join(left)}"
        raise ValueError(msg)

    def current_progress(self) -> RestrictionProgress:
        # As a fraction: completed/remaining of an empty restriction make some engines divide 0/0.
        positions = self._positions.values()
        if any(position.end is None for position in positions):
            return RestrictionProgress(fraction=0.0)
        done = sum(position.offset for position in positions)
        total = sum(max(p.end or 0, p.offset) for p in positions)
        return RestrictionProgress(fraction=done / total if total else 0.0)

    def is_bounded(self) -> bool:
        return False


class _ReadGroup(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """Reads a group of splits, a poll a call.

    Args:
        group: The input.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._reader: GroupReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def initial_restriction(self, element: bytes) -> _Restriction:
        return _Restriction(self._group.connector.initial_positions())

    def create_tracker(self, restriction: _Restriction) -> _PositionsTracker:
        return _PositionsTracker(restriction)

    def restriction_size(self, element: bytes, restriction: _Restriction) -> float:
        positions = restriction.positions.values()
        return float(sum(max((p.end or p.offset) - p.offset, 0) for p in positions))

    def split(self, element: bytes, restriction: _Restriction) -> Iterator[_Restriction]:
        yield restriction

    def truncate(self, element: bytes, restriction: _Restriction) -> None:
        """Reads no more once the pipeline drains."""

    def restriction_coder(self) -> Coder:
        return _RestrictionCoder()

    def initial_estimator_state(self, element: bytes, restriction: _Restriction) -> GroupState:
        return GroupState()

    def create_watermark_estimator(self, estimator_state: GroupState) -> GroupWatermarkEstimator:
        return GroupWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        return GroupStateCoder()

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
            self._close()
            if tracker.try_claim(positions) and restriction.closing < _CLOSING_CALLS:
                tracker.defer_remainder()
            return
        reader = self._reader_at(positions, estimator.get_estimator_state())
        poll = reader.poll()
        if not tracker.try_claim(poll.positions):
            self._close()
            return
        yield from emit(poll)
        estimator.advance(poll.state)
        tracker.defer_remainder(BeamDuration.of(poll.wait_s))

    def teardown(self) -> None:
        self._close()

    def _reader_at(self, positions: Positions, state: GroupState) -> GroupReader:
        """The reader of the last call if it stands there (it holds parsed blocks), or a new one."""
        reader = self._reader
        if reader is None or reader.positions != positions or reader.state != state:
            self._close()
            reader = self._reader = self._group.open(positions, state)
        return reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


_replays: dict[str, list[Poll]] = {}
"""The polls of embedded runs. The pipeline's elements only name them: they never leave the process,
and Beam would pickle and compress them into the pipeline several times over."""


def _replay(reader: GroupReader, name: str) -> TestStream:
    """Reads the whole input now; gives its polls, by number, and its watermarks as a stream."""
    stream = TestStream(coder=VarIntCoder())
    polls = _replays[name] = []
    reported_ms = exclusive(NO_WATERMARK_MS)
    while not polls or not polls[-1].finished:
        poll = reader.poll()
        earliest = min((int(b.event_times.min()) for b in poll.batches), default=reported_ms)
        stream = stream.add_elements([TimestampedValue(len(polls), to_timestamp(earliest))])
        polls.append(poll)
        watermark_ms = to_ms(GroupWatermarkEstimator(poll.state).current_watermark())
        if watermark_ms > reported_ms and not poll.finished:
            stream = stream.advance_watermark_to(to_timestamp(watermark_ms))
            reported_ms = watermark_ms
    reader.close()
    return stream.advance_watermark_to_infinity()


class _EmitReplay(beam.DoFn):
    """Emits the polls of an embedded run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def process(self, element: int) -> Iterable[Any]:
        yield from emit(_replays[self._name][element])

"""`ReadEvents`: the one source. A splittable DoFn over a group of splits, whatever the connector.

Beam's Python DirectRunner cannot run an unbounded splittable DoFn. There (`embedded`) the input is
read ahead, and a `TestStream` replays its polls and watermarks: finite inputs, held in memory.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints import typehints

from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.beam_time import to_ms, to_timestamp
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.results import InvalidRecord
from beam_lateness.transforms.sources.connector import AcknowledgingConnector, Connector
from beam_lateness.transforms.sources.deal import Deal, DealAndStay
from beam_lateness.transforms.sources.emit import INVALID_TAG, emit
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.read_by_timer import (
    KEPT_TAG,
    Acknowledge,
    ReadByTimer,
)
from beam_lateness.transforms.sources.read_group import ReadGroup
from beam_lateness.transforms.sources.read_messages import ReadKept, ReadStored
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.rhythm import Rhythm, is_flink, rhythm_of
from beam_lateness.transforms.sources.share import Share, shares
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import (
    GroupWatermarkEstimator,
    exclusive,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy


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
        commits: Of a live input, whose records are kept by a broker until they are acknowledged:
            acknowledge what the store of this job holds. Without it they are acknowledged when the
            engine has made them durable (bundle finalization), which Prism never does: what is in
            its memory is lost with it.
        num_readers: How many readers share the splits, for engines that run them in parallel and
            keep the minimum of their watermarks (Flink; Prism does not). Each stamps by its own
            splits' watermark: give `RouteTooLate(verdict="engine")` the last word.

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
    commits: CommitAfterStore | None = None
    num_readers: int = 1

    def __post_init__(self) -> None:
        super().__init__()
        if self.commits is not None and (
            self.embedded or not isinstance(self.connector, AcknowledgingConnector)
        ):
            msg = (
                "commits is for inputs whose records are acknowledged (Kafka, PubSub); leave it out"
            )
            raise ValueError(msg)
        if self.num_readers != 1:
            self._check_readers()
        if self.embedded and (self.connector.follows or self.settings.replay_speed is not None):
            msg = "embedded reads a finite input at full speed; follow and replay_speed need Prism"
            raise ValueError(msg)

    def _check_readers(self) -> None:
        if self.num_readers < 1:
            msg = f"num_readers (--num_readers) must be at least 1, got {self.num_readers}"
            raise ValueError(msg)
        if self.embedded or self.commits is not None:
            msg = (
                f"num_readers (--num_readers) is for engines that run readers in parallel, such as "
                f"Flink, got {self.num_readers}; here it must be 1"
            )
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
            runner, live = pbegin.pipeline.runner, self.connector.follows
            rhythm = rhythm_of(runner, live, self.settings.poll_interval)
            by_timer = is_flink(runner) and live
            reading = _reading(group, self.commits, rhythm, holds=by_timer)
            start = pbegin | "Group" >> beam.Impulse()
            if by_timer:
                self._refuse_commits()
                outputs = self._read_by_timer(start, reading)
            else:
                if self.num_readers > 1:
                    _refuse_readers(runner)
                    start = start | "Deal" >> beam.ParDo(Deal(self._dealt()))
                    start = start | "Spread" >> beam.Reshuffle()
                outputs = start | "ReadGroup" >> beam.ParDo(reading).with_outputs(
                    INVALID_TAG, main="events"
                )
        events, invalid = outputs.events, outputs[INVALID_TAG]
        events.element_type = EventBatch
        invalid.element_type = InvalidRecord
        return ReadEventsResult(events, invalid)

    def _refuse_commits(self) -> None:
        if self.commits is not None:
            msg = (
                "commits is for engines that keep nothing: it counts in the process that reads, "
                "and on Flink others write. Leave it out: Flink's checkpoints keep what was read"
            )
            raise ValueError(msg)

    def _dealt(self) -> list[Share]:
        return shares(list(self.connector.initial_positions()), self.num_readers)

    def _read_by_timer(self, start: PCollection[bytes], reading: ReadGroup) -> Any:
        readers = start | "Deal" >> beam.ParDo(DealAndStay(self._dealt()))
        readers.element_type = typehints.Tuple[int, bytes]
        outputs = readers | "ReadByTimer" >> beam.ParDo(ReadByTimer(reading)).with_outputs(
            INVALID_TAG, KEPT_TAG, main="events"
        )
        kept = outputs[KEPT_TAG]
        kept.element_type = typehints.Tuple[str, int]
        _ = kept | "Acknowledge" >> beam.ParDo(Acknowledge())  # type: ignore[no-untyped-call]
        return outputs


def _refuse_readers(runner: Any) -> None:
    if not is_flink(runner):
        msg = (
            "num_readers (--num_readers) must be 1 on this engine, which does not keep the "
            "minimum of several readers' watermarks: records would be lost. Run on Flink"
        )
        raise ValueError(msg)


def _reading(
    group: Group, commits: CommitAfterStore | None, rhythm: Rhythm, *, holds: bool
) -> ReadGroup:
    if not isinstance(group.connector, AcknowledgingConnector):
        return ReadGroup(group, rhythm)
    if commits is None:
        return ReadKept(group, rhythm, holds=holds)
    commits.check(group.connector.source_id)
    return ReadStored(group, commits, rhythm)


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

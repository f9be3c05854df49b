"""Reads a group of splits by a timer that sets itself again: the source on Flink.

A splittable DoFn works there too, but with Beam's Flink runner (2.62) each call that defers its
rest leaves something in the state: 6.6 KB a call were measured, 0.5 GB a day at a call a second. It
also cuts delays to whole seconds. A stateful DoFn has one state and one timer for ever, with delays
in ms. It is no way to read a finite input: what deals the shares must stay for as long as the
timers live (see `DealAndStay`), and the job would have no end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from beam_lateness.transforms.sources.emit import emit
from beam_lateness.transforms.sources.held import decode, encode, holds_records
from beam_lateness.transforms.sources.read_group import ReadGroup
from beam_lateness.transforms.sources.restriction import Restriction, RestrictionCoder
from beam_lateness.transforms.sources.sessions import finalizer_of
from beam_lateness.transforms.watermarks.estimator import (
    GroupState,
    GroupStateCoder,
    GroupWatermarkEstimator,
)

KEPT_TAG: Final = "kept"

_RESTRICTIONS: Final = RestrictionCoder()
_WATERMARKS: Final = GroupStateCoder()


class ReadByTimer(beam.DoFn):
    """Reads shares of a group, a few polls each time its timer fires.

    Watermark: the timer's hold, which is the group's exclusive watermark after the last poll that
    was given away; with no timer set, at the end of a finite input, it goes to the end of time.

    Args:
        reading: What reads; its restrictions and watermark states are what this keeps.
    """

    SHARE = ReadModifyWriteStateSpec("share", BytesCoder())
    RESTRICTION = ReadModifyWriteStateSpec("restriction", BytesCoder())
    WATERMARK = ReadModifyWriteStateSpec("watermark", BytesCoder())
    HELD = BagStateSpec("held", BytesCoder())
    NEXT = TimerSpec("next", TimeDomain.REAL_TIME)

    def __init__(self, reading: ReadGroup) -> None:
        self._reading = reading

    def process(
        self,
        element: tuple[int, bytes],
        share: Any = beam.DoFn.StateParam(SHARE),
        restriction: Any = beam.DoFn.StateParam(RESTRICTION),
        watermark: Any = beam.DoFn.StateParam(WATERMARK),
        timer: Any = beam.DoFn.TimerParam(NEXT),
    ) -> None:
        share.write(element[1])
        restriction.write(_RESTRICTIONS.encode(self._reading.initial_restriction(element[1])))
        watermark.write(_WATERMARKS.encode(GroupState()))
        _set(timer, 0.0, MIN_TIMESTAMP)

    @on_timer(NEXT)
    def read(
        self,
        share: Any = beam.DoFn.StateParam(SHARE),
        restriction: Any = beam.DoFn.StateParam(RESTRICTION),
        watermark: Any = beam.DoFn.StateParam(WATERMARK),
        held: Any = beam.DoFn.StateParam(HELD),
        timer: Any = beam.DoFn.TimerParam(NEXT),
    ) -> Iterable[Any]:
        mine, at = share.read(), _RESTRICTIONS.decode(restriction.read())
        estimator = GroupWatermarkEstimator(_WATERMARKS.decode(watermark.read()))
        reader = self._reading.reader_for(mine, at, estimator.get_estimator_state())
        kept = self._reading.kept_by(reader)
        holding = None if kept is None else kept.held
        if holding is not None and holding.new:
            # A new session: the state is what a checkpoint has, and that has these.
            for encoded in held.read():
                yield from emit(decode(encoded))
            held.clear()
        delay_s = 0.0
        for poll in self._reading.rhythm.polls(reader):
            if holding is None:
                yield from emit(poll)
            elif holds_records(poll):
                held.add(encode(poll))
            estimator.advance(poll.state)
            at = Restriction(poll.positions)
            delay_s = self._reading.rhythm.delay_s(poll)
        reached = estimator.get_estimator_state()
        if kept is not None:
            at = Restriction(
                at.positions, unacknowledged=kept.unacknowledged(), poll=kept.last_poll
            )
            yield TaggedOutput(KEPT_TAG, kept.name_poll())
        restriction.write(_RESTRICTIONS.encode(at))
        watermark.write(_WATERMARKS.encode(reached))
        if holding is not None:
            released = holding.release()
            for poll in released:
                yield from emit(poll)
            if any(map(holds_records, released)):
                held.clear()
                for encoded in holding.encoded():
                    held.add(encoded)
            reached = holding.state
        if at.all_read:
            self._reading.close(mine)
        else:
            _set(timer, delay_s, GroupWatermarkEstimator(reached).current_watermark())

    def teardown(self) -> None:
        self._reading.teardown()


def _set(timer: Any, delay_s: float, hold: Timestamp) -> None:
    """Sets a timer that holds the watermark until it fires.

    Beam's protocol has both times; its Python SDK (2.77) takes the hold of a processing-time timer
    from the moment of the call, and has no argument for it.
    """
    timer._input_timestamp = hold
    timer.set(time.time() + delay_s)


class Acknowledge(beam.DoFn):
    """Lets the engine tell a session when it has kept a poll: timers have no finalizers of bundles.

    It runs in the process of the session, since it is fused with what reads.
    """

    def process(
        self, element: tuple[str, int], finalizer: Any = beam.DoFn.BundleFinalizerParam
    ) -> None:
        finalizer.register(finalizer_of(*element))

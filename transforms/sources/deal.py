"""Deals an input to its readers, on engines that run several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apache_beam as beam
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.restriction import Restriction, Unbounded
from beam_lateness.transforms.sources.share import Share
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS
from beam_lateness.transforms.watermarks.estimator import GroupState

_SHARES: Final = "shares"  # they are what it reads, in place of splits
_STAY_S: Final = 3600.0


class Deal(beam.DoFn):
    """Gives each reader of a finite input its share."""

    def __init__(self, dealt: Sequence[Share]) -> None:
        self._dealt = dealt

    def process(self, element: bytes) -> Iterable[bytes]:
        for share in self._dealt:
            yield share.encode()


class DealAndStay(Unbounded):
    """Gives each reader its share, under the reader's number, and stays for ever.

    Watermark: after any event time, and short of the end of time: there the readers' state, and
    their timers with it, would be gone.
    """

    def __init__(self, dealt: Sequence[Share]) -> None:
        self._dealt = dealt

    def initial_restriction(self, element: bytes) -> Restriction:
        return Restriction({_SHARES: SplitPosition()})

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[tuple[int, bytes]]:
        dealt = tracker.current_restriction().all_read
        if not tracker.try_claim(Restriction({_SHARES: SplitPosition(done=True)})):
            return
        if not dealt:
            for share in self._dealt:
                yield share.index, share.encode()
        estimator.advance(GroupState(MAX_EVENT_TIME_MS))
        tracker.defer_remainder(BeamDuration.of(_STAY_S))

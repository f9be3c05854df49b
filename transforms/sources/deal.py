"""Deals an input to its readers, on engines that run several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms.sources.share import Share
from beam_lateness.transforms.sources.unbounded import Unbounded
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS
from beam_lateness.transforms.watermarks.estimator import GroupState

_STAY_S: Final = 3600.0


class Deal(beam.DoFn):
    """Gives each reader of a finite input its share."""

    def __init__(self, dealt: Sequence[Share]) -> None:
        self._dealt = dealt

    def process(self, element: bytes) -> Iterable[bytes]:
        for share in self._dealt:
            yield share.encode()


@dataclass(frozen=True)
class Dealt:
    """Whether the shares were given out (an object: Beam takes what is falsy for no work left)."""

    done: bool


class _DealtTracker(RestrictionTracker):
    """Tracks that; there is always a rest, which never comes to anything."""

    def __init__(self, dealt: Dealt) -> None:
        self._dealt = dealt
        self._split = False

    def current_restriction(self) -> Dealt:
        return self._dealt

    def try_claim(self, position: Dealt) -> bool:
        if self._split:
            return False
        self._dealt = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Dealt, Dealt] | None:
        if fraction_of_remainder != 0 or self._split:
            return None
        self._split = True
        return self._dealt, self._dealt

    def check_done(self) -> bool:
        return True

    def current_progress(self) -> RestrictionProgress:
        return RestrictionProgress(fraction=0.0)

    def is_bounded(self) -> bool:
        return False


class _DealtCoder(Coder):
    """Encodes it as one byte."""

    def encode(self, value: Dealt) -> bytes:
        return bytes([value.done])

    def decode(self, encoded: bytes) -> Dealt:
        return Dealt(bool(encoded[0]))

    def is_deterministic(self) -> bool:
        return True


class DealAndStay(Unbounded):
    """Gives each reader its share, under the reader's number, and stays for ever.

    Watermark: after any event time, and short of the end of time: there the readers' state, and
    their timers with it, would be gone.
    """

    def __init__(self, dealt: Sequence[Share]) -> None:
        self._dealt = dealt

    def initial_restriction(self, element: bytes) -> Dealt:
        return Dealt(False)

    def create_tracker(self, restriction: Dealt) -> _DealtTracker:
        return _DealtTracker(restriction)

    def restriction_size(self, element: bytes, restriction: Dealt) -> float:
        return 1.0

    def restriction_coder(self) -> Coder:
        return _DealtCoder()

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[tuple[int, bytes]]:
        done = tracker.current_restriction().done
        if not tracker.try_claim(Dealt(True)):
            return
        if not done:
            for share in self._dealt:
                yield share.index, share.encode()
        estimator.advance(GroupState(MAX_EVENT_TIME_MS))
        tracker.defer_remainder(BeamDuration.of(_STAY_S))

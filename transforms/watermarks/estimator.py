"""The adapter between our inclusive watermarks and Beam's: the one place of the + 1 ms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from apache_beam.coders import Coder
from apache_beam.io.iobase import WatermarkEstimator
from apache_beam.utils.timestamp import Timestamp

from beam_lateness.transforms.beam_time import to_timestamp
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, NO_WATERMARK_MS

_Ms = TypeVar("_Ms", int, npt.NDArray[np.int64])


def exclusive(watermark_ms: _Ms) -> _Ms:
    """Turns inclusive watermarks (`T`) into exclusive ones as Beam means them (`w = T + 1 ms`)."""
    return watermark_ms + 1


def inclusive(watermark_ms: int) -> int:
    """Turns an exclusive watermark into the inclusive one."""
    return watermark_ms - 1


class SplitState(NamedTuple):
    """What a checkpoint holds of one split's watermark.

    Args:
        generator: The generator's state, as JSON values.
        quiet_since_ms: When a poll first found nothing there, by the wall clock.
        idle: Whether it is idle.
    """

    generator: Any = None
    quiet_since_ms: int | None = None
    idle: bool = False


@dataclass(frozen=True)
class GroupState:
    """What a checkpoint holds of a group's watermark, in whole ms.

    Args:
        watermark_ms: The group's inclusive watermark.
        splits: The state of each split; of merged splits one, under the name "".
        ticked_ms: When the generators' last tick was, by the wall clock.
    """

    watermark_ms: int = NO_WATERMARK_MS
    splits: Mapping[str, SplitState] = field(default_factory=dict)
    ticked_ms: int | None = None


class GroupStateCoder(Coder):
    """Encodes a `GroupState` as JSON: small, exact, readable in a checkpoint."""

    def encode(self, value: GroupState) -> bytes:
        """Encodes the state."""
        return json.dumps([value.watermark_ms, dict(value.splits), value.ticked_ms]).encode()

    def decode(self, encoded: bytes) -> GroupState:
        """Decodes the state."""
        watermark_ms, splits, ticked_ms = json.loads(encoded)
        states = {name: SplitState(*state) for name, state in splits.items()}
        return GroupState(watermark_ms, states, ticked_ms)

    def is_deterministic(self) -> bool:
        """Splits keep their order, so equal states give equal bytes."""
        return True


class GroupWatermarkEstimator(WatermarkEstimator):
    """Reports a group's watermark to Beam.

    Watermark: it is the group's `w = T + 1 ms`; it never goes back, and never reaches Beam's
    maximum while the source lives (that would close every window for good).
    """

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def advance(self, state: GroupState) -> None:
        """Takes the state after a poll; a lower watermark than before has no effect."""
        watermark_ms = max(self._state.watermark_ms, min(state.watermark_ms, MAX_EVENT_TIME_MS))
        self._state = replace(state, watermark_ms=watermark_ms)

    def current_watermark(self) -> Timestamp:
        """The exclusive watermark as Beam means it."""
        return to_timestamp(exclusive(self._state.watermark_ms))

    def get_estimator_state(self) -> GroupState:
        """The state for a checkpoint."""
        return self._state

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Ignores output timestamps: the generators have seen each record already."""

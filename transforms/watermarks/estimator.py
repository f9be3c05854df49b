"""The adapter between our inclusive watermarks and Beam's: the one place of the + 1 ms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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


@dataclass(frozen=True)
class GroupState:
    """What a checkpoint holds of a group's watermark, in whole ms.

    Args:
        watermark_ms: The group's inclusive watermark.
        splits: The generator state of each split.
    """

    watermark_ms: int = NO_WATERMARK_MS
    splits: Mapping[str, int | None] = field(default_factory=dict)


class GroupStateCoder(Coder):
    """Encodes a `GroupState` as JSON: small, exact, readable in a checkpoint."""

    def encode(self, value: GroupState) -> bytes:
        """Encodes the state."""
        return json.dumps([value.watermark_ms, dict(value.splits)]).encode()

    def decode(self, encoded: bytes) -> GroupState:
        """Decodes the state."""
        watermark_ms, splits = json.loads(encoded)
        return GroupState(watermark_ms, splits)

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
        self._state = GroupState(watermark_ms, state.splits)

    def current_watermark(self) -> Timestamp:
        """The exclusive watermark as Beam means it."""
        return to_timestamp(exclusive(self._state.watermark_ms))

    def get_estimator_state(self) -> GroupState:
        """The state for a checkpoint."""
        return self._state

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Ignores output timestamps: the generators have seen each record already."""

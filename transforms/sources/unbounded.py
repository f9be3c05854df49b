"""What the splittable DoFns of the source have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import Coder
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider

from beam_lateness.transforms.watermarks.estimator import (
    GroupState,
    GroupStateCoder,
    GroupWatermarkEstimator,
)


class Unbounded(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):
    """A splittable DoFn that is read in one order, and whose watermark is that of a group."""

    def split(self, element: bytes, restriction: Any) -> Iterator[Any]:
        yield restriction

    def truncate(self, element: bytes, restriction: Any) -> None:
        """Reads no more once the pipeline drains."""

    def initial_estimator_state(self, element: bytes, restriction: Any) -> GroupState:
        return GroupState()

    def create_watermark_estimator(self, estimator_state: GroupState) -> GroupWatermarkEstimator:
        return GroupWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        return GroupStateCoder()

"""`WindowWithLateness`: Beam's own windowing for a user's GroupByKey, losing nothing silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.trigger import (
    AccumulationMode,
    AfterCount,
    AfterWatermark,
    DataLossReason,
    TriggerFn,
)
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Duration as BeamDuration
from apache_beam.utils.timestamp import Timestamp

from beam_lateness.transforms.lateness.windows import Windows


def fixed_windows(windows: Windows) -> FixedWindows:
    """Gives the windows as Beam's `FixedWindows`."""
    size = BeamDuration(micros=windows.size_ms * 1000)
    return FixedWindows(size, Timestamp(micros=windows.offset_ms * 1000))


@dataclass(eq=False)
class WindowWithLateness(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """Windows a collection for the user's own `GroupByKey` or `Combine`: late records re-fire.

    Put it behind `RouteTooLate`, so that what Beam would drop has been taken out before. Default
    trigger: the watermark, then each late record. On Prism, accumulating late panes come merged,
    and only when the window expires (`AggregateWindows` has neither limit).

    Watermark: leaves it as it is.

    Args:
        windows: The windows and their allowed lateness.
        trigger: Another trigger; None for the default.
        accumulation_mode: `AccumulationMode.ACCUMULATING` (each pane is the whole result) or
            `DISCARDING` (each pane is what is new).

    Raises:
        ValueError: If the trigger may finish before the window is over, and lose what comes then.

    Example:
        >>> WindowWithLateness(Windows("1m", allowed_lateness="2m")).trigger is None
        True
    """

    windows: Windows
    trigger: TriggerFn | None = None
    accumulation_mode: Any = AccumulationMode.ACCUMULATING

    def __post_init__(self) -> None:
        super().__init__()
        late = AfterCount(1) if self.windows.allowed_lateness_ms else None
        trigger = self.trigger or AfterWatermark(late=late)
        self._into = dict[str, Any](
            windowfn=fixed_windows(self.windows),
            trigger=trigger,
            accumulation_mode=self.accumulation_mode,
            allowed_lateness=BeamDuration(micros=self.windows.allowed_lateness_ms * 1000),
        )
        loss = trigger.may_lose_data(
            Windowing(
                self._into["windowfn"],
                trigger,
                self.accumulation_mode,
                allowed_lateness=self._into["allowed_lateness"],
            )
        )
        if loss != DataLossReason.NO_POTENTIAL_LOSS:
            msg = (
                f"trigger must not finish before its window is over, got {trigger!r}, which would "
                "drop what comes after it fired; wrap it in Repeatedly(...), or give "
                "AfterWatermark(late=...) a late trigger"
            )
            raise ValueError(msg)

    def expand(self, pcoll: PCollection[Any]) -> PCollection[Any]:
        """Applies the windowing."""
        return pcoll | "WindowInto" >> beam.WindowInto(**self._into)

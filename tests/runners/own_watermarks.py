"""Watermark generators as a user would write them, named to a job by `--watermark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beam_lateness import WatermarkGenerator, WatermarkOutput


class EndOfBatch(WatermarkGenerator):
    """A record of type `end` completes everything up to and with its event time."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits at once."""
        if record.get("type") == "end":
            output.emit_watermark(event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing."""


class ByClock(WatermarkGenerator):
    """Everything up to now has come: processing time."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Follows the clock."""
        output.emit_watermark(int(self.clock() * 1000) - 1)

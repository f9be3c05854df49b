"""The self-adjusting bound: it follows the lateness that it measures.

How it decides, all of it by the records alone, so that verdicts are the same in every run:

- The lateness of a record is how far it is behind the largest event time before it.
- A sliding period of event time is cut into eighths. Each has a sketch (DataSketches' t-digest,
  which draws no random numbers), and is measured by the target quantile of its lateness. An eighth
  with too few records for that quantile to mean anything (fewer than leave one out: 100 for P99)
  goes on for another eighth.
- The target is the highest measure in the period. A quantile of a whole is never above the highest
  of its parts, so the bound covers at least the target quantile of the whole period.
- It is compared every 256 records and at each end of an eighth. A higher target is taken at once;
  a lower one is approached by a tenth of the bound for each eighth that went by.
- Until the first eighth has been measured, the bound is the ceiling: nothing is known yet, and
  waiting loses nothing.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import datasketches
import numpy as np

from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, NO_WATERMARK_MS, Flags, Millis
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    BoundChange,
    WatermarkOutput,
)

_PARTS: Final = 8
_CHECK_RECORDS: Final = 256
_NARROWED_TO_NOTHING: Final = 300  # tenths taken off leave nothing of 200 years in ms
_SKETCH_SIZE: Final = 100  # t-digest's compression: about 2 kB, and 2% of error at P99


@dataclass(frozen=True)
class AdjustingBound:
    """How a bound adjusts itself.

    Args:
        floor_ms: It is never below this.
        ceiling_ms: It is never above this.
        quantile: The share of records that it is to cover.
        period_ms: The sliding period of event time in which lateness is measured.
    """

    floor_ms: int
    ceiling_ms: int
    quantile: float
    period_ms: int

    @property
    def evidence(self) -> int:
        """How many records a measure needs: the quantile must leave one of them out."""
        return math.ceil(round(1 / (1 - self.quantile), 6))  # 0.99 is no binary fraction

    @property
    def part_ms(self) -> int:
        """An eighth of the period, in ms."""
        return max(self.period_ms // _PARTS, 1)

    def narrow(self, bound_ms: int, passed_ms: int) -> int:
        """Takes a tenth off a bound for each eighth of the period that has passed."""
        for _ in range(min(passed_ms // self.part_ms, _NARROWED_TO_NOTHING)):
            bound_ms = bound_ms * 9 // 10
        return bound_ms

    def clamp(self, bound_ms: int) -> int:
        """Keeps a bound within floor and ceiling."""
        return min(max(bound_ms, self.floor_ms), self.ceiling_ms)


class SelfAdjustingGenerator(BlockGenerator):
    """`T = largest event time so far - the bound at that record - 1 ms`, never going back.

    Args:
        config: How the bound adjusts itself.
        state: The `state` of an earlier one, to go on from it.
    """

    def __init__(self, config: AdjustingBound, state: Any = None) -> None:
        self._config = config
        self._largest: int | None = None
        self._watermark_ms = NO_WATERMARK_MS
        self._bound_ms = config.ceiling_ms
        self._measured = False
        self._part_end_ms = 0
        self._measures: list[tuple[int, int]] = []  # when a part ended, and its measure
        self._sketch = datasketches.tdigest_double(_SKETCH_SIZE)
        self._pending: list[Millis] = []  # lateness that is not in the sketch yet
        self._waiting = 0  # how many that are
        self._changes: list[BoundChange] = []
        if state is not None:
            self._restore(state)

    @property
    def state(self) -> Any:
        """Everything but the changes that were not taken yet; None before the first record."""
        if self._largest is None:
            return None
        sketch = base64.b64encode(self._sketch.serialize()).decode()
        return [
            self._largest,
            self._watermark_ms,
            self._bound_ms,
            self._measured,
            self._part_end_ms,
            [list(each) for each in self._measures],
            "" if self._sketch.is_empty() else sketch,
            [ms for part in self._pending for ms in part.tolist()],
        ]

    def _restore(self, state: Any) -> None:
        (
            self._largest,
            self._watermark_ms,
            self._bound_ms,
            self._measured,
            self._part_end_ms,
            measures,
            sketch,
            pending,
        ) = state
        self._measures = [(ended_ms, measure) for ended_ms, measure in measures]
        if sketch:
            self._sketch = datasketches.tdigest_double.deserialize(base64.b64decode(sketch))
        if pending:
            self._pending, self._waiting = [np.array(pending, dtype=np.int64)], len(pending)

    @property
    def watermark_ms(self) -> int:
        """The highest watermark so far, in ms."""
        return self._watermark_ms

    @property
    def bound_ms(self) -> int:
        """The bound now, in ms."""
        return self._bound_ms

    def take_changes(self) -> list[BoundChange]:
        """Gives the changes of the bound since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Measures one record."""
        self._see(np.array([event_time_ms], dtype=np.int64))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits the watermark, once there was a record."""
        if self._largest is not None:
            output.emit_watermark(self._watermark_ms)

    def on_events(
        self,
        event_times_ms: Millis,
        markers: Flags,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> Millis:
        """Gives the watermark after each record, as if emitted after each."""
        return self._see(event_times_ms) if len(event_times_ms) else event_times_ms

    def _see(self, event_times_ms: Millis) -> Millis:
        running = np.maximum.accumulate(event_times_ms)
        if self._largest is None:
            self._largest = int(event_times_ms[0])
            self._part_end_ms = self._next_end(self._largest)
        np.maximum(running, self._largest, out=running)
        before = np.append(self._largest, running[:-1])
        lateness = np.maximum(before - event_times_ms, 0)
        after = np.empty_like(running)
        low = 0
        while low < len(running):
            high = min(low + _CHECK_RECORDS - self._waiting, len(running))
            ends = int(np.searchsorted(running[low:high], self._part_end_ms))
            high = min(high, low + ends + 1)  # with the record that ends the part
            self._pending.append(lateness[low:high])
            self._waiting += high - low
            self._largest = int(running[high - 1])
            np.maximum(
                running[low:high] - (self._bound_ms + 1), self._watermark_ms, out=after[low:high]
            )
            if self._largest >= self._part_end_ms:
                self._end_part(self._largest)
            elif self._waiting == _CHECK_RECORDS:
                self._widen(self._largest, self._measure())
            # A narrower bound shows with the record that brought it.
            self._watermark_ms = max(int(after[high - 1]), self._largest - self._bound_ms - 1)
            after[high - 1] = self._watermark_ms
            low = high
        return after

    def _next_end(self, event_time_ms: int) -> int:
        return min(event_time_ms + self._config.part_ms, MAX_EVENT_TIME_MS + 1)

    def _measure(self) -> int | None:
        """Measures the part so far, in ms; None while it has too few records."""
        self._sketch.update(np.concatenate(self._pending).astype(np.float64))
        self._pending, self._waiting = [], 0
        measure = self._sketch.get_quantile(self._config.quantile)  # compresses: here only
        if self._sketch.get_total_weight() < self._config.evidence:
            return None
        return math.ceil(measure)

    def _widen(self, at_ms: int, measure: int | None) -> None:
        if self._measured and measure is not None:
            self._change(at_ms, max(self._bound_ms, self._config.clamp(measure)))

    def _end_part(self, at_ms: int) -> None:
        """Ends a part with the record that reaches its end; it goes on if that is too early."""
        self._part_end_ms = self._next_end(at_ms)
        measure = self._measure()
        if measure is None:
            return
        passed_ms = at_ms - self._measures[-1][0] if self._measures else 0
        since_ms = at_ms - self._config.period_ms
        kept = [each for each in self._measures if each[0] > since_ms]
        self._measures = [*kept, (at_ms, measure)]
        self._sketch = datasketches.tdigest_double(_SKETCH_SIZE)
        target = self._config.clamp(max(measure for _, measure in self._measures))
        narrowed = self._config.narrow(self._bound_ms, passed_ms) if self._measured else target
        self._measured = True
        self._change(at_ms, max(target, narrowed))

    def _change(self, at_ms: int, bound_ms: int) -> None:
        if bound_ms != self._bound_ms:
            self._changes.append(BoundChange(at_ms, self._bound_ms, bound_ms))
            self._bound_ms = bound_ms

"""What a watermark costs: each strategy by blocks, and record by record, in one run.

    python benchmarks/generators.py

CPU per record of stamping one split's records, the least of several repeats, and how many times
dearer the same strategy is record by record (the two callbacks after each record).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from beam_lateness import WatermarkGenerator, WatermarkStrategy
from beam_lateness.transforms.times import Millis
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    HighestWatermark,
    WatermarkOutput,
)

RECORDS: Final = 1_000_000
ONE_BY_ONE: Final = 50_000
BLOCK: Final = 60_000  # about what a block of 8 MB holds of payments
REPEATS: Final = 5


@dataclass
class Largest:
    """The state of `HandWritten`."""

    event_time_ms: int = 0


class HandWritten(WatermarkGenerator):
    """The bounded strategy as a user would write it."""

    def __init__(self) -> None:
        self.state = Largest()

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers the largest."""
        if event_time_ms > self.state.event_time_ms:
            self.state.event_time_ms = event_time_ms

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits."""
        output.emit_watermark(self.state.event_time_ms - 10_001)


STRATEGIES: Final = {
    "bounded": WatermarkStrategy.for_bounded_out_of_orderness("10s"),
    "punctuated": WatermarkStrategy.for_markers("marker"),
    "adjusting": WatermarkStrategy.for_self_adjusting_bound("1s", "2m"),
    "none": WatermarkStrategy.no_watermarks(),
    "module:object": WatermarkStrategy.for_generator(HandWritten),
}


def by_block(generator: BlockGenerator, times: Millis, markers: Any, records: Any) -> None:
    """Stamps a block after the other, as the source does."""
    for low in range(0, len(times), BLOCK):
        block = slice(low, low + BLOCK)
        generator.on_events(times[block], markers[block], records[block])


def by_record(generator: BlockGenerator, times: Millis, markers: Any, records: Any) -> None:
    """Stamps a record after the other."""
    output = HighestWatermark()
    for record, event_time_ms in zip(records, times.tolist(), strict=True):
        generator.on_event(record, event_time_ms, output)
        generator.on_periodic_emit(output)


def least_us(way: Callable[..., None], strategy: WatermarkStrategy, count: int) -> float:
    """The least CPU per record over the repeats, in µs."""
    rng = np.random.default_rng(1)
    times = (np.arange(count) * 5 + 10**12 - rng.exponential(2_000, count)).astype(np.int64)
    markers = np.arange(count) % 1_000 == 0
    records = [{"marker": bool(mark)} for mark in markers]
    spent = []
    for _ in range(REPEATS):
        generator = strategy.create_generator()
        began = time.process_time()
        way(generator, times, markers, records)
        spent.append(time.process_time() - began)
    return min(spent) / count * 1e6


def main() -> None:
    """Prints a table."""
    print(f"{'strategy':14}{'by block':>12}{'by record':>12}{'ratio':>8}")
    for name, strategy in STRATEGIES.items():
        block = least_us(by_block, strategy, RECORDS)
        record = least_us(by_record, strategy, ONE_BY_ONE)
        print(f"{name:14}{block:9.3f} us{record:9.3f} us{record / block:8.1f}")


if __name__ == "__main__":
    main()

"""The worked examples that concern one watermark (W4 to W7, W10; W12 is in test_adjusting)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import exclusive
from beam_lateness.transforms.watermarks.generators import BlockGenerator
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy

TEN_O_CLOCK = 1_700_042_400_000  # 2023-11-15 10:00:00 UTC


def clock(text: str) -> int:
    """`mm:ss[.mmm]` after ten o'clock, in ms."""
    minutes, seconds = text.split(":")
    return TEN_O_CLOCK + int(minutes) * 60_000 + round(float(seconds) * 1000)


def see(generator: BlockGenerator, times: Sequence[int], marker: bool = False) -> int:
    """Gives the inclusive watermark after the records."""
    flags = np.full(len(times), marker)
    generator.on_events(np.array(times, dtype=np.int64), flags)
    return generator.watermark_ms


def verdict(watermark_ms: int, event_time_ms: int, size_ms: int, lateness_ms: int) -> str:
    """What becomes of a record that arrives at an inclusive watermark."""
    end = event_time_ms - event_time_ms % size_ms + size_ms
    if exclusive(watermark_ms) >= end + lateness_ms:
        return "too late"
    return "late" if exclusive(watermark_ms) >= end else "on time"


@pytest.mark.parametrize(
    ("behind_s", "expected"), [(0, "late"), (4, "late"), (4.999, "late"), (5, "too late")]
)
def test_ten_and_five(behind_s: float, expected: str) -> None:
    """W4: bound 10 s, lateness 5 s: late up to 5 s past the window's end, too late from there."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10s")
    end = clock("01:00")
    largest = end + 10_000 + round(behind_s * 1000)  # puts w at the end + behind
    watermark_ms = see(strategy.create_generator(), [largest])
    assert verdict(watermark_ms, clock("00:59"), 60_000, 5_000) == expected


def test_nothing_fires_before_the_first_watermark() -> None:
    """W4: before the first record, the earliest of windows is open."""
    generator = WatermarkStrategy.for_bounded_out_of_orderness("10s").create_generator()
    assert generator.watermark_ms == NO_WATERMARK_MS
    assert verdict(generator.watermark_ms, -62_135_596_800_000, 60_000, 0) == "on time"


def test_off_by_one_millisecond_on_purpose() -> None:
    """W5: a record at largest - bound is not behind the watermark, one a millisecond before is."""
    largest = clock("05:00")
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(20).create_generator()
    watermark_ms = see(bounded, [largest])
    assert watermark_ms == largest - 20_000 - 1
    assert largest - 20_000 > watermark_ms
    assert largest - 20_001 <= watermark_ms
    monotonous = WatermarkStrategy.for_monotonous_timestamps().create_generator()
    assert see(monotonous, [largest]) == largest - 1
    assert verdict(monotonous.watermark_ms, largest, 1, 0) == "on time"


def test_end_of_batch_markers() -> None:
    """W6: the watermark is the marker's time exactly, and stands still in between."""
    generator = WatermarkStrategy.for_markers("END_BATCH").create_generator()
    assert see(generator, [clock("04:10"), clock("04:59"), clock("04:30")]) == NO_WATERMARK_MS
    assert see(generator, [clock("05:00")], marker=True) == clock("05:00")
    assert verdict(generator.watermark_ms, clock("04:30"), 60_000, 10**9) == "late"  # it fired
    assert see(generator, [clock("05:30"), clock("09:59")]) == clock("05:00")
    assert see(generator, [clock("10:00")], marker=True) == clock("10:00")


@pytest.mark.parametrize(
    ("bound", "watermark", "expected"),
    [("0s", "00:30.999", "too late"), ("5s", "00:25.999", "on time")],
)
def test_bound_zero_against_bound_five_seconds(bound: str, watermark: str, expected: str) -> None:
    """W7: the same record is dropped or on time, by the bound alone."""
    generator = WatermarkStrategy.for_bounded_out_of_orderness(bound).create_generator()
    assert see(generator, [clock("00:31")]) == clock(watermark)
    assert verdict(generator.watermark_ms, clock("00:30"), 1_000, 0) == expected


@pytest.mark.parametrize(
    ("bound", "largest", "watermark", "record", "expected"),
    [
        ("200ms", "05:00.500", "05:00.299", "04:59.800", "too late"),
        ("30s", "05:30.000", "04:59.999", "05:00.500", "on time"),
        ("2s", "05:00.500", "04:58.499", "04:59.800", "on time"),
        ("2s", "05:02.100", "05:00.099", "04:59.800", "late"),
    ],
    ids=["eager", "relaxed", "hybrid", "hybrid, later"],
)
def test_eager_against_relaxed(
    bound: str, largest: str, watermark: str, record: str, expected: str
) -> None:
    """W10: eager misses the straggler, relaxed waits for it, hybrid (2 s + 30 s) corrects."""
    generator = WatermarkStrategy.for_bounded_out_of_orderness(bound).create_generator()
    assert see(generator, [clock(largest)]) == clock(watermark)
    lateness_ms = 30_000 if bound == "2s" else 0
    assert verdict(generator.watermark_ms, clock(record), 1_000, lateness_ms) == expected

"""The whole stamped path on the embedded engine equals the reference model, record for record."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_lateness import (
    AggregateWindows,
    FieldTime,
    Files,
    JsonLines,
    ReadEvents,
    ReadSettings,
    RouteTooLate,
    WatermarkStrategy,
    Windows,
)
from tests.cases.engine import Outcome, direct_pipeline, keep, outcome
from tests.model import Event, bounded
from tests.transforms.lateness.streams import check, events, judge_splits, small_windows

FEW = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def run_splits(
    splits: list[list[Event]], windows: Windows, bound: int, block_bytes: int, folder: Path
) -> Outcome:
    """Runs each split as a file, under bounded out-of-orderness."""
    for number, split in enumerate(splits):
        lines = [
            json.dumps({"key": e.key, "value": e.value, "ts": e.ts, "name": e.name}) for e in split
        ]
        (folder / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{bound}ms")
    source = ReadEvents(
        Files([str(folder / "*.jsonl")], JsonLines("key", "value", "name")),
        strategy.with_timestamp_assigner(FieldTime("ts", unit="ms")),
        ReadSettings(block_bytes=block_bytes),
        embedded=True,
    )
    with direct_pipeline() as pipeline:
        read = pipeline | source
        routed = read.events | RouteTooLate(windows)
        keep(routed.accepted | AggregateWindows(windows, num_shards=2), folder, "panes")
        keep(routed.too_late, folder, "too_late")
        keep(read.invalid, folder, "invalid")
    return outcome(folder)


@FEW
@given(data=st.data(), windows=small_windows(), bound=st.integers(0, 15))
@pytest.mark.parametrize("block_bytes", [1, 150, 1 << 20])
def test_a_finite_replay_equals_each_splits_sequential_model(
    block_bytes: int, data: st.DataObject, windows: Windows, bound: int
) -> None:
    """Final values, ON_TIME values, late count and too-late set, whatever the block size."""
    how_many = data.draw(st.integers(1, 3))
    splits = [data.draw(events(windows, prefix=f"{n}:", most=15)) for n in range(how_many)]
    with tempfile.TemporaryDirectory() as folder:
        got = run_splits(splits, windows, bound, block_bytes, Path(folder))
    judged = judge_splits([list(bounded(split, bound)) for split in splits], windows)
    check(got.panes, got.too_late, judged)
    assert got.invalid == []

"""Metrics of lateness: what is counted is what happened, and on-time records cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness import AggregateWindows, EventBatch, RouteTooLate, Windows
from beam_lateness.transforms import metrics
from tests.cases.engine import direct_pipeline
from tests.model import NO_WATERMARK, Event
from tests.transforms.lateness.batches import batch_of, route
from tests.transforms.lateness.script import run_file, steps_of

FIVE_AND_TWO = Windows("5s", allowed_lateness="2s")
SCRIPT = "a:1@0; b:1@1; wm 5; a:1@4; wm 6; a:1@3; b:1@2; c:1@4.5; wm 7; a:1@4; wm 9; a:1@6; d:1@1"
"""Four on time (two of them before any watermark), four late, two too late; one on time last."""


@pytest.fixture(autouse=True)
def own_tally() -> Iterator[None]:
    """Begins and ends with nothing counted."""
    metrics.start_tally()
    yield
    metrics.start_tally()


def tally_of(name: str) -> tuple[int, ...]:
    """A distribution's count, sum, min and max in the tally."""
    return tuple(metrics.tally()[each] for each in metrics.distribution_names(name))


def test_late_and_on_time_records_are_counted_apart(tmp_path: Path) -> None:
    """On time + late = aggregated; a correction is a LATE pane."""
    got = run_file(steps_of(f"{SCRIPT}; end"), FIVE_AND_TWO, tmp_path)
    tally = metrics.tally()
    assert (tally[metrics.ON_TIME], tally[metrics.LATE]) == (3, 4)
    assert tally[metrics.AGGREGATED] == 7
    assert tally[metrics.CORRECTIONS] == sum(pane.timing == "LATE" for pane in got.panes) == 4


def test_a_late_records_lateness_is_how_far_the_watermark_is_past_it(tmp_path: Path) -> None:
    """By the stamp: at 5 s one of 4 s; at 6 s those of 3 s, 2 s and 4.5 s."""
    run_file(steps_of(f"{SCRIPT}; end"), FIVE_AND_TWO, tmp_path)
    lateness = [1000, 3000, 4000, 1500]
    assert tally_of(metrics.LATENESS_MS) == (4, sum(lateness), 1000, 4000)


def test_a_too_late_record_is_late_by_what_its_output_says(tmp_path: Path) -> None:
    """Counted from the window's end + allowed lateness: 0 ms is the least."""
    got = run_file(steps_of(f"{SCRIPT}; end"), FIVE_AND_TWO, tmp_path)
    assert sorted(record.late_by_ms or 0 for record in got.too_late) == [0, 2000]
    assert tally_of(metrics.LATE_BY_MS) == (2, 2000, 0, 2000)


def test_records_on_time_are_in_no_distribution(tmp_path: Path) -> None:
    """Those at the start, when there is no watermark yet, neither."""
    run_file(steps_of("a:1@0; wm 4.999; a:1@4; end"), FIVE_AND_TWO, tmp_path)
    route(batch_of([(Event("k", 1, 0), NO_WATERMARK)]), FIVE_AND_TWO)
    tally = metrics.tally()
    assert tally[metrics.ON_TIME] == tally[metrics.AGGREGATED] == 2
    unexpected = {metrics.LATENESS_MS, metrics.LATE_BY_MS, metrics.CORRECTIONS, metrics.LATE}
    assert [name for name in tally if name.startswith(tuple(unexpected))] == []


def test_beams_metrics_agree_with_the_tally() -> None:
    """Under the same names, added up over steps; the DirectRunner commits the first bundle only."""
    stamped = [
        (Event("k", 1, ts), stamp) for ts, stamp in [(0, 0), (0, 5000), (1, 6000), (2, 7000)]
    ]
    pipeline = direct_pipeline()
    for label, piece in (("Some", stamped[:2]), ("All", stamped)):
        created = beam.Create([batch_of(piece)]).with_output_types(EventBatch)
        routed = pipeline | label >> created | f"Route{label}" >> RouteTooLate(FIVE_AND_TWO)
        _ = routed.accepted | f"Aggregate{label}" >> AggregateWindows(FIVE_AND_TWO)
    result = pipeline.run()
    result.wait_until_finish()
    tally, committed = metrics.tally(), metrics.committed(result.metrics())
    both = (metrics.LATENESS_MS, metrics.LATE_BY_MS)
    names = [name for each in both for name in metrics.distribution_names(each)]
    assert [committed[name] for name in names] == [3, 15_999, 5000, 5999, 1, 0, 0, 0]
    assert {name: committed[name] for name in names} == {name: tally[name] for name in names}


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=9), max_size=5))
def test_a_distribution_holds_count_sum_min_and_max(updates: list[list[int]]) -> None:
    """Of all updates; without any it is not there."""
    metrics.start_tally()
    distribution = metrics.Distribution("example_ms")
    for values in updates:
        distribution.update(np.array(values, dtype=np.int64))
    every = sum(updates, list[int]())
    if every:
        assert tally_of("example_ms") == (len(every), sum(every), min(every), max(every))
    else:
        assert metrics.tally() == {}

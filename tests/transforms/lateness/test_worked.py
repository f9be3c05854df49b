"""The worked examples this project exists for (cases/worked.md), as far as they end in panes."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_lateness import ReadSettings, WatermarkStrategy, Windows
from beam_lateness.transforms import metrics
from beam_lateness.transforms.times import NO_WATERMARK_MS
from tests.cases import engine
from tests.cases.check import check_all, final_values, of_steps
from tests.cases.engine import Outcome
from tests.cases.load import Advance, Step
from tests.model import NO_WATERMARK, Event, bounded, verdicts
from tests.transforms.lateness.script import run_file

MIDNIGHT = 1_699_920_000_000


def at(clock: str) -> int:
    """Gives a time of the day, as 10:00:30 or 10:00:30.999, in ms."""
    hours, minutes, rest = clock.split(":")
    return MIDNIGHT + (int(hours) * 60 + int(minutes)) * 60_000 + round(float(rest) * 1000)


def inclusive(clock: str) -> Advance:
    """The worked examples' watermarks: nothing at or before T is to come."""
    return Advance(at(clock) + 1)


W1: list[Step] = [
    Event("ACC-001", 50_000, at("10:00:30"), "first"),
    Event("ACC-001", 30_000, at("10:00:45"), "second"),
    inclusive("10:01:00"),
    Event("ACC-001", 5000, at("10:00:35"), "late"),
    inclusive("10:02:30"),
    Event("ACC-001", 700, at("10:00:50"), "later"),
    inclusive("10:03:00"),
    Event("ACC-001", 11, at("10:00:55"), "too late"),
    Advance(None),
]


def test_w1_late_events_layer_by_layer(tmp_path: Path) -> None:
    """First result, corrected twice, purged; what comes then is kept aside with its window."""
    windows = Windows("1m", allowed_lateness="2m")
    got = run_file(W1, windows, tmp_path)
    assert [(pane.value, pane.timing, pane.index) for pane in got.panes] == [
        (80_000, "ON_TIME", 0),
        (85_000, "LATE", 1),
        (85_700, "LATE", 2),
    ]
    (record,) = got.too_late
    assert (record.record_id, record.value, record.late_by_ms) == ("too late", 11, 1)
    assert (record.window_start, record.window_end) == (at("10:00:00"), at("10:01:00"))
    check_all(got, of_steps(W1, windows), stamped=True)


def test_w1_without_lateness_has_one_result_and_a_count(tmp_path: Path) -> None:
    """80,000, and how many were dropped."""
    metrics.start_tally()
    got = run_file(W1, Windows("1m"), tmp_path)
    assert [pane.value for pane in got.panes] == [80_000]
    assert metrics.tally()[metrics.TOO_LATE] == 3


def run_bounded(
    events: list[Event], bound: str, windows: Windows, folder: Path, monkey: pytest.MonkeyPatch
) -> Outcome:
    """Runs records under bounded out-of-orderness, a record a poll."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound)
    monkey.setattr(engine, "MARKERS", strategy.with_timestamp_assigner(engine.MARKERS.timestamps))
    return run_file(events, windows, folder, settings=ReadSettings(block_bytes=1))


def test_w4_ten_and_five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound 10 s, lateness 5 s: 4 s behind re-fires; 5 s past the window's end is too late."""
    events = [
        Event("k", 1, at("10:00:05"), "on time"),
        Event("k", 2, at("10:00:23.9"), "moves the watermark to 10:00:13.9"),
        Event("k", 4, at("10:00:09.9"), "4 s behind the watermark"),
        Event("k", 8, at("10:00:25"), "moves it to 10:00:15"),
        Event("k", 16, at("10:00:09.999"), "5 s past the end"),
    ]
    windows = Windows("10s", allowed_lateness="5s")
    got = run_bounded(events, "10s", windows, tmp_path, monkeypatch)
    first = [pane for pane in got.panes if pane.window_start == at("10:00:00")]
    assert [(pane.value, pane.timing) for pane in first] == [(1, "ON_TIME"), (5, "LATE")]
    assert [(r.record_id, r.late_by_ms) for r in got.too_late] == [("5 s past the end", 0)]


def test_w4_nothing_fires_before_the_first_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts at the minimum, and the minimum less the bound does not wrap."""
    events = [Event("k", 1, at("10:00:05")), Event("k", 2, at("08:00:00"))]
    got = run_bounded(events, "73000d", Windows("1m"), tmp_path, monkeypatch)
    assert sorted(final_values(got.panes).values()) == [1, 2]
    assert {pane.timing for pane in got.panes} == {"ON_TIME"}
    assert got.too_late == []
    (first, *_) = [watermark for _, watermark in bounded(events, 73_000 * 86_400_000)]
    assert first == NO_WATERMARK <= NO_WATERMARK_MS + 1


def test_w6_markers_move_the_watermark_and_nothing_else_does(tmp_path: Path) -> None:
    """[10:04, 10:05) fires at the first marker: before it every record of the window is on time,
    after it every one is late, whatever other event times pass in between."""
    steps: list[Step] = [
        Event("k", 1, at("10:04:10"), "t1"),
        Event("k", 2, at("10:04:50"), "t2"),
        Event("k", 4, at("10:09:59"), "far ahead"),
        Event("k", 8, at("10:04:20"), "t3"),
        inclusive("10:05:00"),
        Event("k", 16, at("10:04:30"), "t4"),
        Event("k", 32, at("10:06:00"), "t5"),
        inclusive("10:10:00"),
        Event("k", 64, at("10:09:59"), "t6"),
    ]
    windows = Windows("1m", allowed_lateness="1h")
    got = run_file(steps, windows, tmp_path)
    assert [(p.window_start, p.value, p.timing) for p in got.panes] == [
        (at("10:04:00"), 11, "ON_TIME"),
        (at("10:04:00"), 27, "LATE"),
        (at("10:06:00"), 32, "ON_TIME"),
        (at("10:09:00"), 4, "ON_TIME"),
        (at("10:09:00"), 68, "LATE"),
    ]
    check_all(got, of_steps([*steps, Advance(None)], windows), stamped=True)


@pytest.mark.parametrize(("bound", "too_late"), [("0s", ["straggler"]), ("5s", [])])
def test_w7_bound_0_against_bound_5_s(
    bound: str, too_late: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10:00:31, a record of 10:00:30: dropped with bound 0, on time with bound 5 s."""
    events = [Event("k", 1, at("10:00:31"), "ahead"), Event("k", 2, at("10:00:30"), "straggler")]
    got = run_bounded(events, bound, Windows("1s"), tmp_path, monkeypatch)
    assert [record.record_id for record in got.too_late] == too_late
    assert {pane.timing for pane in got.panes} == {"ON_TIME"}
    bound_ms = 0 if bound == "0s" else 5000
    model = verdicts([bounded(events, bound_ms)], 1000, 0)
    assert [event.name for event in model.too_late] == too_late

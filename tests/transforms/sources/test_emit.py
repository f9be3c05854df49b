"""What a poll becomes: timed elements, counts and gauges, and the status for who looks on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue

from beam_lateness.transforms import metrics
from beam_lateness.transforms.beam_time import to_timestamp
from beam_lateness.transforms.sources.emit import INVALID_TAG, emit
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.sources.status import published, unpublish
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.model import Event, Marker
from tests.transforms.sources.memory import Live, MemoryInput, drain

ZERO = WatermarkStrategy.for_monotonous_timestamps()
BOUND = WatermarkStrategy.for_bounded_out_of_orderness("5s")
GAUGES = (
    metrics.WATERMARK_MS,
    metrics.WATERMARK_LAG_MS,
    metrics.IDLE_SPLITS,
    metrics.PAUSED_SPLITS,
    metrics.BOUND_MS,
)


@pytest.fixture(autouse=True)
def own_tally() -> Iterator[None]:
    """Begins and ends with nothing counted and nothing published."""
    metrics.start_tally()
    unpublish()
    yield
    metrics.start_tally()
    unpublish()


def emitted(*polls: Poll) -> list[Any]:
    """The elements of some polls, which are counted as they are emitted."""
    return [element for poll in polls for element in emit(poll)]


def gauges() -> dict[str, int]:
    """What the gauges show; those that were never set are left out."""
    return {name: value for name, value in metrics.tally().items() if name in GAUGES}


def test_batches_leave_with_their_earliest_time_and_bad_lines_with_their_tag() -> None:
    """So that the engine holds back what is downstream for the earliest record."""
    live = Live(ZERO, "ab")
    live.source.write("a", Event("k", 1, 700, "x"), b"{oops", Event("k", 1, 300, "y"))
    poll = live.poll(1, b=[4])
    batches, tagged = emitted(poll)[:2], emitted(poll)[2:]
    assert all(isinstance(element, TimestampedValue) for element in batches)
    assert [(element.value.split, element.timestamp) for element in batches] == [
        ("a", to_timestamp(300)),
        ("b", to_timestamp(4_000)),
    ]
    assert all(isinstance(element, TaggedOutput) for element in tagged)
    assert [(element.tag, element.value) for element in tagged] == [(INVALID_TAG, poll.invalid[0])]


def test_records_and_lines_that_are_none_are_counted() -> None:
    """Markers and blank lines are no input; blank lines are counted by themselves."""
    source = MemoryInput({})
    source.write("a", Event("k", 1, 5, "x"), b"{oops", b"", Marker(9), b" ", Event("k", 1, 6, "y"))
    source.write("b", b"\xff", b"")
    emitted(*drain(source.reader(WatermarkStrategy.for_markers("end"))))
    counts = {
        name: metrics.tally()[name]
        for name in (metrics.INPUT, metrics.INVALID, metrics.BLANK_LINES)
    }
    assert counts == {metrics.INPUT: 4, metrics.INVALID: 2, metrics.BLANK_LINES: 3}


def test_gauges_show_the_watermark_its_lag_and_the_bound() -> None:
    """Their latest values count."""
    live = Live(BOUND, "a")
    emitted(live.poll(100, a=[90]))
    still = {metrics.IDLE_SPLITS: 0, metrics.PAUSED_SPLITS: 0, metrics.BOUND_MS: 5_000}
    assert gauges() == {metrics.WATERMARK_MS: 85_000, metrics.WATERMARK_LAG_MS: 15_000, **still}
    emitted(live.poll(101))
    assert gauges() == {metrics.WATERMARK_MS: 85_000, metrics.WATERMARK_LAG_MS: 16_000, **still}
    emitted(live.poll(102, a=[101]))
    assert gauges() == {metrics.WATERMARK_MS: 96_000, metrics.WATERMARK_LAG_MS: 6_000, **still}


def test_gauges_count_idle_and_paused_splits() -> None:
    """And go back to zero when there are none any more."""
    strategy = ZERO.with_idleness("5s").with_watermark_alignment("emit", "30s")
    live = Live(strategy, "abcd")
    shown = []
    with closing(live.reader):
        for now in range(10):
            new = {"a": [100] if now == 0 else [], "b": [now], "c": [], "d": []}
            emitted(live.poll(now, **new))
        shown.append((gauges()[metrics.IDLE_SPLITS], gauges()[metrics.PAUSED_SPLITS]))
        for now in (10, 11):
            emitted(live.poll(now, b=[99], c=[99], d=[99]))
        shown.append((gauges()[metrics.IDLE_SPLITS], gauges()[metrics.PAUSED_SPLITS]))
    assert shown == [(2, 1), (0, 0)]


def test_a_gauge_of_what_is_not_known_is_not_set() -> None:
    """Without a watermark there is no lag, and not every strategy has a bound."""
    live = Live(WatermarkStrategy.for_markers("end"), "a")
    emitted(live.poll(0, a=[5]))
    assert gauges() == {metrics.IDLE_SPLITS: 0, metrics.PAUSED_SPLITS: 0}


def test_each_change_of_a_self_adjusting_bound_is_counted() -> None:
    """W12: and the bound of the moment is shown."""
    strategy = WatermarkStrategy.for_self_adjusting_bound("0s", "10s", 0.5, "8s")
    live = Live(strategy, "a")
    emitted(live.poll(0, a=[0]))
    assert (gauges()[metrics.BOUND_MS], metrics.BOUND_CHANGES in metrics.tally()) == (10_000, False)
    polls = [
        live.poll(1, a=[tenth / 10 for tenth in range(30)]),
        live.poll(2, a=[s for n in range(30, 120) for s in (n / 10, n / 10 - n // 30)]),
    ]
    emitted(*polls)
    changes = [change for poll in polls for _, change in poll.changes]
    assert changes[0][1:] == (10_000, 0), "in order so far"
    assert changes[-1].after_ms > 0, "every other record is late, and later and later"
    assert metrics.tally()[metrics.BOUND_CHANGES] == len(changes)
    assert len(polls[1].changes) > 1
    assert gauges()[metrics.BOUND_MS] == changes[-1].after_ms


def test_the_status_of_a_poll_is_published() -> None:
    """The last one."""
    live = Live(ZERO, "a")
    polls = [live.poll(now, a=[now]) for now in (1, 2)]
    assert published() is None
    emitted(*polls)
    assert published() is polls[-1].status

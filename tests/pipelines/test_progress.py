"""The figures of a running job, with an injected clock and the tally of this process."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from beam_lateness.pipelines import progress
from beam_lateness.pipelines.progress import Progress
from beam_lateness.transforms import metrics
from beam_lateness.transforms.sources import status
from beam_lateness.transforms.sources.status import GroupStatus, SplitStatus

NOON = 1_767_268_800.0


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        """Gives the time in seconds."""
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock at noon, and an empty tally before and after."""
    metrics.start_tally()
    yield Clock()
    metrics.start_tally()


@pytest.fixture(autouse=True)
def nothing_published() -> Iterator[None]:
    """No status of another test's job, before and after."""
    status.unpublish()
    yield
    status.unpublish()


def group(held_by: str | None, **states: str) -> GroupStatus:
    """A group of splits in states."""
    splits = tuple(SplitStatus(name, state, 1, 5, 5, 4) for name, state in states.items())
    return GroupStatus(4, splits, held_by)


def terminal() -> Console:
    """A terminal that writes to a string."""
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def test_before_the_first_record_the_figures_are_empty(clock: Clock) -> None:
    """No division by zero, no watermark at the beginning of time."""
    figures = Progress(terminal(), clock).figures()
    assert figures["records"] == figures["records/s"] == "0"
    assert figures["watermark"] == figures["lag"] == "-"


def test_the_rate_is_records_over_the_time_since_the_start(clock: Clock) -> None:
    """By the injected clock."""
    shown = Progress(terminal(), clock)
    metrics.Count(metrics.INPUT).inc(10_000)
    clock.now += 4
    assert shown.figures()["records"] == "10,000"
    assert shown.figures()["records/s"] == "2,500"


def test_the_lag_is_the_clock_less_the_watermark(clock: Clock) -> None:
    """To a tenth of a second."""
    shown = Progress(terminal(), clock)
    metrics.Gauge(metrics.WATERMARK_MS).set(int(NOON * 1000) - 12_340)
    assert shown.figures()["lag"] == "12.3s"
    assert shown.figures()["watermark"] == "2026-01-01 11:59:47.660Z"


def test_a_replay_of_history_has_no_lag(clock: Clock) -> None:
    """Eight days behind the clock is not behind the input."""
    shown = Progress(terminal(), clock)
    metrics.Gauge(metrics.WATERMARK_MS).set(int(NOON * 1000) - 8 * 86_400_000)
    assert shown.figures()["lag"] == "-"


def test_each_count_has_its_figure(clock: Clock) -> None:
    """Late, too late, invalid, panes."""
    shown = Progress(terminal(), clock)
    for number, name in enumerate(
        (metrics.LATE, metrics.TOO_LATE, metrics.INVALID, metrics.PANES), start=1
    ):
        metrics.Count(name).inc(1000 * number)
    figures = shown.figures()
    found = [figures[name] for name in ("late", "too late", "invalid", "panes")]
    assert found == ["1,000", "2,000", "3,000", "4,000"]


def held_by(clock: Clock) -> str:
    """What the figures say now."""
    return Progress(terminal(), clock).figures()["held by"]


def test_before_the_first_poll_nothing_holds_the_watermark(clock: Clock) -> None:
    """Nor where the source runs in another process: no status comes from there."""
    assert held_by(clock) == "-"


@pytest.mark.parametrize(
    ("published", "shown"),
    [
        (group(None), "-"),
        (group("a", a=status.ACTIVE), "-"),
        (group(None, a=status.IDLE), "- (1 idle)"),
        (group("b", a=status.ACTIVE, b=status.ACTIVE), "b"),
        (group("b", a=status.FINISHED, b=status.ACTIVE), "b"),
        (group("b", a=status.IDLE, b=status.ACTIVE), "b (1 idle)"),
        (group("b", a=status.PAUSED, b=status.ACTIVE), "b (1 paused)"),
        (
            group("c", a=status.IDLE, b=status.IDLE, c=status.ACTIVE, d=status.PAUSED),
            "c (2 idle, 1 paused)",
        ),
        (group(None, a=status.IDLE, b=status.IDLE), "- (2 idle)"),
        (group(None, a=status.ACTIVE, b=status.ACTIVE), "-"),
    ],
    ids=[
        "no split",
        "one split",
        "one idle split",
        "the holder of several",
        "beside a finished one",
        "beside an idle one",
        "beside a paused one",
        "beside idle and paused ones",
        "all idle",
        "merged",
    ],
)
def test_what_holds_the_watermark_is_named_where_there_are_several(
    clock: Clock, published: GroupStatus, shown: str
) -> None:
    """With how many are idle or paused; alone a split holds nobody back."""
    status.publish(published)
    assert held_by(clock) == shown


@pytest.mark.parametrize(("standing_s", "shown"), [(0.9, "b"), (41.8, "b for 42s")])
def test_a_watermark_that_stands_is_shown_with_how_long(
    clock: Clock, standing_s: float, shown: str
) -> None:
    """Polls come several times a second: less than one says nothing."""
    holder = group("b", a=status.ACTIVE, b=status.ACTIVE)
    status.publish(replace(holder, standing_s=standing_s))
    assert held_by(clock) == shown


def test_the_status_that_was_published_last_is_shown(clock: Clock) -> None:
    """And none once it is forgotten."""
    status.publish(group("a", a=status.ACTIVE, b=status.ACTIVE))
    status.publish(group("b", a=status.ACTIVE, b=status.ACTIVE))
    assert held_by(clock) == "b"
    status.unpublish()
    assert held_by(clock) == "-"


def test_the_line_shows_every_figure(clock: Clock) -> None:
    """Under its name."""
    console = terminal()
    shown = Progress(console, clock)
    metrics.Count(metrics.INPUT).inc(4711)
    status.publish(group("late-files", a=status.ACTIVE, b=status.IDLE))
    console.print(shown._line())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for name, figure in shown.figures().items():
        assert name in text
        assert figure in text
    assert "4,711" in text
    assert "held by late-files (1 idle)" in text.replace("\n", " ")


def test_the_thread_ends_with_the_block(clock: Clock) -> None:
    """In a terminal and elsewhere, at once."""
    for console in (terminal(), Console(file=io.StringIO(), force_terminal=False)):
        with Progress(console, clock):
            assert "progress" in {thread.name for thread in threading.enumerate()}
        assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_the_thread_ends_where_the_job_raises(clock: Clock) -> None:
    """And lets the error through."""
    with pytest.raises(RuntimeError, match="job"), Progress(terminal(), clock):
        raise RuntimeError("the job failed")
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_outside_a_terminal_the_figures_are_log_lines(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One now and then, with every figure."""
    monkeypatch.setattr(progress, "_LOG_S", 0.01)
    logged = threading.Event()
    lines: list[str] = []

    class Listener(logging.Handler):
        """Tells of the first line."""

        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            logged.set()

    log, listener = logging.getLogger(progress.__name__), Listener()
    monkeypatch.setattr(log, "level", logging.INFO)
    log.addHandler(listener)
    try:
        metrics.Count(metrics.INPUT).inc(12)
        with Progress(Console(file=io.StringIO(), force_terminal=False), clock):
            assert logged.wait(10)
    finally:
        log.removeHandler(listener)
    assert "records 12, records/s " in lines[0]
    assert "too late 0" in lines[0]


def test_in_a_terminal_the_line_is_live_and_gone_afterwards(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is redrawn as the tally grows."""
    monkeypatch.setattr(progress, "_TERMINAL_S", 0.01)
    drawn = threading.Event()
    console = terminal()
    shown = Progress(console, clock)
    metrics.Count(metrics.INPUT).inc(8_128)
    figures = Progress.figures

    def watched(self: Progress) -> dict[str, str]:
        now = figures(self)
        if now["records"] == "8,129":
            drawn.set()
        return now

    monkeypatch.setattr(Progress, "figures", watched)
    with shown:
        metrics.Count(metrics.INPUT).inc(1)
        assert drawn.wait(10)

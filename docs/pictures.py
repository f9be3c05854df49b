"""Draws the pictures of docs/watermarks.md, from the package's own generators and reader.

    python -m docs.pictures [FOLDER]

Everything that a picture shows was computed by what a job runs; here is only the drawing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beam_lateness import WatermarkGenerator, WatermarkStrategy
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import NO_WATERMARK_MS, Millis
from beam_lateness.transforms.watermarks.estimator import exclusive
from beam_lateness.transforms.watermarks.generators import WatermarkOutput
from examples.watermarks import START_MS, follow

IN_TIME, BEHIND, LINE, SECOND, QUIET = "#0072b2", "#d55e00", "#222222", "#009e73", "#999999"

mpl.rcParams.update(
    {
        "svg.hashsalt": "beam-lateness",  # the same picture is the same file
        "figure.facecolor": "white",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e5e5e5",
        "legend.frameon": False,
    }
)


def disordered(count: int, seed: int, latest_s: float = 8.0, every_s: float = 1.0) -> Millis:
    """Event times of records that arrive one a second, most of them nearly in order."""
    rng = np.random.default_rng(seed)
    late_s = np.minimum(rng.exponential(1.5, count), latest_s)
    late_s[rng.random(count) < 0.04] *= 4
    return START_MS + ((np.arange(count) * every_s - late_s) * 1000).astype(np.int64)


def stamps(strategy: WatermarkStrategy, times_ms: Millis, markers: Any = None) -> Millis:
    """The exclusive watermark just before each record; NaN before there is one."""
    generator = strategy.create_generator()
    marks = np.zeros(len(times_ms), dtype=np.bool_) if markers is None else markers
    records = [{"marker": bool(mark)} for mark in marks]
    after = generator.on_events(times_ms, marks, records)
    return exclusive(np.append(NO_WATERMARK_MS, after[:-1]))


def as_seconds(ms: Millis) -> Any:
    """Seconds since ten o'clock; NaN where there is no watermark."""
    return np.where(ms <= exclusive(NO_WATERMARK_MS), np.nan, (ms - START_MS) / 1000)


def canvas(title: str, height: float = 3.6) -> tuple[Figure, Axes]:
    """An empty picture."""
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("arrival (s)")
    axes.set_ylabel("event time (s after 10:00)")
    return figure, axes


def draw_stream(
    title: str, strategy: WatermarkStrategy, times_ms: Millis, markers: Any = None
) -> Figure:
    """Records as dots, in time or behind; the watermark as a line."""
    figure, axes = canvas(title)
    arrival = np.arange(len(times_ms))
    stamped = stamps(strategy, times_ms, markers)
    marks = np.zeros(len(times_ms), dtype=np.bool_) if markers is None else markers
    behind = (times_ms < stamped) & ~marks
    for rows, colour, shape, name in (
        (~behind & ~marks, IN_TIME, "o", "record"),
        (behind, BEHIND, "x", "record behind the watermark"),
        (marks, SECOND, "D", "marker"),
    ):
        if rows.any():
            axes.scatter(
                arrival[rows], as_seconds(times_ms)[rows], s=18, c=colour, marker=shape, label=name
            )
    axes.step(arrival, as_seconds(stamped), where="mid", c=LINE, lw=1.5, label="watermark")
    axes.legend(loc="upper left")
    return figure


@dataclass
class Seen:
    """What `EveryTenthRecord` must remember."""

    newest_ms: int = 0
    records: int = 0


class EveryTenthRecord(WatermarkGenerator):
    """For the picture of a generator of one's own: emits now and then, 4 s behind."""

    def __init__(self) -> None:
        self.state = Seen()

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits with each tenth record."""
        self.state.newest_ms = max(self.state.newest_ms, event_time_ms)
        self.state.records += 1
        if self.state.records % 10 == 0:
            output.emit_watermark(self.state.newest_ms - 4_000 - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing."""


def bounded() -> Figure:
    """Bounded out-of-orderness."""
    return draw_stream(
        "bounded: 4 s behind the largest event time",
        WatermarkStrategy.for_bounded_out_of_orderness("4s"),
        disordered(60, 7),
    )


def monotonous() -> Figure:
    """Monotonous."""
    return draw_stream(
        "monotonous: at the largest event time",
        WatermarkStrategy.for_monotonous_timestamps(),
        disordered(60, 7),
    )


def punctuated() -> Figure:
    """Markers."""
    times = disordered(60, 7)
    markers = np.zeros(60, dtype=np.bool_)
    markers[[19, 39, 58]] = True
    times[[19, 39, 58]] = START_MS + np.array([10_000, 30_000, 50_000])
    return draw_stream(
        "punctuated: at the last marker, and nowhere in between",
        WatermarkStrategy.for_markers("marker"),
        times,
        markers,
    )


def none() -> Figure:
    """No watermarks."""
    return draw_stream(
        "none: no watermark until the input ends, nothing is late",
        WatermarkStrategy.no_watermarks(),
        disordered(60, 7),
    )


def custom() -> Figure:
    """A generator of one's own."""
    return draw_stream(
        "module:object: a generator that emits with each tenth record, 4 s behind",
        WatermarkStrategy.for_generator(EveryTenthRecord),
        disordered(60, 7),
    )


def adjusting() -> Figure:
    """The bound follows the lateness it measures (W12)."""
    count = 60_000
    rng = np.random.default_rng(12)
    arrival_s = np.arange(count) / 20
    p99_s = np.where((arrival_s > 1_000) & (arrival_s < 1_600), 20.0, 1.0)
    lateness_s = rng.exponential(p99_s / np.log(100))  # of which the 99th percentile is p99
    times = START_MS + ((arrival_s - lateness_s) * 1000).astype(np.int64)
    strategy = WatermarkStrategy.for_self_adjusting_bound("500ms", "30s", period="5m")
    generator = strategy.create_generator()
    bounds = []
    for low in range(0, count, 200):
        generator.on_events(times[low : low + 200], np.zeros(200, dtype=np.bool_))
        bounds.append((generator.bound_ms or 0) / 1000)
    figure, axes = canvas("adjusting: P99 goes from 1 s to 20 s, and back (period 5 min)")
    axes.scatter(arrival_s[::75], lateness_s[::75], s=3, c=QUIET, label="lateness of a record")
    axes.step(arrival_s[::200], bounds, where="post", c=LINE, lw=1.5, label="bound")
    axes.plot(arrival_s, p99_s, c=BEHIND, lw=1, ls="--", label="true P99")
    axes.set_ylabel("s")
    axes.set_ylim(0, 32)
    axes.legend(loc="upper right")
    return figure


def draw_splits(axes: Axes, polls: Sequence[Poll], names: Sequence[str]) -> None:
    """The watermark of each split, and the source's."""
    shapes = {"active": "-", "idle": ":", "paused": "--"}
    colours = (IN_TIME, SECOND, BEHIND, "#cc79a7")
    for at, name in enumerate(names):
        states = [poll.status.splits[at].state for poll in polls]
        heights = np.array(
            [
                np.nan if (ms := poll.status.splits[at].watermark_ms) is None else ms - START_MS
                for poll in polls
            ]
        )
        for state, style in shapes.items():
            rows = np.array([each == state for each in states])
            shown = np.where(rows | np.roll(rows, 1), heights / 1000, np.nan)
            if rows.any():
                label = f"{name}, {state}"
                axes.plot(shown, style, c=colours[at], lw=2, alpha=0.8, label=label)
    group = [poll.status.watermark_ms for poll in polls]
    line = [np.nan if ms is None else (ms - START_MS) / 1000 for ms in group]
    axes.step(range(len(line)), line, where="post", c=LINE, lw=1.5, label="the source's watermark")
    axes.set_ylabel("watermark (s after 10:00)")
    axes.legend(loc="upper left", fontsize=9)


def every_second(low: int, high: int, lag: int = 0) -> Callable[[int], Sequence[float]]:
    """A record a second from one second to another."""
    return lambda second: [second - lag] if low <= second < high else []


def idleness() -> Figure:
    """W8: a split falls silent, and speaks again."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2s").with_idleness("15s")
    silent = {"a": every_second(0, 90), "b": lambda s: [s] if s < 20 or s >= 60 else []}
    polls = follow(strategy, silent, 90)
    figure, axes = canvas("idleness: b is silent from 20 s to 60 s, timeout 15 s")
    draw_splits(axes, polls, ["a", "b"])
    return figure


def alignment() -> Figure:
    """W13: one split can be read faster than the other."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2s").with_watermark_alignment(
        "docs", "30s"
    )
    backlog = {
        "fast": lambda s: list(np.arange(0, 400, 1.0)) if s == 0 else [],
        "slow": lambda s: [s * 3],
    }
    polls = follow(strategy, backlog, 90, block_bytes=400)  # about ten records a poll
    figure, axes = canvas("alignment: a backlog is paused 30 s ahead of the slow split")
    draw_splits(axes, polls, ["fast", "slow"])
    return figure


def merged() -> Figure:
    """W11: two files, the second half a minute behind, per split and merged."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2s")
    first, second = disordered(60, 7), disordered(60, 9) - 30_000
    one_by_one = np.concatenate([first, second])
    ways = (
        (left, "per_split (as read: lowest first)", [first, second]),
        (right, "merged (as read: one file after the other)", [one_by_one]),
    )
    for axes, title, streams in ways:
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("record")
        at = 0
        for times in streams:
            stamped = stamps(strategy, times)
            behind = times < stamped
            rows = np.arange(at, at + len(times))
            axes.scatter(rows[~behind], as_seconds(times)[~behind], s=14, c=IN_TIME, marker="o")
            axes.scatter(rows[behind], as_seconds(times)[behind], s=14, c=BEHIND, marker="x")
            axes.step(rows, as_seconds(stamped), where="mid", c=LINE, lw=1.5)
            at += len(times)
    left.set_ylabel("event time (s after 10:00)")
    return figure


PICTURES: Final[Mapping[str, Callable[[], Figure]]] = {
    picture.__name__: picture
    for picture in (
        bounded,
        monotonous,
        punctuated,
        none,
        custom,
        adjusting,
        merged,
        idleness,
        alignment,
    )
}


def draw_all(folder: Path) -> list[Path]:
    """Draws every picture into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, picture in PICTURES.items():
        paths.append(folder / f"{name}.svg")
        picture().savefig(paths[-1], metadata={"Date": None})
    return paths


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    for drawn in draw_all(target):
        print(drawn)

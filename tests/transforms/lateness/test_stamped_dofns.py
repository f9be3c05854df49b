"""The stamped path without a runner: verdict, partials, merge, under every lag of the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import Pane, TooLateRecord, Windows
from beam_lateness.transforms.beam_time import to_ms
from beam_lateness.transforms.lateness.aggregate import _MergePartials
from beam_lateness.transforms.lateness.aggregation import ColumnAggregation
from beam_lateness.transforms.lateness.partials import PreAggregateBatches
from beam_lateness.transforms.lateness.windows import SLACK_MS
from tests.model import NO_WATERMARK, bounded
from tests.transforms.lateness.batches import batch_of, route
from tests.transforms.lateness.streams import Stamped, check, events, judge_splits, small_windows

END_OF_TIME = 2**62


@dataclass
class Bag:
    """A bag state."""

    items: list[bytes] = field(default_factory=list)

    def add(self, item: bytes) -> None:
        """Adds an item."""
        self.items.append(item)

    def read(self) -> list[bytes]:
        """Gives the items."""
        return list(self.items)

    def clear(self) -> None:
        """Empties the bag."""
        self.items.clear()


@dataclass
class Value:
    """A state of one value."""

    value: bytes | None = None

    def read(self) -> bytes | None:
        """Gives the value."""
        return self.value

    def write(self, value: bytes) -> None:
        """Sets the value."""
        self.value = value


@dataclass
class Timer:
    """An event-time timer."""

    at: int | None = None

    def set(self, at: Any) -> None:
        """Sets it."""
        self.at = to_ms(at)


@dataclass
class Cell:
    """What an engine keeps for one (shard, grace window)."""

    partials: Bag = field(default_factory=Bag)
    merged: Value = field(default_factory=Value)
    end: Timer = field(default_factory=Timer)


class Engine:
    """A stand-in for an engine: keyed state, timers, and a watermark that lags as it likes."""

    def __init__(self, windows: Windows, num_shards: int) -> None:
        aggregation = ColumnAggregation(["sum"])
        self._windows = windows
        self._aggregate = PreAggregateBatches(aggregation, windows, num_shards)
        self._merge = _MergePartials(aggregation, windows, False, None)
        self._cells: dict[Any, Cell] = {}
        self.watermark = NO_WATERMARK
        self.panes: list[Pane] = []
        self.too_late: list[TooLateRecord] = []

    def take(self, stamped: Stamped) -> None:
        """Takes a batch through all steps."""
        accepted, too_late = route(batch_of(stamped), self._windows)
        self.too_late += too_late
        for batch in accepted:
            for partial in self._aggregate.process(batch):
                self._take_partial(partial)

    def _take_partial(self, partial: WindowedValue) -> None:
        (window,) = partial.windows
        assert self.watermark < to_ms(window.end), "an engine would drop this"
        assert to_ms(window.start) <= to_ms(partial.timestamp)
        assert to_ms(partial.timestamp) < to_ms(window.start) + self._windows.size_ms
        cell = self._cells.setdefault((partial.value[0], window), Cell())
        self.panes += self._merge.process(
            partial.value, window, cell.partials, cell.merged, cell.end
        )
        self._fire()

    def advance(self, watermark: int) -> None:
        """Moves the watermark; fires timers; forgets windows that are over."""
        self.watermark = max(self.watermark, watermark)
        self._fire()
        for key in [key for key in self._cells if to_ms(key[1].end) <= self.watermark]:
            del self._cells[key]

    def _fire(self) -> None:
        for (_, window), cell in self._cells.items():
            if cell.end.at is not None and self.watermark >= cell.end.at:
                cell.end.at = None
                self.panes += self._merge.fire(window, cell.partials, cell.merged)


def cuts(stamped: Stamped, dice: random.Random) -> Iterator[Stamped]:
    """Cuts a stream anywhere."""
    start = 0
    while start < len(stamped):
        end = start + dice.randint(1, 6)
        yield stamped[start:end]
        start = end


@given(
    data=st.data(),
    windows=small_windows(),
    bound=st.integers(0, 15),
    num_shards=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=300, deadline=None)
def test_any_batches_under_any_lag_equal_the_model(
    data: st.DataObject, windows: Windows, bound: int, num_shards: int, seed: int
) -> None:
    """The engine's watermark is anything up to the stamps; no result depends on it."""
    stamped = list(bounded(data.draw(events(windows)), bound))
    dice = random.Random(seed)
    engine = Engine(windows, num_shards)
    for batch in cuts(stamped, dice):
        engine.take(batch)
        latest = batch[-1][1]
        if dice.random() < 0.6:
            lag = dice.choice([0, 0, 1, windows.size_ms, windows.allowed_lateness_ms])
            engine.advance(latest - lag)
    engine.advance(END_OF_TIME)
    check(engine.panes, engine.too_late, judge_splits([stamped], windows))


@given(data=st.data(), windows=small_windows(), seed=st.integers(0, 10_000))
@settings(deadline=None)
def test_a_later_pane_of_a_key_and_window_has_a_higher_index(
    data: st.DataObject, windows: Windows, seed: int
) -> None:
    """In the order of emission, with no gap: a sink never sees an index go back."""
    stamped = list(bounded(data.draw(events(windows)), 0))
    dice = random.Random(seed)
    engine = Engine(windows, 2)
    for batch in cuts(stamped, dice):
        engine.take(batch)
        engine.advance(batch[-1][1])
    engine.advance(END_OF_TIME)
    seen: dict[tuple[str, int], int] = {}
    for pane in engine.panes:
        cell = (pane.key, pane.window_start)
        assert pane.index == seen.get(cell, -1) + 1
        seen[cell] = pane.index


@given(data=st.data(), windows=small_windows())
@settings(deadline=None)
def test_state_outlives_the_allowed_lateness_by_the_slack(
    data: st.DataObject, windows: Windows
) -> None:
    """The window a partial travels in: from the window's start to end + L + slack."""
    drawn = data.draw(events(windows).filter(bool))
    batch = batch_of([(event, NO_WATERMARK) for event in drawn])
    aggregate = PreAggregateBatches(ColumnAggregation(["sum"]), windows, 4)
    for partial in aggregate.process(batch):
        (window,) = partial.windows
        start = to_ms(window.start)
        assert start == windows.start_of(start)
        assert to_ms(window.end) == windows.closed_at(start) + SLACK_MS


def test_an_empty_batch_adds_nothing() -> None:
    """`EventBatch.filter` may leave none."""
    aggregate = PreAggregateBatches(ColumnAggregation(["sum"]), Windows("1m"), 4)
    assert list(aggregate.process(batch_of([]))) == []

"""Random streams for properties, and what the reference model makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from beam_lateness import Pane, TooLateRecord, Windows
from tests.cases.check import panes_by_cell
from tests.cases.load import windows_of
from tests.model import Event, Windowed

Stamped = Sequence[tuple[Event, int]]


class Judged(NamedTuple):
    """What the model makes of stamped splits, by key and window start."""

    totals: dict[tuple[str, int], int]
    counts: dict[tuple[str, int], int]
    on_time: dict[tuple[str, int], int]
    late: int
    too_late: dict[str, int]


def judge_splits(splits: Iterable[Stamped], windows: Windows) -> Judged:
    """Judges every record by its own split's watermark; too late: distance by name."""
    model = Windowed(windows.size_ms, windows.allowed_lateness_ms, windows.offset_ms)
    on_time: dict[tuple[str, int], int] = {}
    counts: dict[tuple[str, int], int] = {}
    too_late: dict[str, int] = {}
    for split in splits:
        for event, watermark in split:
            model.watermark = watermark
            start = model.start_of(event.ts)
            cell = (event.key, start)
            if not model.record(event):
                closed = start + windows.size_ms + windows.allowed_lateness_ms
                too_late[event.name] = watermark - closed
                continue
            counts[cell] = counts.get(cell, 0) + 1
            if watermark < start + windows.size_ms:
                on_time[cell] = on_time.get(cell, 0) + event.value
    return Judged(model.totals, counts, on_time, len(model.late), too_late)


def check(panes: Iterable[Pane], too_late: Iterable[TooLateRecord], judged: Judged) -> None:
    """The panes and too-late records are those of the model, record for record."""
    cells = {(key, window[0]): group for (key, window), group in panes_by_cell(panes).items()}
    assert {cell: group[-1].value for cell, group in cells.items()} == judged.totals
    assert {cell: group[-1].count for cell, group in cells.items()} == judged.counts
    for group in cells.values():
        assert [pane.index for pane in group] == list(range(len(group)))
    on_time = {cell: g[0] for cell, g in cells.items() if g[0].timing == "ON_TIME"}
    assert {cell: pane.value for cell, pane in on_time.items()} == judged.on_time
    in_time = sum(pane.count for pane in on_time.values())
    assert sum(judged.counts.values()) - in_time == judged.late
    assert all(pane.timing == "LATE" for group in cells.values() for pane in group[1:])
    assert {str(record.record_id): record.late_by_ms for record in too_late} == judged.too_late


@st.composite
def small_windows(draw: st.DrawFn) -> Windows:
    """Draws windows small enough that boundaries are met all the time."""
    size = draw(st.integers(1, 20))
    return windows_of(size, draw(st.integers(0, 20)), draw(st.integers(0, size - 1)))


@st.composite
def events(draw: st.DrawFn, windows: Windows, prefix: str = "", most: int = 30) -> list[Event]:
    """Draws records around the boundaries of a few windows, named by prefix and place."""
    size, lateness = windows.size_ms, windows.allowed_lateness_ms
    boundaries = st.builds(
        lambda window, edge, off: window * size + windows.offset_ms + edge + off,
        st.integers(-2, 4),
        st.sampled_from([0, size, size + lateness]),
        st.integers(-1, 1),
    )
    times = st.one_of(boundaries, st.integers(-3 * size, 5 * size + lateness))
    rows = draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9), times), max_size=most)
    )
    return [Event(key, value, ts, f"{prefix}{n}") for n, (key, value, ts) in enumerate(rows)]

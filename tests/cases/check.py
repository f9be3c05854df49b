"""What a run promises of a case, whatever the engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from beam_lateness import Pane
from tests.cases.engine import Outcome
from tests.cases.load import Case, Step, judge
from tests.model import Event, ModelPane

Cell = tuple[str, tuple[int, int]]


class Expected(NamedTuple):
    """What should come out of steps."""

    events: list[Event]
    panes: list[ModelPane]
    too_late: list[Event]
    discarding: bool = False


def of_case(case: Case) -> Expected:
    """Gives what a case file expects."""
    late = set(case.too_late)
    too_late = [event for event in case.events if event.name in late]
    return Expected(case.events, list(case.panes), too_late, case.discarding)


def of_steps(steps: Sequence[Step], windows: Any, discarding: bool = False) -> Expected:
    """Gives what the reference model expects of steps."""
    model = judge(steps, windows, discarding)
    events = [step for step in steps if isinstance(step, Event)]
    return Expected(events, model.panes, model.too_late, discarding)


def check_all(got: Outcome, expected: Expected, *, stamped: bool) -> None:
    """Holds a run to everything its path promises.

    Args:
        got: What came out.
        expected: What should.
        stamped: Whether records were stamped: labels and names are promised then.
    """
    check_panes(got, expected)
    if stamped:
        check_timings(got, expected)
    check_too_late(got, expected, by_name=stamped)
    check_conserved(got, expected)


def check_pane_or_invalid(got: Outcome, expected: Expected) -> None:
    """At the ends of time: the panes expected, or invalid records in their stead (C19)."""
    assert got.too_late == []
    assert sum(pane.count for pane in got.panes) + len(got.invalid) == len(expected.events)
    wanted = {(pane.key, pane.window): pane.value for pane in expected.panes}
    assert final_values(got.panes).items() <= wanted.items()


def check_panes(got: Outcome, expected: Expected) -> None:
    """The panes of a key and window are the expected ones, neighbouring late ones perhaps merged;
    their indices count 0, 1, 2 ..., and the last value is the final one."""
    cells = panes_by_cell(got.panes)
    wanted: dict[Cell, list[int]] = defaultdict(list)
    for pane in expected.panes:
        wanted[pane.key, pane.window].append(pane.value)
    assert cells.keys() == wanted.keys()
    for cell, panes in cells.items():
        assert [pane.index for pane in panes] == list(range(len(panes)))
        assert [pane.timing for pane in panes[1:]] == ["LATE"] * (len(panes) - 1)
        values, of_cell = [pane.value for pane in panes], wanted[cell]
        if expected.discarding:
            values, of_cell = list(accumulate(values)), list(accumulate(of_cell))
        assert is_subsequence(values, of_cell)
        assert values[-1] == of_cell[-1]


def check_timings(got: Outcome, expected: Expected) -> None:
    """The ON_TIME panes stand on exactly the records that came before the window's end."""
    on_time = {cell_of(pane): pane.value for pane in got.panes if pane.timing == "ON_TIME"}
    assert on_time == {
        (pane.key, pane.window): pane.value for pane in expected.panes if pane.timing == "ON_TIME"
    }
    late = {cell_of(pane) for pane in got.panes if pane.timing == "LATE"}
    assert late == {(pane.key, pane.window) for pane in expected.panes if pane.timing == "LATE"}


def check_too_late(got: Outcome, expected: Expected, *, by_name: bool) -> None:
    """The records that came too late are exactly the expected ones."""
    if by_name:
        names = [record.record_id for record in got.too_late]
        assert sorted(names, key=str) == sorted(event.name for event in expected.too_late)
    assert Counter((r.key, r.value, r.event_time) for r in got.too_late) == Counter(
        (event.key, event.value, event.ts) for event in expected.too_late
    )


def check_conserved(got: Outcome, expected: Expected) -> None:
    """Input = aggregated + too late + invalid, in count and in sum."""
    last = {cell_of(pane): pane for pane in got.panes}  # sorted by index
    if expected.discarding:
        count = sum(pane.count for pane in got.panes)
        total = sum(pane.value for pane in got.panes)
    else:
        count = sum(pane.count for pane in last.values())
        total = sum(pane.value for pane in last.values())
    assert count + len(got.too_late) + len(got.invalid) == len(expected.events)
    if not got.invalid:
        too_late = sum(record.value for record in got.too_late)
        assert total + too_late == sum(event.value for event in expected.events)


def cell_of(pane: Pane) -> Cell:
    """Gives a pane's key and window."""
    return pane.key, (pane.window_start, pane.window_end)


def panes_by_cell(panes: Iterable[Pane]) -> dict[Cell, list[Pane]]:
    """Groups panes by key and window, each group by index."""
    cells: dict[Cell, list[Pane]] = defaultdict(list)
    for pane in sorted(panes, key=lambda pane: pane.index):
        cells[cell_of(pane)].append(pane)
    return cells


def final_values(panes: Iterable[Pane]) -> dict[Cell, Any]:
    """Gives the last value of each key and window."""
    return {cell: group[-1].value for cell, group in panes_by_cell(panes).items()}


def total_values(panes: Iterable[Pane]) -> dict[Cell, Any]:
    """Gives the sum of the values of each key and window."""
    return {cell: sum(p.value for p in group) for cell, group in panes_by_cell(panes).items()}


def is_subsequence(values: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Says whether `values` stand in `whole` in this order, perhaps with others between."""
    rest = iter(whole)
    return all(value in rest for value in values)

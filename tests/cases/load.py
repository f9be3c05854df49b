"""Reads the case files, and what the reference model makes of a case's steps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from beam_lateness import Windows
from tests.model import Event, ModelPane, Windowed

FOLDER: Final = Path(__file__).parent
HONEST: Final = "honest"
FAR_MS: Final = 2**62
"""A watermark past every window."""


class Advance(NamedTuple):
    """The exclusive watermark moves to `watermark` (ms); None is the end of time."""

    watermark: int | None


Step: TypeAlias = "Event | Advance"


def seconds(ms: int) -> float:
    """Gives milliseconds as the seconds that durations are made of."""
    return ms / 1000


def windows_of(size_ms: int, lateness_ms: int = 0, offset_ms: int = 0) -> Windows:
    """Makes windows of milliseconds."""
    return Windows(f"{size_ms}ms", f"{lateness_ms}ms", f"{offset_ms}ms")


@dataclass(frozen=True)
class Case:
    """One case file of fixed windows.

    Args:
        id: Its name.
        scope: `core`, `directed` or `extreme`.
        windows: The windows.
        discarding: Whether late panes hold only what is new.
        steps: Records, named by their step's index, and watermarks, strictly one at a time.
        panes: The panes expected, in order, one a late record.
        too_late: The names of the records expected to be too late.
    """

    id: str
    scope: str
    windows: Windows
    discarding: bool
    steps: tuple[Step, ...]
    panes: tuple[ModelPane, ...]
    too_late: tuple[str, ...]

    @property
    def events(self) -> list[Event]:
        """The records."""
        return [step for step in self.steps if isinstance(step, Event)]


def among_others(case: Case) -> Case:
    """Puts an honest record before a case's own: an input that holds no event time at all is
    refused before launch."""
    honest = Event(HONEST, 1, 0, HONEST)
    start = case.windows.start_of(0)
    pane = ModelPane(HONEST, (start, start + case.windows.size_ms), 1, "ON_TIME")
    return replace(case, steps=(honest, *case.steps), panes=(pane, *case.panes))


def judge(steps: Iterable[Step], windows: Windows, discarding: bool = False) -> Windowed:
    """Runs steps through the reference model."""
    model = Windowed(
        windows.size_ms, windows.allowed_lateness_ms, windows.offset_ms, discarding=discarding
    )
    for step in steps:
        if isinstance(step, Event):
            model.record(step)
        else:
            model.advance(FAR_MS if step.watermark is None else step.watermark)
    return model


@cache
def fixed_cases(family: str) -> tuple[Case, ...]:
    """Gives the cases of fixed windows of a family: `window` or `random`."""
    found = (json.loads(path.read_text()) for path in sorted((FOLDER / family).glob("*.json")))
    return tuple(_case(each) for each in found if each["config"]["window_fn"] == "fixed")


def scopes(family: str) -> dict[str, str]:
    """Gives the scope of every case file of a family, by the case's name."""
    found = [json.loads(path.read_text()) for path in sorted((FOLDER / family).glob("*.json"))]
    return {each["id"]: each["scope"] for each in found}


def _case(raw: dict[str, Any]) -> Case:
    config, expected = raw["config"], raw["expected"]
    return Case(
        id=raw["id"],
        scope=raw["scope"],
        windows=windows_of(config["size_ms"], config["allowed_lateness_ms"], config["offset_ms"]),
        discarding=config["accumulation"] == "discarding",
        steps=tuple(_steps(raw["steps"])),
        panes=tuple(
            ModelPane(pane["key"], tuple(pane["window"]), pane["value"], pane["timing"])
            for pane in expected["panes"]
        ),
        too_late=tuple(str(record["step"]) for record in expected["too_late"]),
    )


def _steps(raw: list[dict[str, Any]]) -> Iterable[Step]:
    """Gives the steps without watermarks that move nothing (TestStream refuses those)."""
    last: Any = None
    for index, step in enumerate(raw):
        if "event" in step:
            event = step["event"]
            yield Event(event["key"], event["value"], event["ts_ms"], str(index))
        elif step["watermark_ms"] not in (None, last):
            last = step["watermark_ms"]
            yield Advance(None if last == "inf" else last)

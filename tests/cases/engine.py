"""Runs steps on an engine, by TestStream or by files, and keeps what comes out."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.transforms.window import TimestampedValue

from beam_lateness import (
    AggregateWindows,
    FieldTime,
    Files,
    InvalidRecord,
    JsonLines,
    Pane,
    ReadEvents,
    ReadEventsResult,
    ReadSettings,
    RouteTooLate,
    TooLateRecord,
    WatermarkStrategy,
    Windows,
)
from beam_lateness.transforms.beam_time import to_timestamp
from tests.cases.load import Case, Step
from tests.model import Event

MakePipeline = Callable[[], beam.Pipeline]

MARKERS: Final = WatermarkStrategy.for_markers("marker").with_timestamp_assigner(
    FieldTime("ts", unit="ms")
)
LINE_BY_LINE: Final = ReadSettings(block_bytes=1)
"""A poll a line: the engine's watermark moves between any two lines."""


@dataclass(frozen=True)
class Outcome:
    """What came out; panes sorted by key, window and index."""

    panes: list[Pane] = field(default_factory=list)
    too_late: list[TooLateRecord] = field(default_factory=list)
    invalid: list[InvalidRecord] = field(default_factory=list)


def direct_pipeline() -> beam.Pipeline:
    """Makes a pipeline for Beam's Python DirectRunner: the one that honours watermarks."""
    return beam.Pipeline(BundleBasedDirectRunner(), options=PipelineOptions(["--streaming"]))


class Keep(beam.DoFn):
    """Writes elements to a file of its own in a folder, whatever process the worker lives in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process(self, element: Any) -> None:
        line = base64.b64encode(pickle.dumps(element)) + b"\n"
        (self._folder / uuid.uuid4().hex).write_bytes(line)


def keep(pcoll: PCollection[Any], folder: Path, name: str) -> None:
    """Keeps a collection under a name."""
    (folder / name).mkdir(parents=True)
    _ = pcoll | f"Keep{name.capitalize()}" >> beam.ParDo(Keep(folder / name))


def kept(folder: Path, name: str) -> list[Any]:
    """Reads what `keep` kept; in no order."""
    files = sorted((folder / name).glob("*"))
    return [pickle.loads(base64.b64decode(file.read_bytes())) for file in files]


def outcome(folder: Path) -> Outcome:
    """Reads what a run kept."""
    panes = sorted(kept(folder, "panes"), key=_in_order)
    invalid = [*kept(folder, "unreadable"), *kept(folder, "invalid")]
    return Outcome(panes, kept(folder, "too_late"), invalid)


def _in_order(pane: Pane) -> tuple[str, int, int]:
    return (repr(pane.key), pane.window_start, pane.index)


def stream_of(
    steps: Iterable[Step],
    record: Callable[[Event], Any] | None = None,
    one_by_one: bool = True,
) -> TestStream:
    """Makes a TestStream of steps.

    Args:
        steps: Records and watermarks.
        record: Makes the element of a record; by default the pair (key, value).
        one_by_one: Whether each record is a bundle of its own, or all up to the next watermark are
            one (which is faster).
    """
    stream = TestStream()
    bundle: list[Any] = []
    for step in steps:
        if isinstance(step, Event):
            bundle.append(_element(step, record))
            if not one_by_one:
                continue
        if bundle:
            stream, bundle = stream.add_elements(bundle), []
        if isinstance(step, Event):
            continue
        if step.watermark is None:
            stream = stream.advance_watermark_to_infinity()
        else:
            stream = stream.advance_watermark_to(to_timestamp(step.watermark))
    return stream.add_elements(bundle) if bundle else stream


def _element(event: Event, record: Callable[[Event], Any] | None) -> Any:
    element = (event.key, event.value) if record is None else record(event)
    return TimestampedValue(element, to_timestamp(event.ts))


def route_and_aggregate(
    records: PCollection[Any], windows: Windows, folder: Path, verdict: str = "stamp", **how: Any
) -> None:
    """Routes, aggregates and keeps; `how` goes to `AggregateWindows`."""
    routed = records | RouteTooLate(windows, verdict)
    keep(routed.accepted | AggregateWindows(windows, **how), folder, "panes")
    keep(routed.too_late, folder, "too_late")
    keep(routed.invalid, folder, "invalid")


def run_records(steps: Iterable[Step], windows: Windows, folder: Path, **how: Any) -> Outcome:
    """Runs plain records on the DirectRunner, judged by the engine.

    Args:
        steps: Records and watermarks.
        windows: The windows.
        folder: An empty folder.
        how: Goes to `AggregateWindows`; `record` and `one_by_one` to `stream_of`.
    """
    stream = stream_of(steps, how.pop("record", None), how.pop("one_by_one", True))
    with direct_pipeline() as pipeline:
        route_and_aggregate(pipeline | stream, windows, folder, **how)
    return outcome(folder)


def mode_of(case: Case) -> int:
    """Gives a case's accumulation mode."""
    return AccumulationMode.DISCARDING if case.discarding else AccumulationMode.ACCUMULATING


def write_steps(steps: Iterable[Step], path: Path) -> None:
    """Writes steps as JSON lines with markers; the end of time is the end of the file."""
    lines: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Event):
            line = {"key": step.key, "value": step.value, "ts": step.ts, "name": step.name}
            lines.append(line)
        elif step.watermark is not None:
            lines.append({"marker": True, "ts": step.watermark - 1})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_steps(path: Path, embedded: bool, settings: ReadSettings = LINE_BY_LINE) -> ReadEvents:
    """Makes the source of a file that `write_steps` wrote."""
    connector = Files([str(path)], JsonLines("key", "value", "name"))
    return ReadEvents(connector, MARKERS, settings, embedded)


class RunCase(beam.PTransform[Any, PCollection[Any]]):
    """A case's whole way, from its file to what is kept of it."""

    def __init__(
        self, case: Case, folder: Path, embedded: bool, verdict: str, settings: ReadSettings
    ) -> None:
        super().__init__()
        self._case, self._folder = case, folder
        self._embedded, self._verdict, self._settings = embedded, verdict, settings

    def expand(self, pbegin: Any) -> PCollection[Any]:
        case, folder = self._case, self._folder
        folder.mkdir(parents=True)
        write_steps(case.steps, folder / "steps.jsonl")
        source = read_steps(folder / "steps.jsonl", self._embedded, self._settings)
        read: ReadEventsResult = pbegin | source
        mode = mode_of(case)
        routed = read.events | RouteTooLate(case.windows, self._verdict)
        panes = routed.accepted | AggregateWindows(case.windows, accumulation_mode=mode)
        keep(panes, folder, "panes")
        keep(routed.too_late, folder, "too_late")
        keep(read.invalid, folder, "unreadable")
        keep(routed.invalid, folder, "invalid")
        return panes


def run_cases_from_files(
    cases: Sequence[Case],
    make_pipeline: MakePipeline,
    folder: Path,
    *,
    embedded: bool,
    verdict: str = "stamp",
    settings: ReadSettings = LINE_BY_LINE,
) -> dict[str, Outcome]:
    """Runs cases by the punctuated file source, all in one pipeline.

    Args:
        cases: The cases. Embedded, one at a time: a DirectRunner job has one TestStream.
        make_pipeline: Makes a pipeline for the engine.
        folder: An empty folder.
        embedded: Whether the engine is Beam's Python DirectRunner.
        verdict: Who judges: `stamp` or `engine`.
        settings: How to read.

    Returns:
        What came out, by the case's name.
    """
    with make_pipeline() as pipeline:
        for case in cases:
            run = RunCase(case, folder / case.id, embedded, verdict, settings)
            _ = pipeline | case.id >> run
    return {case.id: outcome(folder / case.id) for case in cases}


def run_case_from_file(
    case: Case, make_pipeline: MakePipeline, folder: Path, **how: Any
) -> Outcome:
    """Runs one case by the punctuated file source; `how` as for `run_cases_from_files`."""
    return run_cases_from_files([case], make_pipeline, folder, **how)[case.id]

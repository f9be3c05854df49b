"""Writes steps as the cases do: `a:1@3` is a record (key, value, seconds), `wm 7` a watermark."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam

from beam_lateness import AggregateWindows, EventBatch, ReadSettings, RouteTooLate, Windows
from tests.cases.engine import (
    LINE_BY_LINE,
    Outcome,
    direct_pipeline,
    keep,
    outcome,
    read_steps,
    stream_of,
    write_steps,
)
from tests.cases.load import Advance, Step
from tests.model import Event
from tests.transforms.lateness.batches import batch_of


def steps_of(script: str) -> list[Step]:
    """Reads steps, in seconds: `wm 0; a:1@3; wm 6.999; b:2@4; end`.

    Records are named by their place: `0`, `1` ... among the steps.
    """
    steps: list[Step] = []
    for index, text in enumerate(part.strip() for part in script.split(";")):
        if text == "end":
            steps.append(Advance(None))
        elif text.startswith("wm "):
            steps.append(Advance(to_ms(text[3:])))
        else:
            record, at = text.split("@")
            key, value = record.split(":")
            steps.append(Event(key, int(value), to_ms(at), str(index)))
    return steps


def to_ms(text: str) -> int:
    """Gives seconds, written in decimals, in ms."""
    return int(Decimal(text) * 1000)


def run_file(
    steps: Iterable[Step],
    windows: Windows,
    folder: Path,
    settings: ReadSettings = LINE_BY_LINE,
    **how: Any,
) -> Outcome:
    """Runs steps as a stamped file on the DirectRunner; `how` goes to `AggregateWindows`."""
    write_steps(steps, folder / "steps.jsonl")
    with direct_pipeline() as pipeline:
        read = pipeline | read_steps(folder / "steps.jsonl", embedded=True, settings=settings)
        routed = read.events | RouteTooLate(windows)
        keep(routed.accepted | AggregateWindows(windows, **how), folder, "panes")
        keep(routed.too_late, folder, "too_late")
        keep(read.invalid, folder, "unreadable")
        keep(routed.invalid, folder, "invalid")
    return outcome(folder)


def run_batches(
    steps: Iterable[Step], stamps: Iterable[int], windows: Windows, folder: Path, verdict: str
) -> Outcome:
    """Runs batches of one record each, with stamps that need not be the engine's watermark."""
    watermarks = iter(stamps)

    def batch(event: Event) -> EventBatch:
        return batch_of([(event, next(watermarks))])

    stream = stream_of(steps, batch).with_output_types(EventBatch)
    with direct_pipeline() as pipeline:
        batches = pipeline | stream
        batches.element_type = EventBatch
        routed = batches | RouteTooLate(windows, verdict)
        keep(routed.accepted | AggregateWindows(windows), folder, "panes")
        keep(routed.too_late, folder, "too_late")
        keep(routed.invalid, folder, "invalid")
    return outcome(folder)


def composites(pipeline: beam.Pipeline) -> list[Any]:
    """Gives every transform of a pipeline, composite or not."""
    found: list[Any] = []

    class _Visitor(beam.pipeline.PipelineVisitor):
        def enter_composite_transform(self, transform_node: Any) -> None:
            self.visit_transform(transform_node)

        def visit_transform(self, transform_node: Any) -> None:
            found.append(transform_node.transform)

    pipeline.visit(_Visitor())
    return found

"""A pipeline of a user's own on Prism, without `commits`: it writes down the ids that it reads.

python -m tests.runners.kept stream SUBSCRIPTION FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness import (
    EventBatch,
    FieldTime,
    JsonLines,
    PubSub,
    ReadEvents,
    ReadSettings,
    WatermarkStrategy,
)
from beam_lateness.pipelines.flink.options import Job
from beam_lateness.pipelines.runners import choose_engine
from tests.runners.feeds import BOUND_MS


class WriteIds(beam.DoFn):
    """Appends the ids of a batch to a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, element: EventBatch) -> None:
        ids = element.columns.column("id").to_pylist()
        with Path(self._path).open("a") as file:
            file.writelines(f"{each}\n" for each in ids)


def main(subscription: str, path: str) -> None:
    """Runs it, until it is killed."""
    options = PipelineOptions(["--runner=PrismRunner"])
    engine = choose_engine(options, Job(True, True, 1, "run"), None, print)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_MS}ms")
    source = ReadEvents(
        PubSub([subscription], JsonLines("k", "v", "id"), lease="60s"),
        strategy.with_timestamp_assigner(FieldTime("event_time", "ms")),
        ReadSettings(max_future_skew_ms=None),
    )
    pipeline = beam.Pipeline(runner=engine.runner, options=options)
    _ = (pipeline | source).events | beam.ParDo(WriteIds(path))
    pipeline.run().wait_until_finish()


if __name__ == "__main__":
    main(*sys.argv[2:])

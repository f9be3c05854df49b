"""The command, but for this: it writes down every record that it reads, with its stamp, in order.

`RECORD_TO` names the file: JSON lines of split, event times and stamps.
"""

from __future__ import annotations

import os

import orjson

from beam_lateness.pipelines.cli import run
from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.commits.in_flight import InFlight, Read
from beam_lateness.transforms.results import InvalidRecord

_admit = InFlight.admit


def admit(self: InFlight, read: Read) -> tuple[list[EventBatch], list[InvalidRecord]]:
    """Writes down what was read, and goes on."""
    with open(os.environ["RECORD_TO"], "ab") as file:
        for batch in read.batches:
            line = {
                "split": batch.split,
                "event_times": batch.event_times.tolist(),
                "stamps": batch.watermarks.tolist(),
            }
            file.write(orjson.dumps(line) + b"\n")
    return _admit(self, read)


if __name__ == "__main__":
    InFlight.admit = admit  # type: ignore[method-assign]
    run()

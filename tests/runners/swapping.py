"""The command, but for this: it tells when it is about to write results, and may confirm too early.

Before each write to the table the file `TRYING` is made. With `SWAPPED=1` the results count as
written before they are: the mistake that a test must notice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from beam_lateness.pipelines.cli import run
from beam_lateness.transforms.results import Pane, RefusedPane
from beam_lateness.transforms.sinks.upsert import WritePanes
from beam_lateness.transforms.sinks.window_table import WindowTable

_write, _flush = WindowTable.write, WritePanes._flush


def write(self: WindowTable, panes: Iterable[Pane], run: str) -> list[RefusedPane]:
    """Tells, and writes."""
    found = list(panes)
    if found:
        Path(os.environ["TRYING"]).touch()
    return _write(self, found, run)


def flush(self: WritePanes) -> list[RefusedPane]:
    """Confirms, and writes: the wrong way round."""
    if self._panes and self._written is not None:
        self._written(self._panes)
    return _flush(self)


if __name__ == "__main__":
    WindowTable.write = write  # type: ignore[method-assign]
    if os.environ.get("SWAPPED"):
        WritePanes._flush = flush  # type: ignore[method-assign]
    run()

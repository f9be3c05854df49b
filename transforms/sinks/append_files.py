"""`AppendPanesToFiles`: each pane as a row of JSON lines or Parquet files, none ever changed."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Final, Literal, Protocol

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.pvalue import PCollection

from beam_lateness.transforms.private_files import OwnFile, is_writable_folder, write_private
from beam_lateness.transforms.results import Pane, pane_fields
from beam_lateness.transforms.sinks.topics import pane_message

JSONL: Final = "jsonl"
PARQUET: Final = "parquet"
FILE_FORMATS: Final = (JSONL, PARQUET)

# Fixed, whatever the values of a bundle are: so all files are one dataset.
PANE_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("window_start_ms", pa.int64(), nullable=False),
        pa.field("window_end_ms", pa.int64(), nullable=False),
        pa.field("value", pa.string(), nullable=False),
        pa.field("value_number", pa.float64()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("pane_index", pa.int64(), nullable=False),
        pa.field("timing", pa.string(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
    ]
)

_RUN: Final = re.compile(r"[\w.:+-]{1,100}", re.ASCII)  # a file's name has at most 255 bytes


def pane_line(pane: Pane, run: str) -> bytes:
    """Gives a pane as a line of JSON: what `pane_message` gives as a topic's payload.

    Example:
        >>> pane_line(Pane("a", 0, 60_000, 7, 3, 0, "ON_TIME"), "run-1")[:42]
        b'{"key":"a","window_start_ms":0,"window_end'
    """
    return pane_message(pane, run).data + b"\n"


def pane_row(pane: Pane, run: str) -> dict[str, Any]:
    """Gives a pane as a row of `PANE_SCHEMA`.

    Args:
        pane: The pane.
        run: The run that it is of.

    Returns:
        Its fields by name. `key` is text; one that was none is JSON. `value` is the JSON of any
        value, exact: an integer of any size, several aggregates as an object, a number that JSON
        has not (NaN, infinity) as text. `value_number` is the float nearest to it; None for what is
        no number, and for one that no float holds.

    Example:
        >>> row = pane_row(Pane("a", 0, 60_000, 2**64, 3, 0, "ON_TIME"), "run-1")
        >>> row["value"], row["value_number"]
        ('18446744073709551616', 1.8446744073709552e+19)
    """
    message = pane_message(pane, run)
    return {
        **pane_fields(pane, run),
        "key": message.attributes["key"],
        "value": json.dumps(json.loads(message.data)["value"]),
        "value_number": _number(pane.value),
    }


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


class PaneFiles(Protocol):
    """A writer's files."""

    at_once: int
    """How many panes are held before they are written."""

    def write(self, panes: Sequence[Pane]) -> None:
        """Writes panes; they are on the disk when it returns."""


class JsonLinesFiles:
    """Appends panes to a file of its own, with one write.

    Args:
        directory: The folder.
        run: Names the run.
    """

    at_once = 5_000

    def __init__(self, directory: str, run: str) -> None:
        self._run = run
        self._file = OwnFile(partial(_new_path, directory, run, JSONL))

    def write(self, panes: Sequence[Pane]) -> None:
        """Appends panes; after a failure, which may leave a part of a line, goes to a new file."""
        self._file.append(b"".join(pane_line(pane, self._run) for pane in panes))


class ParquetFiles:
    """Writes panes to a new file each time, whole or not at all.

    Args:
        directory: The folder.
        run: Names the run.
    """

    at_once = 50_000  # a file has a schema and a footer: the more rows the better

    def __init__(self, directory: str, run: str) -> None:
        self._directory, self._run = directory, run

    def write(self, panes: Sequence[Pane]) -> None:
        """Writes a file."""
        rows = [pane_row(pane, self._run) for pane in panes]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, PANE_SCHEMA), sink)
        path = _new_path(self._directory, self._run, PARQUET)
        write_private(path, sink.getvalue().to_pybytes())


def _new_path(directory: str, run: str, file_format: str) -> str:
    """Names a file as no other: a second one of its name would take its place."""
    return os.path.join(directory, f"panes-{run}-{uuid.uuid4().hex}.{file_format}")


@dataclass(eq=False)
class AppendPanesToFiles(beam.PTransform[PCollection[Pane], PCollection[Any]]):
    """Writes each pane as a row of a file in a local folder; what is written never changes.

    The fields are key, window_start_ms, window_end_ms, value, count, pane_index, timing and run.
    The files have mode 0600, and the names `panes-RUN-*.jsonl` or `panes-RUN-*.parquet`.

    - JSON lines: a worker appends to a file of its own, whose last line may be partial after a
      crash. A value is as in a topic's message (see `pane_message`).
    - Parquet: a file a bundle (or 50,000 panes), which comes whole or not at all; all of a folder
      are one dataset, of `PANE_SCHEMA`. A value is JSON text, exact whatever it is, and beside it
      a float where it is a number (see `pane_row`). Engines with small bundles make many small
      files.

    A bundle that an engine repeats writes its panes again, and a correction is a row of its own: of
    a key and window, readers take the row of the largest run and, in it, of the largest count, then
    the largest pane_index.

    Watermark: takes a `PCollection[Pane]`, gives nothing.

    Args:
        directory: The folder; it is made, with mode 0700, if need be.
        run: Names this run: letters, digits and any of `_.:+-`. A later run's name must sort after
            it (`runs.new_run`).
        file_format: `jsonl` or `parquet`.
        written: Called with the panes that are on the disk, at least once a bundle; it must be
            picklable, and what it raises fails the bundle.

    Raises:
        ValueError: At construction, if the folder cannot be written, or the run or format is none.

    Example:
        panes | AppendPanesToFiles("panes", run="2026-01-01T00:00", file_format="parquet")
    """

    directory: str
    run: str
    file_format: Literal["jsonl", "parquet"] = JSONL
    written: Callable[[Sequence[Pane]], None] | None = None

    def __post_init__(self) -> None:
        super().__init__()
        if self.file_format not in FILE_FORMATS:
            msg = f"file_format must be one of {', '.join(FILE_FORMATS)}, got {self.file_format!r}"
            raise ValueError(msg)
        if not _RUN.fullmatch(self.run):
            msg = (
                "run must be 1 to 100 letters, digits and any of _ . : + - (it is part of file "
                f"names), got {self.run!r}; runs.new_run() makes one"
            )
            raise ValueError(msg)
        if not is_writable_folder(self.directory):
            msg = (
                f"directory (--output) must be a writable local folder, got {self.directory!r}; "
                "give the path of one, or of one that can be made"
            )
            raise ValueError(msg)

    def expand(self, panes: PCollection[Pane]) -> PCollection[Any]:
        """Writes bundle by bundle."""
        append = _Append(self.directory, self.run, self.file_format, self.written)
        return panes | "Append" >> beam.ParDo(append)


class _Append(beam.DoFn):
    """Collects panes and writes them together."""

    def __init__(
        self,
        directory: str,
        run: str,
        file_format: str,
        written: Callable[[Sequence[Pane]], None] | None = None,
    ) -> None:
        self._directory = directory
        self._run = run
        self._file_format = file_format
        self._written = written

    def setup(self) -> None:
        kind = ParquetFiles if self._file_format == PARQUET else JsonLinesFiles
        self._files: PaneFiles = kind(self._directory, self._run)

    def start_bundle(self) -> None:
        self._panes: list[Pane] = []

    def process(self, element: Pane) -> None:
        self._panes.append(element)
        if len(self._panes) >= self._files.at_once:
            self._flush()

    def finish_bundle(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if not self._panes:
            return
        self._files.write(self._panes)
        panes, self._panes = self._panes, []
        if self._written is not None:
            self._written(panes)

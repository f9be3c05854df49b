"""`UpsertPanes`: the last pane of each key and window, in a table of a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_lateness.transforms import metrics
from beam_lateness.transforms.results import Pane, RefusedPane, refusal
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, WindowTable
from beam_lateness.transforms.sinks.window_values import NUMBER

_ROWS_AT_ONCE: Final = 5000
_REFUSED = metrics.Count(metrics.REFUSED_PANES)


@dataclass(eq=False)
class UpsertPanes(beam.PTransform[PCollection[Pane], PCollection[RefusedPane]]):
    """Writes panes to a SQL table so that each key and window has its latest result.

    An error that may pass (no connection, a lock, a deadlock) is waited out for two minutes. A pane
    that the database refuses for what it holds is given out, as `PCollection[RefusedPane]`, or ends
    the job; the panes beside it are written.

    Watermark: leaves it as it is.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`.
        run: Names this run; a later run's name must sort after it (`runs.new_run`). A run begun
            again from the start so replaces what an interrupted one left.
        written: Called with the panes of each transaction once it is committed; it must be
            picklable.
        table: The table's name.
        values: The kind of the panes' values, which decides the column's type in PostgreSQL:
            `number` (NUMERIC), or `json` (JSONB) for several aggregates or a `CombineFn`.
        audit: Whether each change is kept in an audit trail (see `verify_audit`); with
            `AggregateWindows(trace=True)` it names the late records of a correction.
        emit_refused: Whether refused panes are given out, to be kept elsewhere; else one ends the
            job.

    Raises:
        ValueError: At construction, if the table cannot be used (see `WindowTable`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     UpsertPanes(f"sqlite:///{folder}/windows.db", run="2026-01-01T00:00").table
        'windows'
    """

    url: str = field(repr=False)  # may hold a password
    run: str
    written: Callable[[Sequence[Pane]], None] | None = None
    table: str = TABLE_NAME
    values: str = NUMBER
    audit: bool = False
    emit_refused: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self._opener()().close()

    def _opener(self) -> Callable[[], WindowTable]:
        return partial(WindowTable, self.url, self.table, self.values, audit=self.audit)

    def expand(self, panes: PCollection[Pane]) -> PCollection[RefusedPane]:
        """Writes bundle by bundle."""
        upsert = WritePanes(self._opener(), self.run, self.written, self.emit_refused)
        refused = panes | "Upsert" >> beam.ParDo(upsert)
        refused.element_type = RefusedPane
        return refused


class SinkTable(Protocol):
    """A table that takes panes."""

    def write(self, panes: Iterable[Pane], run: str) -> list[RefusedPane]:
        """Writes panes of one run; gives those that are refused."""

    def close(self) -> None:
        """Closes the connections."""


class WritePanes(beam.DoFn):
    """Collects panes and writes them in batches.

    Args:
        open_table: Opens the table, where the worker is.
        run: Names the run.
        written: Called with what was written.
        emit_refused: Whether refused panes are given out; else one ends the job.
    """

    def __init__(
        self,
        open_table: Callable[[], SinkTable],
        run: str,
        written: Callable[[Sequence[Pane]], None] | None = None,
        emit_refused: bool = False,
    ) -> None:
        self._open = open_table
        self._run = run
        self._written = written
        self._emit_refused = emit_refused

    def setup(self) -> None:
        self._table = self._open()

    def start_bundle(self) -> None:
        self._panes: list[Pane] = []

    def process(self, element: Pane) -> Iterable[RefusedPane]:
        self._panes.append(element)
        return self._flush() if len(self._panes) >= _ROWS_AT_ONCE else ()

    def finish_bundle(self) -> Iterable[WindowedValue]:
        return [GlobalWindows.windowed_value(each) for each in self._flush()]

    def _flush(self) -> list[RefusedPane]:
        panes, self._panes = self._panes, []
        try:
            return self._write(panes)
        except Exception:
            self._table.close()  # not every engine tears down what has failed
            raise

    def _write(self, panes: Sequence[Pane]) -> list[RefusedPane]:
        refused = self._table.write(panes, self._run)
        _REFUSED.inc(len(refused))
        if refused and not self._emit_refused:
            raise RuntimeError(refusal(*refused[0]))
        if refused:  # whoever keeps them tells that they are written
            known = {id(each.pane) for each in refused}
            panes = [pane for pane in panes if id(pane) not in known]
        if panes and self._written is not None:
            self._written(panes)
        return refused

    def teardown(self) -> None:
        self._table.close()

"""`UpsertPanesToBigQuery`: the last pane of each key and window, in a table of BigQuery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.utils.windowed_value import WindowedValue

from beam_lateness.transforms.metrics import REFUSED_PANES, Count
from beam_lateness.transforms.results import Pane, RefusedPane, refusal
from beam_lateness.transforms.sinks.bigquery_writer import (
    EXTRA,
    LIBRARY,
    VALUE_TYPES,
    RowEncoder,
    TableWriter,
    ValueType,
)
from beam_lateness.transforms.sinks.topic_messages import load_client
from beam_lateness.transforms.times import Duration, duration_ms

BIGQUERY: Final = "bigquery://"
BIGQUERY_FORM: Final = "bigquery://PROJECT/DATASET/TABLE"
_ROWS_AT_ONCE: Final = 5000

# https://cloud.google.com/resource-manager/docs/creating-managing-projects (an old project may have
# a domain before its name), https://cloud.google.com/bigquery/docs/datasets#dataset-naming and
# https://cloud.google.com/bigquery/docs/tables#table_naming, of which only ASCII without spaces.
_PARTS: Final = {
    "project": re.compile(r"(?:[a-z0-9.-]{1,253}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"),
    "dataset": re.compile(r"[A-Za-z0-9_]{1,1024}"),
    "table": re.compile(r"[A-Za-z0-9_-]{1,1024}"),
}
_RULES: Final = {
    "project": "6 to 30 small letters, digits and '-', a letter first",
    "dataset": "letters, digits and '_'",
    "table": "letters, digits, '_' and '-'",
}


_RUN: Final = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{6})Z-([0-9a-f]{4})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class BigQueryTable(NamedTuple):
    """A table of BigQuery."""

    project: str
    dataset: str
    table: str

    @property
    def stream(self) -> str:
        """The name of its default stream in the Storage Write API."""
        path = f"projects/{self.project}/datasets/{self.dataset}/tables/{self.table}"
        return f"{path}/streams/_default"

    @property
    def sql_name(self) -> str:
        """Its name in SQL, quoted."""
        return f"`{self.project}.{self.dataset}.{self.table}`"


def parse_table(url: str, name: str = "url") -> BigQueryTable:
    """Reads a table's URL.

    Args:
        url: `bigquery://PROJECT/DATASET/TABLE`.
        name: The parameter or flag, for the error message.

    Raises:
        ValueError: If it is no such URL; it says what is wrong.

    Example:
        >>> parse_table("bigquery://my-shop/sales/windows").sql_name
        '`my-shop.sales.windows`'
    """
    parts = url.removeprefix(BIGQUERY).split("/")
    if not url.startswith(BIGQUERY) or len(parts) != len(_PARTS):
        msg = f"{name} must be a table of BigQuery, got {url!r}; give {BIGQUERY_FORM}"
        raise ValueError(msg)
    for part, (kind, pattern) in zip(parts, _PARTS.items(), strict=True):
        if not pattern.fullmatch(part):
            rule = f"has {part!r} where a {kind} is needed ({_RULES[kind]})"
            msg = f"{name} {url!r} {rule}; give {BIGQUERY_FORM}"
            raise ValueError(msg)
    return BigQueryTable(*parts)


def create_table_sql(url: str, value_type: ValueType = "JSON", max_staleness: Duration = 0) -> str:
    """Gives the statement that creates a table for `UpsertPanesToBigQuery`; run it once.

    Args:
        url: `bigquery://PROJECT/DATASET/TABLE`.
        value_type: The type of the column `value`; the transform must be given the same.
        max_staleness: How old the result of a query may be: whole **seconds** up to 24 h. With 0,
            every query applies the changes that are pending, which takes time and costs more.

    Raises:
        ValueError: If an argument is wrong.

    Example:
        >>> print(create_table_sql("bigquery://my-shop/sales/windows", "INT64", "15m"))
        CREATE TABLE `my-shop.sales.windows` (
          key STRING NOT NULL,
          window_start_ms INT64 NOT NULL,
          window_end_ms INT64 NOT NULL,
          value INT64 NOT NULL,
          count INT64 NOT NULL,
          pane_index INT64 NOT NULL,
          timing STRING NOT NULL,
          run STRING NOT NULL,
          PRIMARY KEY (key, window_start_ms) NOT ENFORCED
        )
        CLUSTER BY key, window_start_ms
        OPTIONS (max_staleness = INTERVAL 900 SECOND);
    """
    table = parse_table(url)
    _check_value_type(value_type)
    seconds, rest_ms = divmod(duration_ms(max_staleness, name="max_staleness"), 1000)
    if rest_ms or seconds > 86_400:
        msg = f"max_staleness must be whole seconds up to 24h, got {max_staleness!r}; give 15m"
        raise ValueError(msg)
    options = f"\nOPTIONS (max_staleness = INTERVAL {seconds} SECOND)" if seconds else ""
    return f"""\
CREATE TABLE {table.sql_name} (
  key STRING NOT NULL,
  window_start_ms INT64 NOT NULL,
  window_end_ms INT64 NOT NULL,
  value {value_type} NOT NULL,
  count INT64 NOT NULL,
  pane_index INT64 NOT NULL,
  timing STRING NOT NULL,
  run STRING NOT NULL,
  PRIMARY KEY (key, window_start_ms) NOT ENFORCED
)
CLUSTER BY key, window_start_ms{options};"""


def _check_value_type(value_type: str) -> None:
    if value_type not in VALUE_TYPES:
        msg = f"value_type must be one of {', '.join(VALUE_TYPES)}; got {value_type!r}"
        raise ValueError(msg)


def run_sections(run: str) -> str:
    """Gives a run's name as the first two sections of change sequence numbers.

    They sort as the names do: the microseconds since the epoch, then the four digits.

    Raises:
        ValueError: If the name is not of the form that `runs.new_run` gives.

    Example:
        >>> run_sections("20260102T030405.000006Z-ab12")
        '0006475EF64CF346/000000000000AB12'
    """
    found = _RUN.fullmatch(run)
    try:
        if found is None:
            raise ValueError
        began = datetime.strptime(found[1], "%Y%m%dT%H%M%S.%f").replace(tzinfo=timezone.utc)
        if began < _EPOCH:
            raise ValueError
    except ValueError:
        form = "YYYYMMDDTHHMMSS.ffffffZ-xxxx since 1970, with four hexadecimal digits"
        msg = (
            f"run must be a name of the form {form}, which BigQuery can order; got {run!r}; "
            "take one of beam_lateness.pipelines.runs.new_run()"
        )
        raise ValueError(msg) from None
    return f"{(began - _EPOCH) // timedelta(microseconds=1):016X}/{int(found[2], 16):016X}"


def open_client() -> Any:
    """Opens a `BigQueryWriteClient` with the application default credentials.

    Raises:
        ValueError: If the library is missing.
    """
    return load_client(LIBRARY, EXTRA, BIGQUERY).BigQueryWriteClient()


@dataclass(eq=False)
class UpsertPanesToBigQuery(beam.PTransform[PCollection[Pane], PCollection[RefusedPane]]):
    """Writes panes to BigQuery so that each key and window has its latest result.

    It sends upserts of change data capture over the Storage Write API. Of a key and window the row
    of the newest run stands and, in it, the one on the most records, of several the one with the
    largest index: as `UpsertPanes` has it, so that what comes twice, or out of order, changes
    nothing. Create the table with `create_table_sql`. A row that only an earlier, broken off run
    wrote stays: `RemoveStale` knows no BigQuery.

    Tested against a fake of the API, also over gRPC, and never against the service itself.

    A pane that the table cannot hold is counted as `refused_panes`, and given out in its window, or
    ends the job. What BigQuery cannot take for the
    moment (UNAVAILABLE, ABORTED, INTERNAL, DEADLINE_EXCEEDED) is sent again for about two minutes;
    then, and after any other error, the bundle fails with `AppendError`.

    Watermark: takes a `PCollection[Pane]`, gives a `PCollection[RefusedPane]`.

    Args:
        url: `bigquery://PROJECT/DATASET/TABLE`.
        run: Names this run, as `runs.new_run` does: later names must be of later runs.
        value_type: The type of the column `value`: "INT64", "FLOAT64", "BIGNUMERIC" (all integers
            up to 38 digits, floats and `Decimal`s to 38 digits after the point), or "JSON", which
            takes every aggregate; in it, what is no JSON number (NaN, 65 bits) is text.
        written: Called with the panes of each batch that BigQuery has taken, or that newer ones of
            the batch replace; it must be picklable; what it raises fails the bundle.
        open_client: Opens the client, once a worker thread; it must be picklable.
        emit_refused: Whether refused panes are given out, to be kept elsewhere; else one ends the
            job.

    Raises:
        ValueError: At construction, if an argument is wrong or Google's library is not installed.
            The table itself is not looked at.

    Example:
        refused = panes | UpsertPanesToBigQuery("bigquery://my-shop/sales/windows", run=new_run())
    """

    url: str
    run: str
    value_type: ValueType = "JSON"
    written: Callable[[Sequence[Pane]], None] | None = None
    open_client: Callable[[], Any] = open_client
    emit_refused: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        parse_table(self.url, "output (--output)")
        run_sections(self.run)
        _check_value_type(self.value_type)
        load_client(LIBRARY, EXTRA, self.url)

    def expand(self, panes: PCollection[Pane]) -> PCollection[RefusedPane]:
        """Writes bundle by bundle."""
        refused = panes | "Upsert" >> beam.ParDo(
            _Upsert(
                self.url,
                self.run,
                self.value_type,
                self.written,
                self.open_client,
                self.emit_refused,
            )
        )
        refused.element_type = RefusedPane
        return refused


class _Upsert(beam.DoFn):
    """Collects panes and writes them in batches."""

    def __init__(
        self,
        url: str,
        run: str,
        value_type: ValueType,
        written: Callable[[Sequence[Pane]], None] | None,
        open_client: Callable[[], Any],
        emit_refused: bool = False,
    ) -> None:
        self._url = url
        self._run = run
        self._value_type = value_type
        self._written = written
        self._open_client = open_client
        self._emit_refused = emit_refused
        self._refused = Count(REFUSED_PANES)

    def setup(self) -> None:
        encoder = RowEncoder(self._run, run_sections(self._run), self._value_type)
        stream = parse_table(self._url).stream
        self._writer = TableWriter(self._url, stream, encoder, self._open_client())

    def start_bundle(self) -> None:
        self._taken: list[tuple[Pane, Any, Any]] = []

    def process(
        self,
        element: Pane,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterable[Any]:
        self._taken.append((element, timestamp, window))
        return self._flush() if len(self._taken) >= _ROWS_AT_ONCE else ()

    def finish_bundle(self) -> Iterable[Any]:
        return self._flush()

    def _flush(self) -> list[WindowedValue]:
        taken, self._taken = self._taken, []
        details = self._writer.write([pane for pane, _, _ in taken])
        self._refused.inc(len(details))
        if details and not self._emit_refused:
            place, detail = min(details.items())
            raise RuntimeError(refusal(taken[place][0], detail))
        written = [pane for place, (pane, _, _) in enumerate(taken) if place not in details]
        if written and self._written is not None:
            self._written(written)
        refused = []
        for place, detail in sorted(details.items()):
            pane, timestamp, window = taken[place]
            refused.append(WindowedValue(RefusedPane(pane, detail), timestamp, (window,)))
        return refused

    def teardown(self) -> None:
        self._writer.close()

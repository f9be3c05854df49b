"""Writes panes to a table of BigQuery, with Google's Storage Write API. No Beam pipeline here."""

from __future__ import annotations

import functools
import json
import math
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from apache_beam.utils.retry import FuzzedExponentialIntervals
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from beam_lateness.transforms.results import Pane, key_text, pane_fields
from beam_lateness.transforms.sinks.topic_messages import load_client

ValueType: TypeAlias = Literal["INT64", "FLOAT64", "BIGNUMERIC", "JSON"]
VALUE_TYPES: Final[tuple[ValueType, ...]] = get_args(ValueType)
LIBRARY: Final = "google.cloud.bigquery_storage_v1"
EXTRA: Final = "gcp"

# https://cloud.google.com/bigquery/docs/change-data-capture: the two columns that no table has.
CHANGE_TYPE: Final = "_CHANGE_TYPE"
CHANGE_SEQUENCE_NUMBER: Final = "_CHANGE_SEQUENCE_NUMBER"

# https://cloud.google.com/bigquery/quotas#write-api-limits: a request takes 10 MB (since 2025, 20).
REQUEST_BYTES: Final = 9_000_000
_FRAME_BYTES: Final = 6  # of a row in a request: its tag, and its length in up to five bytes
_HEADER_FRAME_BYTES: Final = 64
# A call ends after this, so that one without an answer is not waited for without end.
_CALL_S: Final = 600.0
_RETRIES: Final = 8
_LONGEST_DELAY_S: Final = 30.0
_TRANSIENT: Final = {4: "DEADLINE_EXCEEDED", 10: "ABORTED", 13: "INTERNAL", 14: "UNAVAILABLE"}

_INT64: Final = range(-(2**63), 2**63)

# https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types#decimal_types: 38 digits
# after the point, and 256 bits in all.
_BIGNUMERIC_STEP: Final = Decimal("1E-38")
_BIGNUMERIC_LIMIT: Final = Decimal(2**255 - 1).scaleb(-38, Context(prec=90))
_DIGITS: Final = Context(prec=90)

_Field: TypeAlias = descriptor_pb2.FieldDescriptorProto
_VALUE_FIELDS: Final[Mapping[str, int]] = {
    "INT64": _Field.TYPE_INT64,
    "FLOAT64": _Field.TYPE_DOUBLE,
    "BIGNUMERIC": _Field.TYPE_STRING,
    "JSON": _Field.TYPE_STRING,
}


class AppendError(RuntimeError):
    """BigQuery has not taken rows, and it is not the rows' fault."""


class _TransientError(Exception):
    """The same request may be taken the next time."""


def row_descriptor(value_type: ValueType) -> Any:
    """Describes a row as the Storage Write API takes it: a `DescriptorProto`.

    Its columns: key, window_start_ms, window_end_ms, value, count, pane_index, timing, run; and the
    two of change data capture.

    Example:
        >>> [field.name for field in row_descriptor("JSON").field][-2:]
        ['_CHANGE_TYPE', '_CHANGE_SEQUENCE_NUMBER']
    """
    text, integer = _Field.TYPE_STRING, _Field.TYPE_INT64
    columns = {
        "key": text,
        "window_start_ms": integer,
        "window_end_ms": integer,
        "value": _VALUE_FIELDS[value_type],
        "count": integer,
        "pane_index": integer,
        "timing": text,
        "run": text,
        CHANGE_TYPE: text,
        CHANGE_SEQUENCE_NUMBER: text,
    }
    descriptor = descriptor_pb2.DescriptorProto(name="PaneRow")
    for number, (name, kind) in enumerate(columns.items(), 1):
        descriptor.field.add(name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    return descriptor


@functools.cache
def row_class(value_type: ValueType) -> Any:
    """Gives the class of protobuf messages that a row is."""
    file = descriptor_pb2.FileDescriptorProto(name=f"pane_row_{value_type}.proto", syntax="proto2")
    file.message_type.add().CopyFrom(row_descriptor(value_type))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("PaneRow"))


def encode_value(value: Any, value_type: ValueType) -> int | float | str:
    """Fits an aggregate to a column, without loss.

    Raises:
        ValueError: If the column cannot hold it.

    Example:
        >>> encode_value(2**70, "BIGNUMERIC"), encode_value({"sum": 2, "mean": 0.5}, "JSON")
        ('1180591620717411303424', '{"sum": 2, "mean": 0.5}')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value_type == "JSON":
        return json.dumps(_plain(value), default=str)
    if value_type == "INT64" and isinstance(value, int) and value in _INT64:
        return int(value)
    if value_type == "FLOAT64" and isinstance(value, (int, float)) and _is_exact(value):
        return float(value)
    if value_type == "BIGNUMERIC" and isinstance(value, (int, float, Decimal)):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if number.is_finite() and number.copy_abs() <= _BIGNUMERIC_LIMIT:
            # Only a float, or a Decimal, can have more digits than the column.
            return f"{number.quantize(_BIGNUMERIC_STEP, context=_DIGITS).normalize(_DIGITS):f}"
    msg = f"value {value!r:.100} is none of a column {value_type}; give another value_type"
    raise ValueError(msg)


def _is_exact(number: float) -> bool:
    if isinstance(number, float):
        return True
    return abs(number) < 2**1023 and int(float(number)) == number  # more would overflow


def _plain(value: Any) -> Any:
    """Fits a value to BigQuery's JSON, as `UpsertPanes` does.

    It has no numbers that are none (NaN), and would round an integer beyond 64 bits: both are text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {
            name if isinstance(name, str) else json.dumps(_plain(name), default=str): _plain(each)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, int) and value not in _INT64:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


class Row(NamedTuple):
    """A pane, ready to be sent; of its cell, the one of the greatest order is the newest."""

    place: int
    cell: tuple[str, int]
    order: tuple[int, int]
    data: bytes


class RowEncoder:
    """Encodes the panes of a run.

    Args:
        run: The run's name.
        sections: The first sections of its change sequence numbers.
        value_type: The type of the column `value`.
    """

    def __init__(self, run: str, sections: str, value_type: ValueType) -> None:
        self._run = run
        self._sections = sections
        self._value_type = value_type
        self._class = row_class(value_type)
        self.descriptor = row_descriptor(value_type)

    def encode(self, place: int, pane: Pane) -> Row:
        """Encodes a pane.

        Raises:
            ValueError: If the table cannot hold it.
        """
        if pane.count < 0 or pane.index < 0:
            msg = f"count and index must not be negative, got {pane.count} and {pane.index}"
            raise ValueError(msg)
        key = key_text(pane.key)
        row = self._class(
            **pane_fields(pane, self._run)
            | {
                "key": key,
                "value": encode_value(pane.value, self._value_type),
                CHANGE_TYPE: "UPSERT",
                # Padded, so that the order is the same whether it is read as numbers or as text.
                CHANGE_SEQUENCE_NUMBER: f"{self._sections}/{pane.count:016X}/{pane.index:016X}",
            }
        )
        order = (pane.count, pane.index)
        return Row(place, (key, pane.window_start), order, row.SerializeToString())


class TableWriter:
    """Upserts panes of one run into a table, over one connection that is kept.

    Args:
        url: The table's URL, for messages.
        stream: The table's default stream.
        encoder: Makes rows of panes.
        client: A `BigQueryWriteClient`; `close` closes it.
        sleep: Waits for some seconds.

    Raises:
        ValueError: If the library is missing.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        encoder: RowEncoder,
        client: Any,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        self._stream = stream
        self._encoder = encoder
        self._client = client
        self._sleep = sleep
        self._types = load_client(LIBRARY, EXTRA, url).types
        first = self._request([], first=True)
        header = type(first).pb(first).ByteSize() + _HEADER_FRAME_BYTES
        self._room = REQUEST_BYTES - header
        self._requests: queue.SimpleQueue[Any] | None = None
        self._responses: Iterator[Any] = iter(())

    def write(self, panes: Sequence[Pane]) -> dict[int, str]:
        """Upserts panes; of each key and window, only the newest is sent.

        Where that one is refused, the next newest is sent, as if they had come apart.

        Returns:
            Of each pane that the table does not take: its place in `panes`, and why.

        Raises:
            AppendError: If BigQuery takes nothing now; panes may have been written by then.
        """
        refused: dict[int, str] = {}
        cells: dict[tuple[str, int], list[Row]] = {}
        for place, pane in enumerate(panes):
            try:
                row = self._encoder.encode(place, pane)
                if len(row.data) + _FRAME_BYTES > self._room:
                    msg = f"a row of {len(row.data):,} bytes is too large for BigQuery"
                    raise ValueError(msg)
            except (TypeError, ValueError) as error:  # protobuf raises both
                refused[place] = str(error)
            else:
                cells.setdefault(row.cell, []).append(row)
        for rows in cells.values():
            rows.sort(key=_order)
        while cells:
            newest = [cells[cell].pop() for cell in sorted(cells)]
            for rows in self._parts(newest):
                refused |= self._append(rows)
            again = {row.cell for row in newest if row.place in refused}
            cells = {cell: rows for cell, rows in cells.items() if rows and cell in again}
        return refused

    def close(self) -> None:
        """Closes the connection and the client."""
        self._disconnect()
        self._client.transport.close()

    def _parts(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        part: list[Row] = []
        size = 0
        for row in rows:
            needed = len(row.data) + _FRAME_BYTES
            if part and size + needed > self._room:
                yield part
                part, size = [], 0
            part.append(row)
            size += needed
        yield part

    def _append(self, rows: list[Row]) -> dict[int, str]:
        """Sends rows until BigQuery has taken all but those that it refuses."""
        refused: dict[int, str] = {}
        while rows:
            # With one bad row it takes none, and tells the bad ones.
            errors = {error.index: error.message for error in self._send(rows).row_errors}
            if not errors:
                break
            if not errors.keys() <= set(range(len(rows))):
                msg = f"{self._url}: BigQuery refused rows {sorted(errors)} of {len(rows)}"
                raise AppendError(msg)
            refused |= {rows[at].place: why for at, why in errors.items()}
            rows = [row for at, row in enumerate(rows) if at not in errors]
        return refused

    def _send(self, rows: Sequence[Row]) -> Any:
        delays = iter(FuzzedExponentialIntervals(1.0, _RETRIES, max_delay_secs=_LONGEST_DELAY_S))
        while True:
            try:
                return self._exchange(rows)
            except _TransientError as error:
                delay = next(delays, None)
                if delay is None:
                    msg = f"{self._url}: no rows taken after {_RETRIES} retries: {error}"
                    raise AppendError(msg) from error
                self._sleep(delay)

    def _exchange(self, rows: Sequence[Row]) -> Any:
        """Sends one request and waits for its response."""
        try:
            response = self._call(rows)
        except Exception as error:  # of the client, its transport, or the credentials
            self._disconnect()
            code = getattr(error, "grpc_status_code", None)
            if code is not None and code.name in _TRANSIENT.values():
                raise _TransientError(str(error)) from error
            raise AppendError(self._explain(error)) from error
        if response is None:
            self._disconnect()
            msg = "BigQuery closed the connection"
            raise _TransientError(msg)
        if not response.row_errors and response.error.code:
            self._disconnect()
            why = f"{response.error.message} (code {response.error.code})"
            if response.error.code in _TRANSIENT:
                raise _TransientError(why)
            raise AppendError(self._explain(why))
        return response

    def _call(self, rows: Sequence[Row]) -> Any:
        first = self._requests is None
        if self._requests is None:
            self._requests = queue.SimpleQueue()
        self._requests.put(self._request(rows, first=first))
        if first:  # the client may wait for the first response already here
            self._responses = self._client.append_rows(
                iter(self._requests.get, None),
                retry=None,
                timeout=_CALL_S,
                # Tells Google's front end the region; the client adds it to other calls itself.
                metadata=(("x-goog-request-params", f"write_stream={self._stream}"),),
            )
        return next(iter(self._responses), None)

    def _request(self, rows: Sequence[Row], *, first: bool) -> Any:
        proto_rows = self._types.AppendRowsRequest.ProtoData(
            rows=self._types.ProtoRows(serialized_rows=[row.data for row in rows])
        )
        if first:
            proto_rows.writer_schema = self._types.ProtoSchema(
                proto_descriptor=self._encoder.descriptor
            )
        return self._types.AppendRowsRequest(write_stream=self._stream, proto_rows=proto_rows)

    def _disconnect(self) -> None:
        if self._requests is not None:
            self._requests.put(None)  # ends the call
            self._requests, self._responses = None, iter(())

    def _explain(self, error: object) -> str:
        return (
            f"{self._url}: {type(error).__name__ if not str(error) else error}; the table must be "
            "as create_table_sql makes it, and the account needs the role BigQuery Data Editor"
        )


def _order(row: Row) -> tuple[int, int]:
    return row.order

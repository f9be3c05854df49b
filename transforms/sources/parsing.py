"""Blocks of lines to columns: pyarrow for all that is regular, line by line for what is not.

A block is cut into lines; the runs of regular-looking lines go to pyarrow at once. Where pyarrow
refuses a run, the run is halved until only the lines next to the bad one are read by `Fields.read`,
so one bad line costs a few lines, not its block, and every line is judged by the same rules.
"""

from __future__ import annotations

import io
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from beam_lateness.transforms.sources.blocks import Columns, Indices, Lines, Rejected
from beam_lateness.transforms.sources.records import (
    BadRecordError,
    Fields,
    Line,
    Record,
    read_csv_line,
    read_json_line,
)
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS, Flags
from beam_lateness.transforms.watermarks.timestamps import FieldTime, MessageTime

_SMALL_RUN: Final = 64  # lines below which reading line by line beats another call of pyarrow
_NULL_AFTER_OBJECT: Final = re.compile(rb"\}\s*null")
_NOT_A_NUMBER: Final = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf)")  # pyarrow takes them for numbers
_DEEP: Final = 500  # brackets in a line from which its nesting may be too deep for Python
_WIDEST_INTEGER: Final = 2.0**63  # floats from here on may have been integers that fit no 64 bits


class _NotRegularError(Exception):
    """A run that pyarrow cannot be trusted with."""


class BlockParser(ABC):
    """Parses blocks of one input; made by a format's `bind`, which settles the field types.

    Args:
        fields: What the fields mean; its time unit is settled.
        sample: The first records of the input: their types are what pyarrow is told to expect.
            They change the speed, never the result.
    """

    def __init__(self, fields: Fields, sample: Iterable[Line]) -> None:
        self.fields = fields
        self._column_types = self._types(list(sample))

    @abstractmethod
    def read_line(self, raw: bytes) -> Line:
        """Parses one line into its fields, or raises `BadRecordError`."""

    @abstractmethod
    def _read_run(self, data: bytes, rows: int) -> pa.Table:
        """Parses regular lines with pyarrow, or raises `_NotRegularError` or `pa.ArrowInvalid`."""

    def _regular(self, lines: Lines) -> Flags:
        """Marks the lines that may go to pyarrow."""
        return np.ones(len(lines), dtype=np.bool_)

    def parse(self, lines: Lines, latest_ms: int | None = None) -> tuple[Columns, list[Rejected]]:
        """Parses a block.

        Args:
            lines: Its lines.
            latest_ms: An event time after this one is "from the future"; None for no limit.

        Returns:
            The records and markers in order, and the lines that are neither.
        """
        parts: list[Columns] = []
        rejected: list[Rejected] = []
        regular = self._regular(lines)
        cuts = np.flatnonzero(np.diff(regular)) + 1
        bounds = [0, *cuts.tolist(), len(lines)]
        for low, high in itertools.pairwise(bounds):
            if low < high and regular[low]:
                self._parse_run(lines, low, high, latest_ms, parts, rejected)
            else:
                self._parse_each(lines, range(low, high), latest_ms, parts, rejected)
        if not parts:
            return Columns.of([], []), rejected
        rejected.sort(key=lambda row: row.line)
        return Columns.concat(parts), rejected

    def _parse_run(
        self,
        lines: Lines,
        low: int,
        high: int,
        latest_ms: int | None,
        parts: list[Columns],
        rejected: list[Rejected],
    ) -> None:
        if self._column_types is not None:
            try:
                columns, odd = self._columns(lines, low, high, latest_ms)
            except (_NotRegularError, pa.ArrowInvalid, UnicodeDecodeError, ValueError):
                pass
            else:
                parts.append(columns)
                self._parse_each(lines, (odd + low).tolist(), latest_ms, parts, rejected)
                return
        if self._column_types is None or high - low <= _SMALL_RUN:
            self._parse_each(lines, range(low, high), latest_ms, parts, rejected)
            return
        middle = (low + high) // 2
        self._parse_run(lines, low, middle, latest_ms, parts, rejected)
        self._parse_run(lines, middle, high, latest_ms, parts, rejected)

    def _parse_each(
        self,
        lines: Lines,
        numbers: Iterable[int],
        latest_ms: int | None,
        parts: list[Columns],
        rejected: list[Rejected],
    ) -> None:
        good: list[int] = []
        records: list[Record] = []
        for number in numbers:
            raw, line = lines[number], None
            try:
                if number in lines.problems:
                    raise lines.problems[number]
                line = self.read_line(raw)
                beside = lines.event_times(number, number + 1)
                given_ms = None if beside is None else int(beside[0])
                records.append(self.fields.read(line, latest_ms, given_ms))
                good.append(number)
            except BadRecordError as error:
                own = None if line is None else self.fields.read_id(line)
                rejected.append(Rejected(number, error.reason, error.detail, raw, own))
        if good:
            parts.append(Columns.of(good, records))

    def _columns(
        self, lines: Lines, low: int, high: int, latest_ms: int | None
    ) -> tuple[Columns, Indices]:
        """Parses a run at once; gives its good rows and the rows to look at one by one."""
        data = lines.data[lines.starts[low] : lines.ends[high - 1]]
        if not data.isascii():
            data.decode()
        table = self._read_run(data, high - low)
        if table.num_rows != high - low:
            raise _NotRegularError
        fields, rows = self.fields, table.num_rows
        beside = lines.event_times(low, high)
        odd = np.zeros(rows, dtype=np.bool_)
        if beside is not None:
            event_time = beside
        else:
            assert isinstance(fields.timestamps, FieldTime)  # noqa: S101 (see _types)
            times = _one(table, fields.timestamps.field)
            event_time = fields.timestamps.column_to_ms(times)
            odd |= _nulls(times)
        key = _one(table, fields.key)
        value = pa.nulls(rows, pa.int64()) if fields.value is None else _one(table, fields.value)
        ids = pa.nulls(rows, pa.string()) if fields.id is None else _one(table, fields.id)
        latest = MAX_EVENT_TIME_MS if latest_ms is None else min(latest_ms, MAX_EVENT_TIME_MS)
        odd |= (event_time < MIN_EVENT_TIME_MS) | (event_time > latest)
        bare = _nulls(key)
        if fields.value is not None:
            bare |= _nulls(value)
            if pa.types.is_floating(value.type):
                numbers = value.fill_null(0.0).to_numpy(zero_copy_only=False)
                bare |= ~(np.abs(numbers) < _WIDEST_INTEGER)  # NaN too
        if fields.marker is None:
            marker = np.zeros(rows, dtype=np.bool_)
        else:
            flags = pc.fill_null(_one(table, fields.marker), False)
            marker = flags.to_numpy(zero_copy_only=False)
        odd |= bare & ~marker
        columns = Columns(
            np.arange(low, high, dtype=np.int64),
            event_time,
            marker,
            key.cast(pa.string()),
            value,
            ids.cast(pa.string()),
        )
        if not odd.any():
            return columns, np.empty(0, dtype=np.int64)
        return columns.take(np.flatnonzero(~odd)), np.flatnonzero(odd)

    def _types(self, sample: list[Line]) -> dict[str, Any] | None:
        """The Arrow type of each field; None where the columnar way is closed.

        It is closed to a function as timestamp assigner, and where one field must be two types.
        """
        fields = self.fields
        if not isinstance(fields.timestamps, (FieldTime, MessageTime)):
            return None

        def seen(name: str, kind: type) -> bool:
            return any(isinstance(line.get(name), kind) for line in sample)

        wanted = []
        if isinstance(fields.timestamps, FieldTime):
            wanted.append((fields.timestamps.field, fields.timestamps.column_type))
        texts = [name for name in (fields.key, fields.id) if name is not None]
        wanted += [(name, pa.int64() if seen(name, int) else pa.string()) for name in texts]
        if fields.value is not None:
            kind = pa.float64() if seen(fields.value, float) else pa.int64()
            wanted.append((fields.value, kind))
        if fields.marker is not None:
            wanted.append((fields.marker, pa.bool_()))
        types = dict(wanted)
        return types if all(types[name] == kind for name, kind in wanted) else None


class JsonLinesParser(BlockParser):
    """Parses JSON lines."""

    def read_line(self, raw: bytes) -> Line:
        """Parses one line into its fields."""
        return read_json_line(raw, self.fields)

    def _regular(self, lines: Lines) -> Flags:
        # pyarrow reads a stream of values, whatever the lines: a run of "{...}" lines that gives
        # as many rows as lines has exactly one object a line. (A bare `null` crashes it.)
        last = len(lines.data) - 1
        if last < 0:
            return np.zeros(len(lines), dtype=np.bool_)
        regular: Flags = (lines.bytes_[np.minimum(lines.starts, last)] == ord("{")) & (
            lines.bytes_[lines.ends - 1] == ord("}")
        )
        regular[lines.irregular()] = False
        # Python limits the depth of nesting where pyarrow does not: one of them must decide.
        for line in np.flatnonzero(lines.ends - lines.starts >= 2 * _DEEP).tolist():
            raw = lines[line]
            if raw.count(b"[") + raw.count(b"{") >= _DEEP:
                regular[line] = False
        return regular

    def _read_run(self, data: bytes, rows: int) -> pa.Table:
        if b"null" in data and _NULL_AFTER_OBJECT.search(data):
            raise _NotRegularError
        if (b"NaN" in data or b"Inf" in data) and _NOT_A_NUMBER.search(data):
            raise _NotRegularError
        assert self._column_types is not None  # noqa: S101 (checked by the caller)
        return pa_json.read_json(
            pa.py_buffer(data),
            read_options=pa_json.ReadOptions(block_size=len(data) + 1, use_threads=False),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(list(self._column_types.items())),
                unexpected_field_behavior="ignore",
            ),
        )


class CsvParser(BlockParser):
    """Parses the data lines of a CSV file; a record is one line, as in JSON lines.

    Args:
        fields: What the fields mean.
        sample: The first records.
        header: The column names.
    """

    def __init__(self, fields: Fields, sample: Iterable[Line], header: tuple[str, ...]) -> None:
        super().__init__(fields, sample)
        self.header = header

    def read_line(self, raw: bytes) -> Line:
        """Parses one line into its fields."""
        return read_csv_line(raw, self.header, self.fields)

    def _read_run(self, data: bytes, rows: int) -> pa.Table:
        # Quotes may hide a line break from us or from pyarrow, a lone CR is one for pyarrow, and
        # Python 3.10 takes no NUL.
        if (
            b'"' in data
            or b"\0" in data
            or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n"))
        ):
            raise _NotRegularError
        assert self._column_types is not None  # noqa: S101 (checked by the caller)
        types = {name: pa.string() for name in self._column_types}
        table = pa_csv.read_csv(
            io.BytesIO(data),
            read_options=pa_csv.ReadOptions(
                column_names=list(self.header), block_size=len(data) + 1, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(types),
                include_missing_columns=True,  # a file may have no markers
                column_types=types,
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
        return _convert(table, self._column_types)


class RejectingParser(BlockParser):
    """Parses the lines of a split none of which can be a record.

    Args:
        fields: What the fields mean.
        reason: Why, as a fixed word.
        detail: The same for a person.
    """

    def __init__(self, fields: Fields, reason: str, detail: str) -> None:
        super().__init__(fields, [])
        self._column_types = None
        self._reason, self._detail = reason, detail

    def read_line(self, raw: bytes) -> Line:
        """Rejects a line."""
        raise BadRecordError(self._reason, self._detail)

    def _read_run(self, data: bytes, rows: int) -> pa.Table:
        raise _NotRegularError


_CSV_SHAPES: Final[dict[Any, tuple[str, Callable[[pa.Array], pa.Array]]]] = {
    pa.int64(): (r"^-?[0-9]{1,19}$", lambda column: column.cast(pa.int64())),
    pa.float64(): (
        r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
        lambda column: column.cast(pa.float64()),
    ),
    pa.bool_(): (r"^(true|false)$", lambda column: pc.equal(column, "true")),
}


def _convert(table: pa.Table, types: dict[str, Any]) -> pa.Table:
    """Casts text columns, refusing what `Fields.read` might read in another way."""
    columns = {}
    for name, kind in types.items():
        column = _one(table, name)
        if kind in _CSV_SHAPES:
            pattern, cast = _CSV_SHAPES[kind]
            if pc.all(pc.match_substring_regex(column, pattern)).as_py() is False:
                raise _NotRegularError
            column = cast(column)
        columns[name] = column
    return pa.table(columns)


def _one(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _nulls(column: pa.Array) -> Flags:
    if not column.null_count:
        return np.zeros(len(column), dtype=np.bool_)
    nulls: Flags = column.is_null().to_numpy(zero_copy_only=False)
    return nulls

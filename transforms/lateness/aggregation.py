"""Aggregates as tables: made of records, merged with each other, read as results.

A *partial* is a record batch with a row per key: `key`, `count`, and what the aggregates need. The
same layout, with `panes` (how many were emitted for the key), is the state of a window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from numbers import Integral, Rational, Real
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_lateness.transforms.batch import KEY, VALUE

COUNT: Final = "count"
PANES: Final = "panes"
AGGREGATES: Final = ("sum", "count", "min", "max", "mean")

_SUM: Final = "sum"
_ACCUMULATOR: Final = "accumulator"
_INT64_MAX: Final = 2**63 - 1
_WIDE: Final = pa.decimal128(38, 0)

Rows: TypeAlias = pa.Table


class Aggregation(ABC):
    """How values become a result, by way of tables that merge."""

    @abstractmethod
    def group(self, rows: Rows, by: Sequence[str]) -> Rows:
        """Aggregates records.

        Args:
            rows: Records with `value` and the columns of `by`.
            by: The columns to group by, `key` among them.

        Returns:
            A row per group: the columns of `by`, `count`, and this aggregation's own.
        """

    @abstractmethod
    def group_values(self, by: Rows, values: Sequence[Any]) -> Rows:
        """Aggregates Python values, grouped by all columns of `by`, a row a value."""

    @abstractmethod
    def merge(self, parts: Sequence[Rows]) -> Rows:
        """Merges tables of `key`, `count`, own columns and perhaps `panes`.

        Each has a row per key, and so has the result.
        """

    @abstractmethod
    def values(self, rows: Rows) -> list[Any]:
        """Reads the result of each row."""


class ColumnAggregation(Aggregation):
    """Sum, count, min, max and mean, one or several, by Arrow. Sums of integers are exact.

    Args:
        names: The aggregates; one gives plain values, several a dictionary by name.

    Raises:
        ValueError: If a name is none of `AGGREGATES`, or there is none, or one stands twice.
    """

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in AGGREGATES]
        if unknown or not names or len(set(names)) < len(names):
            msg = (
                f"aggregate (--aggregate) must be one or more of {', '.join(AGGREGATES)}, each "
                f"once, or a CombineFn; got {', '.join(names) or 'nothing'}"
            )
            raise ValueError(msg)
        self.names = tuple(names)
        columns = {"sum": _SUM, "mean": _SUM, "min": "min", "max": "max"}
        self._columns = sorted({columns[name] for name in names if name in columns})

    def group_values(self, by: Rows, values: Sequence[Any]) -> Rows:
        """Aggregates values that are no column yet.

        Raises:
            TypeError: If a value is needed, and no number.
        """
        column = number_column(values) if self._columns else pa.nulls(len(values), pa.int64())
        return self.group(by.append_column(VALUE, column), by.column_names)

    def group(self, rows: Rows, by: Sequence[str]) -> Rows:
        """Aggregates records."""
        if self._columns:
            rows = _replace(rows, VALUE, _widened(rows.column(VALUE)))
        wanted = [(VALUE, column) for column in self._columns]
        grouped = rows.group_by(list(by), use_threads=False).aggregate([*wanted, ([], "count_all")])
        names = [*by, *self._columns, COUNT]
        found = [*by, *(f"{VALUE}_{column}" for column in self._columns), "count_all"]
        return grouped.select(found).rename_columns(names)

    def merge(self, parts: Sequence[Rows]) -> Rows:
        """Merges partials."""
        if len(parts) == 1:
            return parts[0]
        rows = _concat(parts)
        if _SUM in self._columns:
            rows = _replace(rows, _SUM, _widened(rows.column(_SUM)))
        how = {COUNT: "sum", PANES: "max", _SUM: "sum", "min": "min", "max": "max"}
        wanted = [(column, how[column]) for column in rows.column_names if column != KEY]
        merged = rows.group_by(KEY, use_threads=False).aggregate(wanted)
        return merged.select([KEY, *(f"{c}_{how}" for c, how in wanted)]).rename_columns(
            [KEY, *(c for c, _ in wanted)]
        )

    def values(self, rows: Rows) -> list[Any]:
        """Reads the result of each row: an int where all values were, else a float."""
        columns = {name: self._read(name, rows) for name in self.names}
        if len(self.names) == 1:
            return columns[self.names[0]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _read(self, name: str, rows: Rows) -> list[Any]:
        column = _plain(rows.column(_SUM if name == "mean" else name).to_pylist())
        if name != "mean":
            return column
        counts = rows.column(COUNT).to_pylist()
        return [total / count for total, count in zip(column, counts, strict=True)]


class CombineAggregation(Aggregation):
    """Any accumulating function, at the price of working value by value.

    Args:
        create: Makes an empty accumulator.
        add: Adds a value to an accumulator, and gives the new one.
        merge: Merges accumulators.
        extract: Reads the result.
        encode: Writes an accumulator as bytes.
        decode: Reads it back.
    """

    def __init__(
        self,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        merge: Callable[[Iterable[Any]], Any],
        extract: Callable[[Any], Any],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._create, self._add, self._merge = create, add, merge
        self._extract, self._encode, self._decode = extract, encode, decode

    def group(self, rows: Rows, by: Sequence[str]) -> Rows:
        """Aggregates records."""
        return self.group_values(rows.select(by), rows.column(VALUE).to_pylist())

    def group_values(self, by: Rows, values: Sequence[Any]) -> Rows:
        """Aggregates values of any type."""
        keys = zip(*(by.column(name).to_pylist() for name in by.column_names), strict=True)
        groups: dict[tuple[Any, ...], Any] = {}
        counts: dict[tuple[Any, ...], int] = {}
        for key, value in zip(keys, values, strict=True):
            accumulator = groups[key] if key in groups else self._create()
            groups[key] = self._add(accumulator, value)
            counts[key] = counts.get(key, 0) + 1
        columns = {
            name: pa.array([key[i] for key in groups], by.schema.field(name).type)
            for i, name in enumerate(by.column_names)
        }
        columns[_ACCUMULATOR] = pa.array([self._encode(a) for a in groups.values()], pa.binary())
        columns[COUNT] = pa.array(list(counts.values()), pa.int64())
        return pa.table(columns)

    def merge(self, parts: Sequence[Rows]) -> Rows:
        """Merges partials."""
        if len(parts) == 1:
            return parts[0]
        rows = _concat(parts)
        groups: dict[Any, list[bytes]] = {}
        for key, encoded in zip(
            rows.column(KEY).to_pylist(), rows.column(_ACCUMULATOR).to_pylist(), strict=True
        ):
            groups.setdefault(key, []).append(encoded)
        how = {COUNT: "sum", PANES: "max"}
        wanted = [(column, how[column]) for column in rows.column_names if column in how]
        merged = rows.group_by(KEY, use_threads=False).aggregate(wanted)
        accumulators = [
            self._encode(self._merge([self._decode(encoded) for encoded in groups[key]]))
            for key in merged.column(KEY).to_pylist()
        ]
        columns = {c: merged.column(f"{c}_{h}") for c, h in wanted}
        return pa.table(
            {
                KEY: merged.column(KEY),
                _ACCUMULATOR: pa.array(accumulators, pa.binary()),
                **columns,
            }
        )

    def values(self, rows: Rows) -> list[Any]:
        """Reads the result of each row."""
        encoded = rows.column(_ACCUMULATOR).to_pylist()
        return [self._extract(self._decode(accumulator)) for accumulator in encoded]


def number_column(values: Sequence[Any]) -> pa.Array:
    """Makes a column of Python or NumPy numbers: int64, wide integers, or floats where one is.

    Raises:
        TypeError: If a value is no int or float.
    """
    numbers: list[int | float] = []
    for value in values:
        if isinstance(value, Integral):
            numbers.append(int(value))
        elif isinstance(value, Real) and not isinstance(value, Rational):
            numbers.append(float(value))
        else:
            msg = (
                f"{', '.join(AGGREGATES)} take int and float values, got {value!r} "
                f"({type(value).__name__}); give another aggregate as a CombineFn"
            )
            raise TypeError(msg)
    if any(isinstance(number, float) for number in numbers):
        return pa.array([float(number) for number in numbers], pa.float64())
    if all(-_INT64_MAX <= number <= _INT64_MAX for number in numbers):
        return pa.array(numbers, pa.int64())
    return pa.array([Decimal(number) for number in numbers], _WIDE)


def shards_of(keys: pa.Array, shard_of: Callable[[Any], int]) -> np.ndarray[Any, Any]:
    """Gives the shard of each key, working it out once a distinct key."""
    encoded = keys.dictionary_encode()
    of_distinct = np.array([shard_of(key) for key in encoded.dictionary.to_pylist()], np.int64)
    shards: np.ndarray[Any, Any] = of_distinct[encoded.indices.to_numpy(zero_copy_only=False)]
    return shards


def touched(rows: Rows, keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Marks the rows whose key is among `keys`."""
    return pc.is_in(rows.column(KEY), value_set=keys.combine_chunks())


def slices(rows: Rows, size: int) -> Iterator[Rows]:
    """Cuts a table into pieces, so that a large one is never a Python list as a whole."""
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _widened(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Makes room for a sum of integers that might pass 64 bits, which Arrow would wrap silently."""
    if not pa.types.is_int64(column.type) or not len(column):
        return column
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or max(-low, high) * len(column) <= _INT64_MAX:
        return column
    return column.cast(_WIDE)


def _concat(parts: Sequence[Rows]) -> Rows:
    """Joins tables whose numbers may be integers, wide integers or floats, the widest winning."""
    if len({str(part.schema) for part in parts}) == 1:
        return pa.concat_tables(parts)
    names = parts[0].column_names
    types = {name: [part.schema.field(name).type for part in parts] for name in names}
    schema = pa.schema([(name, _widest(found)) for name, found in types.items()])
    return pa.concat_tables([_cast(part, schema) for part in parts])


def _widest(types: Sequence[Any]) -> Any:
    for kind in (pa.float64(), _WIDE):
        if kind in types:
            return kind
    return types[0]


def _cast(rows: Rows, schema: pa.Schema) -> Rows:
    return pa.table(
        {name: rows.column(name).cast(schema.field(name).type, safe=False) for name in schema.names}
    )


def _replace(rows: Rows, name: str, column: pa.ChunkedArray) -> Rows:
    return rows.set_column(rows.column_names.index(name), name, column)


def _plain(values: list[Any]) -> list[Any]:
    if values and isinstance(values[0], Decimal):
        return [int(value) for value in values]
    return values

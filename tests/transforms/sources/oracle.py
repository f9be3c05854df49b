"""Line by line: the trivial reading that the columnar parser must agree with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from beam_lateness.transforms.sources.blocks import Columns, Rejected
from beam_lateness.transforms.sources.records import BadRecordError, Fields, Line, Record
from beam_lateness.transforms.watermarks.timestamps import FieldTime

ReadLine: TypeAlias = Callable[[bytes], Line]

FIELDS: Final = Fields("k", "v", "id", "end", FieldTime("t", "ms"))


class Reading(NamedTuple):
    """What a block holds: (line, record), the lines that are none, and how many are blank."""

    records: list[tuple[int, Record]]
    rejected: list[Rejected]
    blank: int


def cut(data: bytes) -> list[bytes]:
    """The lines of a block without their line breaks, blank ones among them."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def read_each(
    data: bytes, fields: Fields, read_line: ReadLine, latest_ms: int | None = None
) -> Reading:
    """Reads a block one line after the other."""
    reading = Reading([], [], sum(not raw.strip() for raw in cut(data)))
    for number, raw in enumerate(raw for raw in cut(data) if raw.strip()):
        own = None
        try:
            line = read_line(raw)
            own = fields.read_id(line)
            reading.records.append((number, fields.read(line, latest_ms)))
        except BadRecordError as error:
            reading.rejected.append(Rejected(number, error.reason, error.detail, raw, own))
    return reading


def rows_of(columns: Columns) -> list[tuple[int, Record]]:
    """Columns as records, line by line; of a marker, the time is all that counts."""
    rows = []
    for line, ms, marker, key, value, own in zip(
        columns.line.tolist(),
        columns.event_time.tolist(),
        columns.marker.tolist(),
        columns.key.to_pylist(),
        columns.value.to_pylist(),
        columns.id.to_pylist(),
        strict=True,
    ):
        record = Record(None, None, None, ms, True) if marker else Record(key, value, own, ms)
        rows.append((line, record))
    return rows


def in_column(records: list[tuple[int, Record]], kind: Any) -> list[tuple[int, Record]]:
    """The records with their numbers as a column holds them: all integers, or all floats."""
    if not pa.types.is_floating(kind):
        return records
    return [
        (line, record if record.value is None else record._replace(value=float(record.value)))
        for line, record in records
    ]

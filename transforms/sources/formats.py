"""Formats of an input: which fields mean what, and how its lines are parsed."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from beam_lateness.transforms.sources.parsing import (
    BlockParser,
    CsvParser,
    JsonLinesParser,
    RejectingParser,
)
from beam_lateness.transforms.sources.records import (
    BadRecordError,
    Fields,
    Line,
    read_csv_line,
    read_json_line,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime

_SAMPLE_RECORDS: Final = 100


@dataclass(frozen=True)
class LineFormat:
    """What all formats of one record a line share.

    Args:
        key: Field to group by.
        value: Number to aggregate; None where only records are counted.
        id: Field that identifies a record; None to name records by split and position.
    """

    key: str
    value: str | None = None
    id: str | None = None

    has_header = False

    def fields(self, strategy: WatermarkStrategy) -> Fields:
        """Gives the meaning of the fields under a watermark strategy."""
        return Fields(self.key, self.value, self.id, strategy.marker_field, strategy.timestamps)

    def sample(self, fields: Fields, lines: Iterable[tuple[bytes, bytes]]) -> list[Line]:
        """Reads the first good lines of an input, given as (header line, line)."""
        return list(islice(self._good(fields, lines), _SAMPLE_RECORDS))

    def _good(self, fields: Fields, lines: Iterable[tuple[bytes, bytes]]) -> Iterable[Line]:
        for header, raw in lines:
            try:
                line = self._read(raw, header, fields)
            except BadRecordError:
                continue
            if fields.marker is None or line.get(fields.marker) is not True:
                yield line

    def _read(self, raw: bytes, header: bytes, fields: Fields) -> Line:
        raise NotImplementedError

    def parser(self, fields: Fields, sample: list[Line], header: bytes) -> BlockParser:
        """Makes the parser of one split.

        Args:
            fields: The fields' meaning, time unit settled.
            sample: What `sample` gave for the whole input.
            header: The split's header line; empty where the format has none.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class JsonLines(LineFormat):
    """JSON lines: one object a line; fields are its members at the top level.

    Example:
        >>> JsonLines(key="origin", value="distance", id="event_id").key
        'origin'
    """

    def _read(self, raw: bytes, header: bytes, fields: Fields) -> Line:
        return read_json_line(raw, fields)

    def parser(self, fields: Fields, sample: list[Line], header: bytes) -> BlockParser:
        """Makes the parser of one split."""
        return JsonLinesParser(fields, sample)


@dataclass(frozen=True)
class Csv(LineFormat):
    """CSV with a header line in each file; one record a line, so no line break inside a cell.

    Example:
        >>> Csv(key="origin", value="distance").has_header
        True
    """

    has_header = True

    def _read(self, raw: bytes, header: bytes, fields: Fields) -> Line:
        return read_csv_line(raw, _header(header), fields)

    def parser(self, fields: Fields, sample: list[Line], header: bytes) -> BlockParser:
        """Makes the parser of one split; under a header that cannot serve it rejects every line."""
        try:
            names = _header(header)
        except ValueError as error:
            return RejectingParser(fields, "bad_header", str(error))
        if lacking := sorted(fields.names - set(names) - {fields.marker}):
            detail = f"the CSV header lacks {', '.join(lacking)}; it has {', '.join(names)}"
            return RejectingParser(fields, "bad_header", detail)
        return CsvParser(fields, sample, names)


def bind(
    line_format: LineFormat,
    strategy: WatermarkStrategy,
    lines: Iterable[tuple[bytes, bytes]],
    *,
    follows: bool = False,
) -> tuple[WatermarkStrategy, list[Line]]:
    """Settles what the head of the input decides, once, before anything runs.

    Args:
        line_format: The format.
        strategy: The strategy, whose time unit may be `auto`.
        lines: The input's lines from its start, as (header line, line).
        follows: Whether more lines may come while they are read.

    Returns:
        The strategy with its unit settled, and the sample.

    Raises:
        ValueError: If a field stands in no record of the head, or the unit cannot be told.
    """
    fields = line_format.fields(strategy)
    sample = line_format.sample(fields, lines)
    if follows and not sample:
        _refuse_unknown_unit(strategy)
    seen = {name for line in sample for name in line}
    for name in sorted(fields.names - {fields.marker}):
        if sample and name not in seen:
            msg = (
                f"no record at the head of the input has a field {name!r}; "
                f"it has {', '.join(sorted(seen))}: mend --key_field, --value_field, --time_field "
                "or --id_field"
            )
            raise ValueError(msg)
    if isinstance(strategy.timestamps, FieldTime):
        timestamps = strategy.timestamps.bind(
            line.get(strategy.timestamps.field) for line in sample
        )
        strategy = replace(strategy, timestamps=timestamps)
    return strategy, sample


def _header(header: bytes) -> tuple[str, ...]:
    try:
        names = next(csv.reader([header.decode("utf-8-sig")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        msg = f"the CSV header cannot be read: {error}"
        raise ValueError(msg) from error
    if len(set(names)) < len(names):
        msg = f"the CSV header repeats a name: {', '.join(names)}"
        raise ValueError(msg)
    return tuple(names)


def _refuse_unknown_unit(strategy: WatermarkStrategy) -> None:
    """Refuses to follow an input that shows no record yet, if its time unit is to be detected."""
    if isinstance(strategy.timestamps, FieldTime) and strategy.timestamps.unit == "auto":
        msg = (
            "the time unit cannot be detected: there is no record to follow yet; declare it with "
            "--time_unit s|ms|us|ns|iso (FieldTime(unit=...))"
        )
        raise ValueError(msg)

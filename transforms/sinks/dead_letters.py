"""`WriteDeadLetters`: what did not make it into a result, as JSON lines that lose nothing."""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apache_beam as beam
import orjson
from apache_beam.pvalue import PCollection

from beam_lateness.transforms.private_files import OwnFile, is_writable_folder
from beam_lateness.transforms.results import InvalidRecord, RefusedPane, TooLateRecord

TOO_LATE: Final = "too_late"
REFUSED: Final = "refused_by_store"
_BYTES_AT_ONCE: Final = 1 << 20


def dead_letter(record: TooLateRecord | InvalidRecord | RefusedPane) -> dict[str, Any]:
    """Gives a record, or a pane that a store refuses, as a dead letter.

    Its fields are reason, record_id, key, value, event_time_ms, window_start_ms, window_end_ms,
    watermark_ms, late_by_ms, split, position and payload; what is not known is null. A payload that
    is no UTF-8 is shown with replacement characters, and whole in `payload_base64`.

    Example:
        >>> dead_letter(InvalidRecord("malformed_json", "...", "a.jsonl", 7, "a.jsonl:7", b"{"))[
        ...     "payload"
        ... ]
        '{'
    """
    if isinstance(record, RefusedPane):
        return _refused(record)
    if isinstance(record, TooLateRecord):
        letter = {
            "reason": TOO_LATE,
            "record_id": record.record_id,
            "key": record.key,
            "value": record.value,
            "event_time_ms": record.event_time,
            "window_start_ms": record.window_start,
            "window_end_ms": record.window_end,
            "watermark_ms": record.watermark,
            "late_by_ms": record.late_by_ms,
        }
    else:
        unknown = ("key", "value", "event_time_ms", "window_start_ms", "window_end_ms")
        letter = {
            "reason": record.reason,
            "record_id": record.record_id,
            **dict.fromkeys((*unknown, "watermark_ms", "late_by_ms")),
            "detail": record.detail,
        }
    letter |= {"split": record.split, "position": record.position, "payload": None}
    if record.payload is not None:
        letter |= _payload(record.payload)
    return letter


def _refused(record: RefusedPane) -> dict[str, Any]:
    pane = record.pane
    return {
        "reason": REFUSED,
        "record_id": f"{pane.key!r}:{pane.window_start}:{pane.index}",
        "key": pane.key,
        "value": pane.value,
        "event_time_ms": None,
        "window_start_ms": pane.window_start,
        "window_end_ms": pane.window_end,
        "watermark_ms": pane.watermark,
        "late_by_ms": None,
        "detail": record.detail,
        "count": pane.count,
        "split": None,
        "position": None,
        "payload": None,
    }


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {
            "payload": payload.decode(errors="replace"),
            "payload_base64": base64.b64encode(payload).decode(),
        }


def encode_letter(letter: dict[str, Any]) -> bytes:
    """Gives a dead letter as JSON, without a line break."""
    try:
        return orjson.dumps(letter, default=repr)
    except TypeError:  # an integer beyond 64 bits, keys that are no text, a lone surrogate
        return json.dumps(letter, default=repr).encode()


@dataclass(eq=False)
class WriteDeadLetters(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """Appends dead letters to JSON line files in a local folder.

    A bundle that an engine repeats writes its records again, under the same `record_id`: readers
    count each id once.

    Watermark: takes a `PCollection` of `TooLateRecord` or `InvalidRecord`, gives nothing.

    Args:
        directory: The folder; it is made if need be.
        run: Names this run; it is part of the file names.
        written: Called with the records whose lines are on the disk; it must be picklable.

    Raises:
        ValueError: At construction, if the folder cannot be written.
    """

    directory: str
    run: str
    written: Callable[[Sequence[TooLateRecord | InvalidRecord]], None] | None = None

    def __post_init__(self) -> None:
        super().__init__()
        if not is_writable_folder(self.directory):
            msg = f"directory (--dead_letters) must be a writable local folder: {self.directory!r}"
            raise ValueError(msg)

    def expand(self, records: PCollection[Any]) -> PCollection[Any]:
        """Writes bundle by bundle."""
        return records | "Append" >> beam.ParDo(_Append(self.directory, self.run, self.written))


class _Append(beam.DoFn):
    """Collects lines and appends them with one write."""

    def __init__(
        self,
        directory: str,
        run: str,
        written: Callable[[Sequence[TooLateRecord | InvalidRecord]], None] | None = None,
    ) -> None:
        self._directory = directory
        self._run = run
        self._written = written

    def setup(self) -> None:
        self._file = OwnFile(self._new_path)

    def _new_path(self) -> str:
        name = f"dead-letters-{self._run}-{uuid.uuid4().hex[:8]}.jsonl"
        return os.path.join(self._directory, name)

    def start_bundle(self) -> None:
        self._lines: list[bytes] = []
        self._records: list[TooLateRecord | InvalidRecord] = []
        self._size = 0

    def process(self, element: TooLateRecord | InvalidRecord) -> None:
        line = encode_letter(dead_letter(element)) + b"\n"
        self._lines.append(line)
        self._records.append(element)
        self._size += len(line)
        if self._size >= _BYTES_AT_ONCE:
            self._flush()

    def finish_bundle(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if not self._lines:
            return
        self._file.append(b"".join(self._lines))
        records = self._records
        self.start_bundle()
        if self._written is not None:
            self._written(records)

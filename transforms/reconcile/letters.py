"""Dead letters as they are read back: what can be applied to a window, and what cannot."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from beam_lateness.transforms.results import key_text
from beam_lateness.transforms.sinks.dead_letters import REFUSED, TOO_LATE

UNREADABLE: Final = "unreadable"
UNFINISHED: Final = "unfinished_line"
NOT_TOO_LATE: Final = "not_too_late"
INCOMPLETE: Final = "incomplete"
_LARGEST: Final = 2**63 - 1  # of what a database and the engine take
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_RUN: Final = re.compile(r"dead-letters-(.+)-[0-9a-f]{8}\.jsonl$")


class Letter(NamedTuple):
    """A record that came too late for its window.

    Args:
        key: Its key, as text.
        window_start_ms: Start of its window, ms.
        window_end_ms: End of it, ms.
        record_id: What tells it from all others.
        value: Its value; None where it has none.
        watermark_ms: The exclusive watermark when it came, ms; None where it is not known.
        run: The run that it came in; "" where the file's name does not tell.
        file: The dead letter file.
        split: Where it was read from; None where that is not known.
    """

    key: str
    window_start_ms: int
    window_end_ms: int
    record_id: str
    value: Any
    watermark_ms: int | None
    run: str
    file: str
    split: str | None = None

    def left(self, reason: str, detail: str) -> Left:
        """Says why it is not applied."""
        return Left(reason, detail, self.record_id, self.file, None)


class Left(NamedTuple):
    """A dead letter that is not applied.

    Args:
        reason: A fixed word.
        detail: The same for a person.
        record_id: Its id; None where it is not known.
        file: The dead letter file.
        line: The number of its line there, from 1; None where it is not known.
    """

    reason: str
    detail: str
    record_id: str | None
    file: str
    line: int | None


def read_letters(lines: Iterable[bytes], file: str) -> Iterator[Letter | Left]:
    r"""Reads the dead letters of a file.

    Args:
        lines: Its lines, with their line breaks.
        file: Its name.

    Example:
        >>> [left.reason for left in read_letters([b"{}\n", b"{"], "dead-letters.jsonl")]
        ['not_too_late', 'unfinished_line']
    """
    run = run_of(file)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _read(line, number, file, run)
        except RecursionError:
            yield Left(UNREADABLE, "nested too deeply", None, file, number)


def _read(line: bytes, number: int, file: str, run: str) -> Letter | Left:
    try:
        letter = json.loads(line)  # and not orjson, which loses digits of large integers
    except ValueError as error:
        if not line.endswith(b"\n"):
            detail = "the writer ended within this line: its run writes it again when it goes on"
            return Left(UNFINISHED, detail, None, file, number)
        return Left(UNREADABLE, f"no JSON: {error}", None, file, number)
    if not isinstance(letter, dict):
        return Left(UNREADABLE, "no JSON object", None, file, number)
    record_id = letter.get("record_id")
    known = record_id if isinstance(record_id, str) else None
    if letter.get("reason") == REFUSED:
        detail = f"a pane that the store refuses: {letter.get('detail')}"
        return Left(REFUSED, detail, known, file, number)
    if letter.get("reason") != TOO_LATE:
        detail = f"it was not too late: {letter.get('reason')}"
        return Left(NOT_TOO_LATE, detail, known, file, number)
    key = key_text(letter.get("key"))
    for name, text in (("record_id", record_id), ("key", key)):
        if not _is_text(text):
            detail = f"{name} must be text, got {text!r}"
            return Left(INCOMPLETE, detail, known, file, number)
    for name in ("window_start_ms", "window_end_ms"):
        if not _is_time(letter.get(name)):
            detail = f"{name} must be an integer of 64 bits, got {letter.get(name)!r}"
            return Left(INCOMPLETE, detail, known, file, number)
    watermark_ms, split = letter.get("watermark_ms"), letter.get("split")
    return Letter(
        key,
        letter["window_start_ms"],
        letter["window_end_ms"],
        letter["record_id"],
        letter.get("value"),
        watermark_ms if _is_time(watermark_ms) else None,
        run,
        file,
        split if isinstance(split, str) else None,
    )


def run_of(file: str) -> str:
    """Gives the run that wrote a dead letter file, by its name; "" where that does not tell.

    Example:
        >>> run_of("dead-letters/dead-letters-20260102T030405.000006Z-ab12-0a1b2c3d.jsonl")
        '20260102T030405.000006Z-ab12'
    """
    known = _RUN.search(os.path.basename(file))
    return known[1] if known else ""


def _is_text(value: Any) -> bool:
    """Whether it is text that can be written: half of a surrogate pair cannot."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST

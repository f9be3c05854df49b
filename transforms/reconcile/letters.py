"""Dead letters as they are read back: what can be applied to a window, and what cannot."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from beam_lateness.transforms.sinks.dead_letters import TOO_LATE
from beam_lateness.transforms.sinks.window_table import key_text

UNREADABLE: Final = "unreadable"
UNFINISHED: Final = "unfinished_line"
NOT_TOO_LATE: Final = "not_too_late"
INCOMPLETE: Final = "incomplete"
_RUN: Final = re.compile(r"dead-letters-(.+)-[0-9a-f]{8}\.jsonl")


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
    """

    key: str
    window_start_ms: int
    window_end_ms: int
    record_id: str
    value: Any
    watermark_ms: int | None
    run: str
    file: str


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
    """Reads the dead letters of a file.

    Args:
        lines: Its lines, with their line breaks.
        file: Its name.
    """
    known = _RUN.fullmatch(os.path.basename(file))
    run = known[1] if known else ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield _read(line, number, file, run)


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
    if letter.get("reason") != TOO_LATE:
        detail = f"it was not too late: {letter.get('reason')}"
        return Left(NOT_TOO_LATE, detail, record_id, file, number)
    wanted = {"record_id": str, "window_start_ms": int, "window_end_ms": int}
    for name, kind in wanted.items():
        found = letter.get(name)
        if not isinstance(found, kind) or isinstance(found, bool):
            detail = f"{name} must be {kind.__name__}, got {found!r}"
            known = record_id if isinstance(record_id, str) else None
            return Left(INCOMPLETE, detail, known, file, number)
    return Letter(
        key_text(letter.get("key")),
        letter["window_start_ms"],
        letter["window_end_ms"],
        letter["record_id"],
        letter.get("value"),
        letter.get("watermark_ms"),
        run,
        file,
    )

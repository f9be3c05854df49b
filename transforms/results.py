"""The elements that leave the transforms: panes, and the records that did not make it into one."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

ON_TIME: Final = "ON_TIME"
LATE: Final = "LATE"


class Pane(NamedTuple):
    """One result of a window for one key; a later pane of the same key and window corrects it.

    Args:
        key: The key.
        window_start: Start of the window, ms since the epoch, inclusive.
        window_end: End of the window, ms, exclusive.
        value: The aggregate; a dictionary by name where several were asked for.
        count: How many records it stands on.
        index: 0 for the first pane of this key and window, then 1, 2, ...
        timing: `ON_TIME` for the pane at the window's end, `LATE` for a correction after it (or a
            first pane that only late records made).
        watermark: The least that the exclusive watermark was, in ms: the window's end, or the
            stamp of the last late record; None where it is not traced
            (`AggregateWindows(trace=True)`).
        record_ids: The late records that made this pane; None where they are not traced.
    """

    key: Any
    window_start: int
    window_end: int
    value: Any
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody needs of a pane
    index: int  # type: ignore[assignment]
    timing: str
    watermark: int | None = None
    record_ids: tuple[str, ...] | None = None


def pane_fields(pane: Pane, run: str) -> dict[str, Any]:
    """Gives a pane by the names of the columns and fields that all stores have.

    Args:
        pane: The pane.
        run: The run that it is of.

    Example:
        >>> pane_fields(Pane("a", 0, 60_000, 7, 3, 0, "ON_TIME"), "run-1")["pane_index"]
        0
    """
    return {
        "key": pane.key,
        "window_start_ms": pane.window_start,
        "window_end_ms": pane.window_end,
        "value": pane.value,
        "count": pane.count,
        "pane_index": pane.index,
        "timing": pane.timing,
        "run": run,
    }


def key_text(key: Any) -> str:
    """Gives a key as it stands in a table: what is no text is JSON.

    Example:
        >>> key_text("JFK"), key_text(("JFK", 1))
        ('JFK', '["JFK", 1]')
    """
    return key if isinstance(key, str) else json.dumps(key, default=repr)


class RefusedPane(NamedTuple):
    """A pane that a store refuses for what it holds, and would refuse again.

    Args:
        pane: The pane.
        detail: Why, as the store says it.
    """

    pane: Pane
    detail: str


def refusal(pane: Pane, detail: str) -> str:
    """Says that a store refuses a pane, where that ends the job."""
    return f"the table refuses the pane of {pane.key!r}, {pane.window_start}: {detail}"


class TooLateRecord(NamedTuple):
    """A record that arrived when its window's time was over: watermark >= end + allowed lateness.

    Args:
        key: The record's key.
        value: The record's value.
        event_time: ms since the epoch.
        window_start: Start of the window it belongs to, ms.
        window_end: End of that window, ms.
        watermark: The exclusive watermark when it arrived, ms; None where only the engine knew
            (a record without a stamp).
        late_by_ms: How far the watermark was past `window_end + allowed lateness`, ms, >= 0; None
            where the watermark is.
        split: Where it came from; None for a record of another source.
        position: Its place in the split: an offset, or a message id.
        record_id: Its own id, or a stable one of split and position.
        payload: The record as it was read, without the line break.
    """

    key: Any
    value: Any
    event_time: int
    window_start: int
    window_end: int
    watermark: int | None = None
    late_by_ms: int | None = None
    split: str | None = None
    position: int | str | None = None
    record_id: str | None = None
    payload: bytes | None = None


class InvalidRecord(NamedTuple):
    """Something that is no record: unreadable, incomplete, or with an impossible event time.

    Args:
        reason: A fixed word, such as `malformed_json` or `missing_key`.
        detail: The same for a person.
        split: Where it came from; None for a record of another source.
        position: Its place in the split: an offset, or a message id.
        record_id: Its own id, or a stable one of split and position.
        payload: What was read.
    """

    reason: str
    detail: str
    split: str | None = None
    position: int | str | None = None
    record_id: str | None = None
    payload: bytes | None = None

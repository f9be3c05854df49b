"""A window that reconciliation has corrected, as the report and the audit trail show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from beam_lateness.transforms.reconcile.letters import Letter
from beam_lateness.transforms.sinks.audit_trail import Change

RECONCILIATION: Final = "reconciliation"


class Corrected(NamedTuple):
    """A window that was corrected.

    Args:
        key: The key, as text.
        window_start_ms: Start of the window, ms.
        window_end_ms: End of it, ms.
        before: The value before; None if there was no row.
        after: The value afterwards.
        count_before: How many records it stood on.
        count_after: How many it stands on.
        record_ids: The records that were added.
        files: The dead letter files that they were in.
    """

    key: str
    window_start_ms: int
    window_end_ms: int
    before: Any
    after: Any
    count_before: int
    count_after: int
    record_ids: tuple[str, ...]
    files: tuple[str, ...]


def report_of(
    row: Mapping[str, Any] | None, new: Mapping[str, Any], letters: Sequence[Letter]
) -> Corrected:
    """Tells a correction.

    Args:
        row: The row before; None if there was none.
        new: The row afterwards.
        letters: What was added.
    """
    return Corrected(
        new["key"],
        new["window_start_ms"],
        new["window_end_ms"],
        None if row is None else row["value"],
        new["value"],
        0 if row is None else row["count"],
        new["count"],
        tuple(each.record_id for each in letters),
        tuple(sorted({each.file for each in letters})),
    )


def change_of(
    row: Mapping[str, Any] | None, new: Mapping[str, Any], letters: Sequence[Letter], run: str
) -> Change:
    """Gives a correction's entry in the audit trail; `run` names the reconciliation."""
    stamps = [each.watermark_ms for each in letters if each.watermark_ms is not None]
    source = {
        "dead_letters": sorted({each.file for each in letters}),
        "record_ids": [each.record_id for each in letters],
    }
    return Change.of(row, new, RECONCILIATION, max(stamps, default=None), source, run)

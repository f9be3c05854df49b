"""Where a group of splits stands, for people: which split holds the watermark, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

ACTIVE: Final = "active"
IDLE: Final = "idle"
PAUSED: Final = "paused"
FINISHED: Final = "finished"


class SplitStatus(NamedTuple):
    """Where one split stands.

    Args:
        split: Its name.
        state: `active`, `idle` (caught up and empty), `paused` (too far ahead) or `finished`.
        records: Records read since the source was opened.
        min_event_time_ms: The smallest event time among them (markers too), in ms; None before the
            first.
        max_event_time_ms: The largest.
        watermark_ms: Its watermark, exclusive, in ms; None before the first.
    """

    split: str
    state: str
    records: int
    min_event_time_ms: int | None
    max_event_time_ms: int | None
    watermark_ms: int | None


@dataclass(frozen=True)
class GroupStatus:
    """Where a group stands.

    Args:
        watermark_ms: Its watermark, exclusive, in ms; None before the first.
        splits: Its splits, in the order of their names.
        held_by: The split whose watermark is the group's; None where none holds it back.
        standing_s: For how long the watermark has not moved, in seconds of the wall clock.
        lag_ms: How far the watermark is behind the wall clock, in ms; None before the first.
        bound_ms: The bound, in ms (the widest, where splits have their own); None without one.
    """

    watermark_ms: int | None = None
    splits: tuple[SplitStatus, ...] = ()
    held_by: str | None = None
    standing_s: float = 0.0
    lag_ms: int | None = None
    bound_ms: int | None = None

    def count(self, state: str) -> int:
        """Counts the splits in a state."""
        return sum(split.state == state for split in self.splits)


def holder_of(splits: tuple[SplitStatus, ...], finished: bool) -> str | None:
    """Names the split that holds the watermark: the lowest of those that may still hold it.

    Args:
        splits: The splits.
        finished: Whether all are finished: then it is the one that was lowest, and a split that had
            no record held nothing.
    """
    held = [s for s in splits if s.state in (ACTIVE, PAUSED) or (finished and _has_spoken(s))]
    return min(held, key=_height).split if held else None


def _has_spoken(split: SplitStatus) -> bool:
    return split.records > 0 or split.watermark_ms is not None


def _height(split: SplitStatus) -> tuple[bool, int]:
    return split.watermark_ms is not None, split.watermark_ms or 0


_published: list[GroupStatus] = []


def publish(status: GroupStatus) -> None:
    """Shows a status to who looks on in this process."""
    _published[:] = [status]


def published() -> GroupStatus | None:
    """Gives the status that was published last; None before the first."""
    return _published[0] if _published else None


def unpublish() -> None:
    """Forgets it: a job that shows its status calls this before it runs."""
    _published.clear()

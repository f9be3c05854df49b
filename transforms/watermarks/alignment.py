"""Alignment: splits too far ahead are paused, so that state stays bounded."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

_STALE_INTERVALS: Final = 10


@dataclass(frozen=True)
class WatermarkAlignment:
    """How far the splits of a group may drift apart.

    Args:
        group: Its name: sources that name the same group are aligned with each other.
        max_drift_ms: How far a split's watermark may be ahead of the group's lowest.
        update_interval_ms: How often readers tell each other where they stand.
    """

    group: Hashable
    max_drift_ms: int
    update_interval_ms: int


class AlignmentMember:
    """One reader among those of its group.

    Within a reader alignment is exact: its own splits are measured at every poll. Readers in the
    same process see each other as of their last update, at most an update interval ago; readers in
    other processes are not seen.

    A reader all of whose splits are idle or finished, or that has no watermark yet, holds nobody,
    nor does one that has not updated for ten intervals: it may be gone without a word.

    Args:
        alignment: The configuration.
        clock: Gives the time in seconds since the epoch.
    """

    def __init__(self, alignment: WatermarkAlignment, clock: Callable[[], float]) -> None:
        self._alignment = alignment
        self._clock = clock
        self.updated_s: float | None = None
        self._others_ms: int | None = None
        self.reported_ms: int | None = None

    def max_allowed_ms(self, minimum_ms: int | None) -> int | None:
        """Says up to which watermark the reader's splits may be read on.

        Args:
            minimum_ms: The lowest watermark of the reader's splits that have one and are neither
                idle nor finished; None where there is none.

        Returns:
            The lowest of the group + the drift, inclusive, in ms; None for no limit.
        """
        now = self._clock()
        interval_s = self._alignment.update_interval_ms / 1000
        if self.updated_s is None or not 0 <= now - self.updated_s < interval_s:
            self.updated_s = now
            self.reported_ms = minimum_ms
            since_s = now - _STALE_INTERVALS * interval_s
            self._others_ms = _lowest_of_others(self._alignment.group, self, since_s)
        known = [ms for ms in (minimum_ms, self._others_ms) if ms is not None]
        return min(known) + self._alignment.max_drift_ms if known else None

    def leave(self) -> None:
        """Stops holding the others."""
        with _lock:
            _groups.get(self._alignment.group, weakref.WeakSet()).discard(self)


_lock = threading.Lock()
_groups: dict[Hashable, weakref.WeakSet[AlignmentMember]] = {}
"""The members of this process. Weak: one that was dropped without a word must hold nobody."""


def _lowest_of_others(group: Hashable, member: AlignmentMember, since_s: float) -> int | None:
    with _lock:
        members = _groups.setdefault(group, weakref.WeakSet())
        members.add(member)
        reported = [
            each.reported_ms
            for each in members
            if each is not member and each.updated_s is not None and each.updated_s >= since_s
        ]
    return min((ms for ms in reported if ms is not None), default=None)

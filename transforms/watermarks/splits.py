"""The watermark of a group of splits: the minimum over the active ones, never going back."""

from __future__ import annotations

from beam_lateness.transforms.times import NO_WATERMARK_MS


class SplitWatermarks:
    """Combines the watermarks of several splits, as Flink's source reader does.

    All watermarks are inclusive and in ms. A split without one yet holds the minimum at
    `NO_WATERMARK_MS`; one that is idle, or finished and removed, holds nothing. Where all are
    idle none holds the others, and the group goes to the highest of theirs.
    """

    def __init__(self, combined_ms: int = NO_WATERMARK_MS) -> None:
        self._splits: dict[str, int] = {}
        self._idle: set[str] = set()
        self._combined_ms = combined_ms

    @property
    def combined_ms(self) -> int:
        """The group's watermark, never below an earlier one."""
        self._settle()
        return self._combined_ms

    def _settle(self) -> None:
        """Keeps what the splits have reached so far: what comes next may lower their minimum."""
        active = self._active()
        if active:
            self.advance(min(active.values()))
        elif self._splits:
            self.advance(max(self._splits.values()))

    @property
    def all_idle(self) -> bool:
        """Whether there are splits, and all of them are idle."""
        return bool(self._splits) and len(self._idle) == len(self._splits)

    def advance(self, watermark_ms: int) -> None:
        """Moves the group's watermark on, whatever its splits say; never back."""
        self._combined_ms = max(self._combined_ms, watermark_ms)

    def update(self, split: str, watermark_ms: int) -> None:
        """Sets an active split's watermark; a lower one than before has no effect."""
        if split in self._idle:  # one that is back may be low
            self._settle()
        self._splits[split] = max(self._splits.get(split, NO_WATERMARK_MS), watermark_ms)
        self._idle.discard(split)

    def mark_idle(self, split: str) -> None:
        """Takes a split out of the minimum until its next `update`."""
        self._splits.setdefault(split, NO_WATERMARK_MS)
        self._idle.add(split)

    def remove(self, split: str) -> None:
        """Takes a finished split out of the minimum."""
        self._settle()
        self._splits.pop(split, None)
        self._idle.discard(split)

    def of(self, split: str) -> int:
        """Gives one split's own watermark."""
        return self._splits.get(split, NO_WATERMARK_MS)

    def minimum_of_others(self, split: str) -> int | None:
        """Gives the minimum over all active splits but this one; None if there is no other."""
        others = (ms for name, ms in self._active().items() if name != split)
        return min(others, default=None)

    def minimum_known(self) -> int | None:
        """Gives the minimum over the active splits that have a watermark; None if none has."""
        known = (ms for ms in self._active().values() if ms > NO_WATERMARK_MS)
        return min(known, default=None)

    def _active(self) -> dict[str, int]:
        if not self._idle:
            return self._splits
        return {name: ms for name, ms in self._splits.items() if name not in self._idle}

"""The watermark of a group of splits: the minimum over them, never going back."""

from __future__ import annotations

from beam_lateness.transforms.times import NO_WATERMARK_MS


class SplitWatermarks:
    """Combines the watermarks of several splits, as Flink's source reader does.

    All watermarks are inclusive and in ms. A split without one yet holds the minimum at
    `NO_WATERMARK_MS`; one that is finished is removed and holds nothing.
    """

    def __init__(self, combined_ms: int = NO_WATERMARK_MS) -> None:
        self._splits: dict[str, int] = {}
        self._combined_ms = combined_ms

    @property
    def combined_ms(self) -> int:
        """The group's watermark: the minimum over the splits, and never below an earlier one."""
        if self._splits:
            self._combined_ms = max(self._combined_ms, min(self._splits.values()))
        return self._combined_ms

    def update(self, split: str, watermark_ms: int) -> None:
        """Sets a split's watermark; a lower one than before has no effect."""
        self._splits[split] = max(self._splits.get(split, NO_WATERMARK_MS), watermark_ms)

    def remove(self, split: str) -> None:
        """Takes a finished split out of the minimum."""
        self._splits.pop(split, None)

    def of(self, split: str) -> int:
        """Gives one split's own watermark."""
        return self._splits.get(split, NO_WATERMARK_MS)

    def minimum_of_others(self, split: str) -> int | None:
        """Gives the minimum over all splits but this one; None if there is no other."""
        return min((ms for name, ms in self._splits.items() if name != split), default=None)

"""Idleness: when a split that has nothing to give may no longer hold the others back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class IdlenessTimer:
    """Tells a split that is caught up and empty from one that is slow or was not asked.

    It counts from the first probe that found nothing, and only probes count: a split that is not
    polled (back-pressure, a pause, a blocked read) does not become idle. As in Flink's
    `WatermarksWithIdleness`, it is idle when the time is *longer* than the timeout.

    Args:
        timeout_ms: The timeout.
        quiet_since_ms: When a probe first found nothing, by the wall clock; None if the last one
            found records.
        idle: Whether it is idle.

    Example:
        >>> timer = IdlenessTimer(10)
        >>> [timer.probe(False, ms) for ms in (5, 15, 16)], timer.probe(True, 17)
        ([False, False, True], False)
    """

    timeout_ms: int
    quiet_since_ms: int | None = None
    idle: bool = False

    def probe(self, active: bool, now_ms: int) -> bool:
        """Takes what a poll found.

        Args:
            active: Whether there was anything to read.
            now_ms: The wall clock.

        Returns:
            Whether the split is idle now. Once idle it stays so until there is something to read.
        """
        if active:
            self.quiet_since_ms, self.idle = None, False
        elif self.quiet_since_ms is None:
            self.quiet_since_ms = now_ms
        elif now_ms - self.quiet_since_ms > self.timeout_ms:
            self.idle = True
        return self.idle

    def pause(self) -> None:
        """Starts to count anew: nobody looks at a paused split."""
        if not self.idle:
            self.quiet_since_ms = None

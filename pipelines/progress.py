"""Shows a running job: a live line in a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.live import Live

from beam_lateness.pipelines.report import format_time
from beam_lateness.transforms import metrics
from beam_lateness.transforms.sources.status import IDLE, PAUSED, GroupStatus, published

_LOG = logging.getLogger(__name__)

_TERMINAL_S: Final = 0.5
_LOG_S: Final = 10.0
_LARGEST_LAG_S: Final = 7 * 86_400  # beyond it the input is history, and lag says nothing


class Progress:
    """Follows this process's tally in a thread, from `with` to its end.

    Args:
        console: Where to show it.
        clock: Gives the time in seconds since the epoch.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self._console = console
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._began = clock()

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        if self._console.is_terminal:
            with Live(self._line(), console=self._console, transient=True) as live:
                while not self._stop.wait(_TERMINAL_S):
                    live.update(self._line())
        else:
            while not self._stop.wait(_LOG_S):
                _LOG.info("%s", self._line())

    def _line(self) -> str:
        return ", ".join(f"{name} {figure}" for name, figure in self.figures().items())

    def figures(self) -> dict[str, str]:
        """Gives the figures as they stand: rate, watermark, what holds it, lag and counts."""
        counts = metrics.tally()
        now = self._clock()
        watermark_ms = counts.get(metrics.WATERMARK_MS)
        lag_s = None if watermark_ms is None else now - watermark_ms / 1000
        shown = lag_s is not None and abs(lag_s) < _LARGEST_LAG_S
        records = counts.get(metrics.INPUT, 0)
        return {
            "records": f"{records:,}",
            "records/s": f"{records / max(now - self._began, 0.001):,.0f}",
            "watermark": format_time(watermark_ms),
            "held by": _holder(published()),
            "lag": f"{lag_s:.1f}s" if shown else "-",
            "late": f"{counts.get(metrics.LATE, 0):,}",
            "too late": f"{counts.get(metrics.TOO_LATE, 0):,}",
            "invalid": f"{counts.get(metrics.INVALID, 0):,}",
            "panes": f"{counts.get(metrics.PANES, 0):,}",
        }


def _holder(status: GroupStatus | None) -> str:
    """Names the split that holds the watermark, if there are others, and how many do not count."""
    if status is None:
        return "-"
    holder = "-"
    if len(status.splits) > 1 and status.held_by is not None:
        stands = status.standing_s >= 1
        holder = status.held_by + (f" for {status.standing_s:.0f}s" if stands else "")
    out = [f"{status.count(state)} {state}" for state in (IDLE, PAUSED) if status.count(state)]
    return f"{holder} ({', '.join(out)})" if out else holder

"""The balance of a job: what came in is what was aggregated, too late, or invalid."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone

from beam_lateness.transforms import metrics
from beam_lateness.transforms.private_files import write_private
from beam_lateness.transforms.times import is_event_time


@dataclass(frozen=True)
class Report:
    """What a job counted.

    Args:
        input: Records read (markers and blank lines are none).
        aggregated: Records that stand in a pane.
        late: Those of them that came behind the watermark and corrected a window.
        too_late: Records whose window's time was over.
        invalid: Lines that are no record.
        panes: Panes emitted.
        watermark_ms: The last watermark before the end of the input, exclusive, ms; None if none.
        engine: The engine that ran the job.
        blank_lines: Blank lines, which are no records.
        run: The run's name, as in the table.
    """

    input: int
    aggregated: int
    late: int
    too_late: int
    invalid: int
    panes: int
    watermark_ms: int | None
    engine: str
    blank_lines: int
    run: str

    @staticmethod
    def of(counts: Mapping[str, int], engine: str, run: str) -> Report:
        """Makes a report of metrics by name."""
        found = {name: counts.get(name, 0) for name in metrics.COUNTS}
        return Report(
            **found, watermark_ms=counts.get(metrics.WATERMARK_MS), engine=engine, run=run
        )

    @property
    def unaccounted(self) -> int:
        """Records that are in none of the three: in open windows while a job runs, else lost."""
        return self.input - self.aggregated - self.too_late - self.invalid

    @property
    def balanced(self) -> bool:
        """Whether input = aggregated + too late + invalid."""
        return self.unaccounted == 0

    def balance(self) -> str:
        """Writes the balance as a sum.

        Example:
            >>> Report(6, 3, 1, 2, 1, 2, None, "prism", 0, "r").balance()
            'input 6 = 3 aggregated (1 late) + 2 too late + 1 invalid'
        """
        return self._sum("=" if self.balanced else "!=")

    def counts(self) -> str:
        """Writes the same of a job that runs, some of whose records are in open windows."""
        return self._sum(":")

    def _sum(self, sign: str) -> str:
        return (
            f"input {self.input:,} {sign} {self.aggregated:,} aggregated ({self.late:,} late) + "
            f"{self.too_late:,} too late + {self.invalid:,} invalid"
        )

    def write(self, path: str) -> None:
        """Writes the report as JSON."""
        text = json.dumps({**asdict(self), "balanced": self.balanced}, indent=1)
        write_private(path, f"{text}\n".encode())


def format_time(ms: int | None) -> str:
    """Writes ms since the epoch as UTC time; `-` for None.

    Example:
        >>> format_time(1357035300000)
        '2013-01-01 10:15:00.000Z'
    """
    if ms is None:
        return "-"
    if not is_event_time(ms):  # a watermark may be a bound behind the first year
        return f"{ms} ms"
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)
    return moment.isoformat(" ", "milliseconds").replace("+00:00", "Z")


def check_writable(path: str | None, output: str | None) -> str | None:
    """Gives the path of a report (`--report`), if it can be written and is not the output.

    Args:
        path: The path; None for no report.
        output: The URL of the output.

    Raises:
        ValueError: If it cannot.
    """
    if path is not None:
        taken = (output or "").partition(":///")[2]
        if taken and os.path.realpath(path) == os.path.realpath(taken):
            msg = f"--report {path!r} would overwrite --output {output!r}; name another file"
            raise ValueError(msg)
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            msg = f"--report {path!r} cannot be written: no writable folder {folder!r}"
            raise ValueError(msg)
    return path

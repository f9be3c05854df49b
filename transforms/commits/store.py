"""`CommitAfterStore`: ties a source to the sinks of its job: it lets go of what they hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from beam_lateness.transforms.commits.checkpoints import Checkpoints
from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.results import InvalidRecord, Pane, TooLateRecord

_lock = threading.Lock()
_in_flight: dict[str, InFlight] = {}
"""By run. The source and the sinks of a job on Prism are threads of one process."""


@dataclass(frozen=True)
class CommitAfterStore:
    """Lets a live source acknowledge a record only when no result depends on it any more.

    Give it to `ReadEvents`, and its two methods to the sinks (`written=`). It is for an engine that
    keeps nothing when it dies (Prism), whose source and sinks run in one process. On an engine with
    checkpoints of its own leave it out: a source acknowledges then what the engine has kept.

    It counts by the panes of one sink: give `panes_written` to one only, behind
    `RouteTooLate(verdict="stamp")` and an `AggregateWindows` that accumulates. A sink that is not
    told of has its results acknowledged too early, and without any sink nothing is acknowledged.

    Args:
        run: Names this run, as for the sinks; a later run's name must sort after it.
        windows: The windows of the job.
        checkpoint: The database of the source's checkpoint (`sqlite:///FILE`,
            `postgresql://USER@HOST/DATABASE`); it may be that of the results.
        keep_too_late: Whether too late records become dead letters (else they are counted only).
        keep_invalid: The same of what is no record.
        retract: Removes the rows that only an earlier run wrote (`RemoveStale`).
        job: Names the job among those that read the same source and share the database.

    Example:
        >>> commits = CommitAfterStore("2026-01-01T00:00", Windows("1m"), "sqlite:///windows.db")
        >>> commits.keep_too_late
        True
    """

    run: str
    windows: Windows
    checkpoint: str = field(repr=False)  # may hold a password
    keep_too_late: bool = True
    keep_invalid: bool = True
    retract: Callable[[Sequence[str], int, int], bool | None] | None = None
    job: str = ""

    def panes_written(self, panes: Iterable[Pane]) -> None:
        """Takes note of panes that a sink has written for good."""
        in_flight = _in_flight.get(self.run)
        if in_flight is not None:
            in_flight.panes_stored(panes)

    def letters_written(self, records: Iterable[TooLateRecord | InvalidRecord]) -> None:
        """Takes note of dead letters that a sink has written for good."""
        in_flight = _in_flight.get(self.run)
        if in_flight is not None:
            in_flight.letters_stored(records)

    def check(self, source: str) -> None:
        """Looks whether a source can go on from its checkpoint, and writes nothing.

        Raises:
            ValueError: If the checkpoint cannot be used, or was made with other windows.
        """
        checkpoints = Checkpoints(self.checkpoint)
        try:
            self._begin(source_name(source, self.job), checkpoints)
        finally:
            checkpoints.close()

    def open(self, source: str) -> InFlight:
        """Gives what is in flight of this run's source, in this process.

        Raises:
            ValueError: If the checkpoint cannot be used, or was made with other windows, or the
                run reads another source already.
        """
        source = source_name(source, self.job)
        with _lock:
            if self.run not in _in_flight:
                _in_flight[self.run] = self._begin(source, Checkpoints(self.checkpoint))
            in_flight = _in_flight[self.run]
        if in_flight.source != source:
            msg = (
                f"run {self.run} reads {in_flight.source} already: a CommitAfterStore serves one "
                f"ReadEvents; read {source} by another pipeline"
            )
            raise ValueError(msg)
        return in_flight

    def _begin(self, source: str, checkpoints: Checkpoints) -> InFlight:
        return InFlight(
            source,
            self.run,
            self.windows,
            checkpoints,
            self.keep_too_late,
            self.keep_invalid,
            self.retract,
        )


def source_name(source: str, job: str) -> str:
    """Names the checkpoint of a source: each job goes on from its own.

    Example:
        >>> source_name("kafka://payments?group=g", "dashboard")
        'kafka://payments?group=g for dashboard'
    """
    return f"{source} for {job}" if job else source


def forget() -> None:
    """Forgets what was in flight in this process: its jobs are over."""
    with _lock:
        for in_flight in _in_flight.values():
            in_flight.close()
        _in_flight.clear()

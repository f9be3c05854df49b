"""Commands in processes of their own that kill their whole group at a step of their progress.

The processes are forked from one that has imported everything, so that twenty of them take seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import sqlalchemy

from beam_lateness.pipelines.cli import main
from beam_lateness.transforms import metrics

NEVER: Final = 0
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_DEADLINE_S: Final = 300
_REPEATED: Final = (  # by a reconciliation that goes on, or the less the farther the last one was
    metrics.DEAD_LETTERS,
    metrics.ALREADY_RECONCILED,
    metrics.RECONCILED,
    metrics.CORRECTED_WINDOWS,
)


class Steps:
    """Counts the steps of this process: records that are counted, a statement, a file.

    Args:
        kill_at: The step at which the process group is killed; `NEVER` to count only.
    """

    def __init__(self, kill_at: int) -> None:
        self.made = 0
        self._kill_at = kill_at

    def install(self) -> None:
        """Counts from now on, whatever is open or will be."""
        increase, sync = metrics.Count.inc, os.fsync

        def inc(count: metrics.Count, by: int = 1) -> None:
            increase(count, by)
            if count._name not in _REPEATED:
                self.step()

        def fsync(descriptor: int) -> None:
            self.step()
            sync(descriptor)

        metrics.Count.inc = inc  # type: ignore[assignment, method-assign]
        os.fsync = fsync  # type: ignore[assignment]
        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", self.step)
        sqlalchemy.event.listen(sqlalchemy.Engine, "commit", self.step)

    def step(self, *_: Any) -> None:
        """Makes a step."""
        self.made += 1
        if self.made == self._kill_at:
            os.killpg(0, signal.SIGKILL)


class Killed:
    """Runs commands one after the other.

    Args:
        folder: Where their logs go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        _CONTEXT.set_forkserver_preload([__name__])

    def run(self, arguments: Sequence[str], kill_at: int = NEVER) -> int | None:
        """Runs a command to its end, which must be a good one.

        Returns:
            How many steps it made; None if it was killed.
        """
        self._number += 1
        log = self._folder / f"log{self._number}"
        process: ForkServerProcess = _CONTEXT.Process(
            target=_run, args=(list(arguments), str(log), kill_at)
        )
        process.start()
        process.join(_DEADLINE_S)
        assert process.pid is not None
        with suppress(ProcessLookupError):  # an engine outlives its command: nobody ran exit hooks
            os.killpg(process.pid, signal.SIGKILL)
        code = process.exitcode
        process.close()
        if code == -signal.SIGKILL:
            return None
        lines = log.read_text()
        assert code == 0, lines
        return int(lines.split()[-1])


def _run(arguments: list[str], log: str, kill_at: int) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    steps = Steps(kill_at)
    steps.install()
    code = main(arguments)
    print(steps.made, flush=True)
    sys.exit(code)

"""The streaming job as a process of its own, in a group that can be signalled as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

DEADLINE_S = 60.0
POLL_S = 0.02


class JobProcess:
    """A running job.

    Args:
        flags: The job's flags.
        log: Where its output goes.
        module: The program.
        environment: Variables set for it besides those of the test.
    """

    def __init__(
        self,
        flags: Sequence[str],
        log: Path,
        module: str = "beam_lateness.pipelines.cli",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "stream", *flags],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.group = self._process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    @property
    def ended(self) -> bool:
        """Whether the job itself has ended."""
        return self._process.poll() is not None

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until a condition holds, while the job runs."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert not self.ended, f"the job ended before {what}:\n{self.output}"
            assert time.monotonic() < end, f"no {what} in {DEADLINE_S} s:\n{self.output}"
            time.sleep(POLL_S)

    def await_end(self, seconds: float = DEADLINE_S) -> int:
        """Waits for its end and gives its exit code."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            msg = f"not over in {seconds} s; alive: {self.members()}\n{self.output}"
            raise AssertionError(msg) from None

    def signal(self, number: signal.Signals) -> None:
        """Signals the job alone, as `kill PID` does."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the job and all it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    def kill_engine(self) -> None:
        """Kills the engine alone."""
        for number, name in self._alive():
            if name == "prism":
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)

    def members(self) -> list[str]:
        """Gives the names of the processes of its group that are alive."""
        return [name for _, name in self._alive()]

    def _alive(self) -> list[tuple[int, str]]:
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, rest = status.read_text().split("(", 1)[1].rsplit(")", 1)
            except OSError:  # it has just ended
                continue
            state, _, group = rest.split()[:3]
            if int(group) == self.group and state != "Z":
                found.append((int(status.parent.name), name))
        return found

    def await_nobody(self) -> None:
        """Waits until its group is empty."""
        end = time.monotonic() + DEADLINE_S / 4
        while self.members():
            assert time.monotonic() < end, f"left behind: {self.members()}\n{self.output}"
            time.sleep(POLL_S)


@contextmanager
def running(
    flags: Sequence[str],
    log: Path,
    module: str = "beam_lateness.pipelines.cli",
    environment: Mapping[str, str] | None = None,
) -> Iterator[JobProcess]:
    """Runs a job; whatever happens, nothing of it is left afterwards."""
    job = JobProcess(flags, log, module, environment)
    try:
        yield job
    finally:
        job.kill()

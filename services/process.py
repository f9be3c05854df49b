"""A server that runs as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from beam_lateness.pipelines.errors import EngineError

START_S: Final = 60.0
STOP_S: Final = 30.0
POLL_S: Final = 0.02
_TAIL_BYTES: Final = 3000
_GUARD: Final = Path(__file__).with_name("guard.py")


class Process:
    """A running server; it ends with this process at the latest.

    It is in a session of its own, so that Ctrl-C in the terminal does not end it before us.

    Args:
        name: What it is, for errors.
        command: The program and its arguments.
        log: Where its output goes; closed when it has ended.
    """

    def __init__(self, name: str, command: Sequence[str | Path], log: IO[bytes]) -> None:
        self._name = name
        self._log = log
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", _GUARD, *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._guard.poll() is not None

    def await_ready(self, ready: Callable[[], bool]) -> None:
        """Waits until it serves; one that does not is ended.

        Raises:
            EngineError: If it ends instead, or takes too long; with the end of its log.
        """
        try:
            end = time.monotonic() + START_S
            while not ready():
                if self.ended:
                    msg = f"{self._name} ended at its start; its log ends with:\n{self._tail()}"
                    raise EngineError(msg)
                if time.monotonic() > end:
                    msg = (
                        f"{self._name} does not answer after {START_S:g} s; "
                        f"its log ends with:\n{self._tail()}"
                    )
                    raise EngineError(msg)
                time.sleep(POLL_S)
        except BaseException:
            self.kill()
            raise

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal, and by SIGKILL if that takes longer than `STOP_S`."""
        self._send(number)
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self._send(signal.SIGKILL)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()
        self._log.close()

    def _send(self, number: signal.Signals) -> None:
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with suppress(BrokenPipeError):  # it has ended
                self._guard.stdin.write(bytes([number]))

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return tail.decode(errors="replace").strip() or "(nothing)"

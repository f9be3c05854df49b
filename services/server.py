"""What the servers share: they run in a process of their own, and end with it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import Self

from services.process import Process


class Server(ABC):
    """A server that can be started, ended in order or not, and started anew."""

    def __init__(self) -> None:
        self._process: Process | None = None

    @abstractmethod
    def start(self) -> None:
        """Starts it, and waits until it serves."""

    def stop(self) -> None:
        """Ends it by SIGTERM, if it runs."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """Ends it by SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Starts it anew, on the same ports."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

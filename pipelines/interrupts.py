"""SIGTERM and Ctrl-C end a job in order, and quietly."""

from __future__ import annotations

import io
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

_LOG = logging.getLogger(__name__)


class _MainThreadOnly(io.TextIOBase):
    """Takes text from the main thread only: Beam's others print what cut them off.

    Args:
        shown: Where it goes.
    """

    def __init__(self, shown: TextIO) -> None:
        self._shown = shown

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        self._shown.flush()


def _note(args: threading.ExceptHookArgs) -> None:
    _LOG.debug("thread cut off", exc_info=args.exc_value)


@contextmanager
def interrupts() -> Iterator[None]:
    """Makes SIGTERM and Ctrl-C end the job, and nothing else.

    It stands in for Beam's own handler of SIGINT, which stops Prism under the job's threads.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Beam's threads are cut off in the middle of what they wait for, and say so at length.
        for name in ("apache_beam", "apache_beam.utils.subprocess_server"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        threading.excepthook = _note
        sys.stderr = _MainThreadOnly(sys.stderr)
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)

"""Warnings that a reader may have cause for again and again: told now and then."""

from __future__ import annotations

import logging
import time
from typing import Final

_EVERY_S: Final = 30.0


class Notices:
    """Warns of one input, at most once in 30 s.

    Args:
        log: Where to.
        about: Names the input.
    """

    def __init__(self, log: logging.Logger, about: str) -> None:
        self._log, self._about = log, about
        self._shown: float | None = None

    def show(self, text: str) -> None:
        """Warns, unless that was done just now."""
        now = time.monotonic()
        if self._shown is None or now - self._shown >= _EVERY_S:
            self._shown = now
            self._log.warning("%s: %s", self._about, text)

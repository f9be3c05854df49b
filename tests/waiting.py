"""Waiting for what other threads and processes do: by what it shows, not by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from beam_lateness.transforms.sources.connector import SplitReader

TIMEOUT_S: Final = 30.0
_BLOCK: Final = 1 << 20


def await_that(
    condition: Callable[[], bool], seconds: float = TIMEOUT_S, what: str = "what was waited for"
) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what} in {seconds} s"
        time.sleep(0.005)


def catch_up(reader: SplitReader, *, caught_up: bool = True) -> None:
    """Waits until an empty block says that there is nothing more, or that this is not known."""

    def says() -> bool:
        block = reader.read(_BLOCK)
        assert block.empty
        return block.caught_up is caught_up

    await_that(says)

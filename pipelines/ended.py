"""How a job ended, whatever engine ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Args:
        counts: What it counted, by metric name.
        interrupted: Whether it ended before its input did; windows may be open then.
        whole: Whether the counts are of the whole input: not if the job went on from a savepoint,
            or was started anew after a failure.
        remark: What to do to go on; None if there is nothing to say.
    """

    counts: Mapping[str, int]
    interrupted: bool = False
    whole: bool = True
    remark: str | None = None

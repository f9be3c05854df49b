"""Names of runs: a later run's name sorts after an earlier one's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timezone


def _now() -> datetime:
    return datetime.now(timezone.utc)


def new_run(clock: Callable[[], datetime] = _now) -> str:
    """Names a run by its start, to the microsecond, and four random digits.

    Example:
        >>> new_run(lambda: datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc))[:-4]
        '20260102T030405.000006Z-'
    """
    return f"{clock():%Y%m%dT%H%M%S.%f}Z-{uuid.uuid4().hex[:4]}"

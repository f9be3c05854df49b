"""What went wrong, in one line: engines tell whole stacks, of Java around those of Python."""

from __future__ import annotations

import re
from typing import Final

TRACEBACK: Final = "Traceback (most recent call last):"
_ERROR_LINE: Final = re.compile(r"[\w.]*(?:Error|Exception)\b.*:")
_CAUSED_BY: Final = "Caused by: "


def cause_of(text: str) -> str:
    r"""Gives the line of a stack that names the cause.

    Example:
        >>> cause_of("java.lang.Error: no\nCaused by: java.io.IOException: x")
        'java.io.IOException: x'
    """
    if TRACEBACK in text:
        frames = text.rpartition(TRACEBACK)[2].lstrip("\n").splitlines()
        named = [line for line in frames if line and not line[0].isspace()]
        if named:
            return named[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(_CAUSED_BY)]
    if causes:
        return causes[-1].removeprefix(_CAUSED_BY)
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return errors[-1] if errors else lines[0] if lines else "no reason given"

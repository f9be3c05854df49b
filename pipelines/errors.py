"""What goes wrong outside a job."""

from __future__ import annotations


class EngineError(RuntimeError):
    """What a job needs outside its process cannot be had; the message says what to do."""

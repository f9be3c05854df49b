"""What goes wrong with the local servers."""

from __future__ import annotations


class ServiceError(RuntimeError):
    """A local server cannot be had, or did not start; the message says what to do."""

"""Every test here runs on Prism."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def with_prism(prism: str) -> None:
    """Makes Prism be there."""

"""Stores on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.transforms.reconcile.stores import Store

if TYPE_CHECKING:
    from services.postgres_server import PostgresServer

MakeStore: TypeAlias = Callable[..., Store]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.live)])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Makes stores in databases of their own."""

    def make(**settings: Any) -> Store:
        name = f"store_{uuid.uuid4().hex[:12]}"
        if request.param == "sqlite":
            return Store(f"sqlite:///{tmp_path / name}.db", **settings)
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return Store(server.create_database(name), **settings)

    return make


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    """A store of sums, without an audit trail."""
    return make_store()

"""A PostgreSQL server whose data is gone when it is stopped."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from beam_lateness.pipelines.cache import run_tool
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.ports import LOOPBACK, accepts, free_ports, require_free
from services.process import Process
from services.server import Server

USER: Final = "app"
DATABASE: Final = "postgres"  # which each server has
_NAME: Final = "the PostgreSQL server"
_UNPRIVILEGED: Final = "postgres"  # the server refuses to run as root
_SETTINGS: Final = (
    f"listen_addresses={LOOPBACK}",
    "fsync=off",  # its data is gone with it anyway
    "full_page_writes=off",
    "shared_buffers=64MB",
    "max_connections=60",
    "max_prepared_transactions=2",
)


class PostgresServer(Server):
    """A PostgreSQL server on the loopback interface, with a superuser `app`.

    Args:
        port: Where it listens; a free port by default.
    """

    def __init__(self, port: int | None = None) -> None:
        self._port = free_ports(1)[0] if port is None else port
        self._folder: Path | None = None
        self.password: Final = secrets.token_hex(8)
        super().__init__()

    def url(self, database: str = DATABASE) -> str:
        """Gives the URL of a database of it."""
        return f"postgresql://{USER}:{self.password}@{LOOPBACK}:{self._port}/{database}"

    def start(self) -> None:
        """Starts it, and waits until it serves.

        Raises:
            EngineError: If it runs already, PostgreSQL is not installed, or it does not start.
        """
        if self._process is not None:
            msg = f"{_NAME} on port {self._port} runs already"
            raise EngineError(msg)
        programs = find_programs()
        require_free(_NAME, self._port)
        if self._folder is None:
            self._folder = self._make_folder(programs)
        process = Process(
            _NAME,
            [
                *_as_nobody(),
                programs / "postgres",
                *("-D", self._folder / "data", "-p", str(self._port), "-k", self._folder),
                *(part for setting in _SETTINGS for part in ("-c", setting)),
            ],
            (self._folder / "log").open("ab+"),  # the process closes it
        )
        process.await_ready(self._serves)
        self._process = process

    def stop(self) -> None:
        """Ends it, whoever is connected, and forgets what it held."""
        self.interrupt()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def interrupt(self) -> None:
        """Ends it, whoever is connected; `start` goes on with its data."""
        if self._process is not None:
            self._process.stop(signal.SIGINT)
            self._process = None

    def create_database(self, name: str) -> str:
        """Creates a database, and gives its URL."""
        self._run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)

    def _make_folder(self, programs: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        password = folder / "password"
        password.write_text(self.password)
        if _as_nobody():
            shutil.chown(folder, _UNPRIVILEGED)
            shutil.chown(password, _UNPRIVILEGED)
        run_tool(
            [
                *_as_nobody(),
                programs / "initdb",
                *("-D", folder / "data", "-U", USER, "-A", "scram-sha-256", "--no-sync"),
                *("--pwfile", password, "-E", "UTF8", "--locale=C.UTF-8"),
            ],
            folder,
            "making the PostgreSQL server's data folder",
        )
        password.unlink()
        return folder

    def _serves(self) -> bool:
        if not accepts(self._port):
            return False
        try:
            self._run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def find_programs() -> Path:
    """Finds the folder of PostgreSQL's programs.

    Raises:
        EngineError: If it is not installed.
    """
    for folder in _folders():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    msg = "PostgreSQL is not installed: get it (Debian: apt install postgresql) and run this again"
    raise EngineError(msg)


def _folders() -> Iterator[Path]:
    for name in ("initdb", "pg_ctl"):
        found = shutil.which(name)
        if found:
            yield Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)


def _as_nobody() -> list[str]:
    """What runs a program as somebody else than root."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        msg = f"PostgreSQL does not run as root, and there is no user {_UNPRIVILEGED}"
        raise EngineError(msg) from None
    return ["setpriv", f"--reuid={_UNPRIVILEGED}", "--clear-groups"]

"""Things built once and kept: programs and jars, in this package's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from beam_lateness.pipelines.errors import EngineError

_TAIL_CHARS: Final = 2000


def cache_folder() -> Path:
    """Gives the folder in which this package keeps what it has built."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "beam-lateness"


def digest(sources: Iterable[Path]) -> str:
    """Gives a short hash of the contents of files."""
    hashed = hashlib.sha256()
    for source in sources:
        hashed.update(source.read_bytes())
    return hashed.hexdigest()[:12]


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Builds a folder in the cache, unless it is there.

    Several processes may ask at once: one builds, and the others wait for it. A build that breaks
    off leaves nothing that would be taken for a whole one.

    Args:
        name: The folder's name; it changes with what the build depends on.
        build: Fills an empty folder.

    Returns:
        The built folder.
    """
    target = cache_folder() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():  # else it was built while this process waited
            with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=target.parent) as folder:
                built = Path(folder) / name
                built.mkdir()
                build(built)
                built.rename(target)
    return target


def run_tool(command: Sequence[str | Path], folder: Path, what: str) -> None:
    """Runs a build tool.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        what: What it does, for the error.

    Raises:
        EngineError: If it fails; it ends with what the tool said last.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = done.stdout[-_TAIL_CHARS:].strip()
        msg = f"{what} failed: `{' '.join(map(str, command))}` said:\n{said}"
        raise EngineError(msg)

"""Files that only their owner reads: records of others stand in them, and they must come whole."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from typing import Final

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


def write_private(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a whole file at once: readers see the old one or the new one, never a part.

    The new file has mode 0600 from the start, whatever the old one's was, and outlives a loss of
    power. A symbolic link stays one; a pipe or a device is written as it is. A process that is
    killed may leave a hidden file `.NAME.*.tmp` beside it.

    Args:
        path: The file; its folder must exist.
        data: All of it.

    Raises:
        OSError: If it cannot be written; the old file is as it was.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_private(f"{folder}/report", b"{}")
        ...     oct(os.stat(f"{folder}/report").st_mode & 0o777)
        '0o600'
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
        with open(target, "wb", buffering=0) as special:  # /dev/stdout must not become a file
            write_all(special, data)
        return
    folder, name = os.path.split(target)
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{name}.", folder)  # its mode is 0600
    try:
        with FileIO(descriptor, "wb") as file:
            write_all(file, data)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)


def append_private(path: str | os.PathLike[str]) -> FileIO:
    """Opens a file to append to, unbuffered; one that it makes has mode 0600 from the start.

    A file that exists keeps its mode. Its `write` may take less than all: see `write_all`.

    Raises:
        OSError: If it cannot be opened.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for word in (b"one ", b"two"):
        ...         with append_private(f"{folder}/words") as file:
        ...             write_all(file, word)
        ...     os.stat(f"{folder}/words").st_size
        7
    """
    return open(path, "ab", buffering=0, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder of mode 0700, and those above it as usual; one that exists stays as it is.

    Raises:
        OSError: If it cannot be made, or something else has its name.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_private_folder(f"{folder}/letters")
        ...     oct(os.stat(f"{folder}/letters").st_mode & 0o777)
        '0o700'
    """
    os.makedirs(path, _FOLDER_MODE, exist_ok=True)


class OwnFile:
    """A file that nobody else appends to; after a failed write another one is begun.

    Args:
        name: Names a new file; its folder exists.
    """

    def __init__(self, name: Callable[[], str]) -> None:
        self._name = name
        self._path: str | None = None

    def append(self, data: bytes) -> None:
        """Appends with one write; when it returns, all of it outlives a loss of power.

        Raises:
            OSError: If it cannot be written; what follows goes to a new file, since this one may
                end within a line.
        """
        known, self._path = self._path, None
        path = known or self._name()
        with append_private(path) as file:
            write_all(file, data)
            os.fsync(file.fileno())
        if known is None:
            sync_folder(os.path.dirname(path) or ".")
        self._path = path


def is_writable_folder(directory: str) -> bool:
    """Makes a private folder if need be; says whether it is a local one that can be written."""
    try:
        if "://" not in directory:
            make_private_folder(directory)
        return os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        return False


def write_all(file: FileIO, data: bytes) -> None:
    """Writes all of some data to an unbuffered file, which may take it in pieces.

    Raises:
        OSError: If it cannot; a part may have been written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Makes the names in a folder outlive a loss of power, as fsync does a file's content.

    Raises:
        OSError: If it cannot be opened.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

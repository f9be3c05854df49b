"""Files of lines on any Beam filesystem: each file is a split, its position a byte offset."""

from __future__ import annotations

import functools
import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from beam_lateness.transforms.sources.compressed import is_compressed, open_file
from beam_lateness.transforms.sources.connector import Block, SplitPosition
from beam_lateness.transforms.sources.formats import LineFormat

_LOG = logging.getLogger(__name__)

_BOM: Final = b"\xef\xbb\xbf"
_HEAD_BLOCK: Final = 1 << 16
_HEAD_BYTES: Final = 1024


@dataclass(frozen=True)
class Files:
    """Files of JSON lines or CSV, plain or compressed (gzip, bzip2 ... by their ending).

    Args:
        patterns: Paths or globs on any filesystem Beam knows; with `follow`, folders too.
        line_format: What the lines hold.
        follow: Whether to go on reading as local files grow and new ones appear (`tail -F`).

    Raises:
        ValueError: If there are no patterns, or `follow` is asked of files that cannot grow.

    Example:
        >>> from beam_lateness import JsonLines
        >>> Files(["/data/day-*.jsonl.gz"], JsonLines("account", "amount")).follow
        False
    """

    patterns: Sequence[str]
    line_format: LineFormat
    follow: bool = False
    _folders: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            msg = f"patterns must be a list of paths, got the text {self.patterns!r}"
            raise ValueError(msg)
        if not self.patterns or not all(self.patterns):
            msg = "patterns (--input) must name at least one file or glob, got nothing"
            raise ValueError(msg)
        if not self.follow:
            return
        for pattern in self.patterns:
            if "://" in pattern or is_compressed(pattern):
                msg = f"follow (--follow) needs plain local files or folders, got {pattern!r}"
                raise ValueError(msg)
        folders = frozenset(pattern for pattern in self.patterns if os.path.isdir(pattern))
        object.__setattr__(self, "_folders", folders)

    @property
    def follows(self) -> bool:
        """Whether the files are read on as they grow."""
        return self.follow

    def initial_positions(self) -> dict[str, SplitPosition]:
        """Finds the files, in the order of their names.

        Raises:
            ValueError: If a pattern matches no file, or cannot be looked up.
        """
        sizes: dict[str, int] = {}
        for pattern in self.patterns:
            if pattern in self._folders:
                pattern = os.path.join(pattern, "*")
            found = _match(pattern)
            if not found and not self.follow:
                msg = f"--input {pattern!r} matches no file"
                raise ValueError(msg)
            sizes.update(found)
        sizes = _distinct(sizes)
        if self.follow:
            readers = self._readers_by_identity()
            return {
                name: SplitPosition()
                for name in sorted(sizes)
                if not _left_out(name) and not _held(name, readers)
            }
        return {
            name: SplitPosition(end=None if is_compressed(name) else sizes[name])
            for name in sorted(sizes)
        }

    def open(self, split: str, position: SplitPosition) -> FileSplitReader:
        """Opens a file at a position.

        Raises:
            ValueError: If it cannot be read.
        """
        return FileSplitReader(split, position, self)

    def holds(self, path: str) -> bool:
        """Says whether a split of another name reads, or has read, the file now named `path`.

        So a log file that was rotated within a followed folder is not read again.
        """
        return _held(path, self._readers_by_identity())

    def _readers_by_identity(self) -> _Readers:
        """The open readers by each file that they read, or have read."""
        readers: _Readers = {}
        for reader in list(_open_readers):
            if reader.files is self:
                for identity in reader.identities():
                    readers.setdefault(identity, []).append(reader)
        return readers

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives the lines of all files from the start, each with its file's header line.

        Raises:
            ValueError: If a file cannot be read.
        """
        for split, position in self.initial_positions().items():
            reader = self.open(split, position)
            try:
                block = reader.read(_HEAD_BLOCK)
                while block.data:
                    for raw in filter(bytes.strip, block.data.split(b"\n")):
                        yield reader.header, raw
                    block = reader.read(_HEAD_BLOCK)
            finally:
                reader.close()


class FileSplitReader:
    """Reads whole lines of one file from a byte offset (after decompression).

    Args:
        split: The file's name.
        position: Where to start.
        files: The input it belongs to.
    """

    def __init__(self, split: str, position: SplitPosition, files: Files) -> None:
        self.split = split
        self.files = files
        self.header = b""
        self._end = position.end
        self._follow = files.follow
        self._file: BinaryIO | Any = None
        self._base = position.base
        self._retired: list[_Retired] = []
        self._open(position.offset)
        _open_readers.add(self)

    def _open(self, offset: int) -> None:
        """Opens the file and steps over what stands before the records."""
        self._rest: list[bytes] = []  # the start of a line whose end has not come yet
        try:
            self._file = open_file(self.split)
            start = len(_BOM) if self._file.read(len(_BOM)) == _BOM else 0
            self._file.seek(start)
            if self.files.line_format.has_header:
                start += self._read_header()
            self._offset = max(offset, start)
            self._file.seek(self._offset)
        except Exception as error:  # filesystems and decompressors raise what they like
            self.close()
            raise self._unreadable(error) from error

    def _read_header(self) -> int:
        """Reads the header line and blank lines before it; gives their length in bytes."""
        length = 0
        while line := self._file.readline():
            if self._follow and not line.endswith(b"\n"):
                break  # still being written
            length += len(line)
            if line.strip():
                self.header = line.rstrip(b"\r\n")
                break
        return length

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"--input {self.split!r} cannot be read: {error}")

    def read(self, size: int) -> Block:
        """Gives the next lines, of about `size` bytes; a longer line comes whole.

        A followed file that was replaced under its name (log rotation), or cut short, is first
        read to its end, and then from the start of what is there now.

        Raises:
            ValueError: If the file cannot be read on.
        """
        if self._follow and self.files.line_format.has_header and not self.header:
            self._file.close()
            self._open(0)
            if not self.header:
                return self._block(b"", at_end=False)
        block = self._read_lines(size)
        if block.data or not self._follow or not self._replaced():
            return block
        if self._rest:  # nobody will finish this line any more
            unfinished = b"".join(self._rest)
            self._rest = []
            return self._block(unfinished, at_end=False)
        _LOG.warning("%s was cut short or replaced: reading it from its start", self.split)
        self._retire()
        self._file.close()
        self._base += self._offset
        self._open(0)
        return self._read_lines(size)

    def _read_lines(self, size: int) -> Block:
        pieces, self._rest = self._rest, []
        held = sum(map(len, pieces))
        while True:
            piece = self._read_piece(size, self._offset + held)
            if not piece:
                if self._follow:  # keep the unfinished line for later
                    self._rest = pieces
                    return self._block(b"", at_end=False)
                return self._block(b"".join(pieces), at_end=True)
            cut = piece.rfind(b"\n") + 1
            if cut:
                self._rest = [piece[cut:]] if cut < len(piece) else []
                data = b"".join([*pieces, piece[:cut]])
                ended = not self._rest and self._offset + len(data) == self._end
                return self._block(data, at_end=ended)
            pieces.append(piece)
            held += len(piece)

    def _read_piece(self, size: int, at: int) -> bytes:
        if self._end is not None:
            size = min(size, self._end - at)
        try:
            piece: bytes = self._file.read(size) if size > 0 else b""
        except Exception as error:  # filesystems and decompressors raise what they like
            raise self._unreadable(error) from error
        return piece

    def _block(self, data: bytes, at_end: bool) -> Block:
        block = Block(data, self._offset, at_end, self._base)
        self._offset += len(data)
        return block

    def _replaced(self) -> bool:
        """Says whether the name now stands for a file that this input has not read yet."""
        try:
            now = os.stat(self.split)
        except FileNotFoundError:  # moved away: what is open was read to its end
            return False
        if _identity(now) == _identity(os.fstat(self._file.fileno())):
            return now.st_size < self._offset + sum(map(len, self._rest))
        return not self.files.holds(self.split)

    def _retire(self) -> None:
        """Remembers the open file, to know it again under the name that rotation gave it."""
        descriptor = self._file.fileno()
        head = os.pread(descriptor, _HEAD_BYTES, 0)
        self._retired.append(_Retired(_identity(os.fstat(descriptor)), head, self._offset))

    def identities(self) -> list[_Identity]:
        """The files that this reader reads, or has read."""
        found = [retired.identity for retired in self._retired]
        with suppress(OSError, ValueError):  # closed meanwhile
            found.append(_identity(os.fstat(self._file.fileno())))
        return found

    def holds(self, path: str) -> bool:
        """Says whether the file now named `path` is one that this reader reads, or has read."""
        try:
            now = os.stat(path)
            if _identity(now) == _identity(os.fstat(self._file.fileno())):
                return True
            known = [r for r in self._retired if r.identity == _identity(now)]
            return any(r.offset <= now.st_size and r.begins(path) for r in known)
        except OSError:
            return False

    def close(self) -> None:
        """Closes the file."""
        _open_readers.discard(self)
        if self._file is not None:
            self._file.close()


class _Retired(NamedTuple):
    """A file that was read to its end and then replaced under its name.

    A file system gives an inode number again: the first bytes tell a new file from the old one.
    """

    identity: _Identity
    head: bytes
    offset: int

    def begins(self, path: str) -> bool:
        with open(path, "rb") as file:
            return file.read(len(self.head)) == self.head


_open_readers: weakref.WeakSet[FileSplitReader] = weakref.WeakSet()


_Identity: TypeAlias = tuple[int, int]
_Readers: TypeAlias = dict[_Identity, list[FileSplitReader]]


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _held(path: str, readers: _Readers) -> bool:
    """Says whether one of the readers, of a split of another name, holds the file at `path`."""
    try:
        candidates = readers.get(_identity(os.stat(path)), [])
    except OSError:  # gone meanwhile
        return False
    return any(reader.split != path and reader.holds(path) for reader in candidates)


@functools.cache  # so that it warns once a file
def _left_out(path: str) -> bool:
    """Says whether a followed file cannot be read as it grows."""
    if is_compressed(path):
        _LOG.warning("%s is compressed, and left out: --follow reads plain files only", path)
        return True
    return False


def _distinct(sizes: dict[str, int]) -> dict[str, int]:
    """Keeps one name of each local file that is named in several ways."""
    by_file: dict[str, str] = {}
    for name in sorted(sizes):
        by_file.setdefault(name if "://" in name else os.path.realpath(name), name)
    return {name: sizes[name] for name in by_file.values()}


def _match(pattern: str) -> dict[str, int]:
    if os.path.isfile(pattern):  # a name may hold what would mean something in a glob
        return {pattern: os.path.getsize(pattern)}
    here = "" if os.path.dirname(pattern) else os.path.join(os.curdir, "")  # Beam wants a folder
    try:
        (result,) = FileSystems.match([here + pattern])
    except (BeamIOError, OSError, ValueError) as error:
        msg = f"--input {pattern!r} cannot be looked up: {error}"
        raise ValueError(msg) from error
    return {
        metadata.path.removeprefix(here): metadata.size_in_bytes
        for metadata in result.metadata_list
        if not os.path.isdir(metadata.path)
    }

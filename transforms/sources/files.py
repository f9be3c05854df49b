"""Files of lines on any Beam filesystem: each file is a split, its position a byte offset."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_lateness.transforms.sources.connector import Block, SplitPosition
from beam_lateness.transforms.sources.formats import LineFormat

_LOG = logging.getLogger(__name__)

_BOM: Final = b"\xef\xbb\xbf"
_HEAD_BLOCK: Final = 1 << 16


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
            if "://" in pattern or _compressed(pattern):
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
        if self.follow:
            return {name: SplitPosition() for name in sorted(sizes) if not _compressed(name)}
        return {
            name: SplitPosition(end=None if _compressed(name) else sizes[name])
            for name in sorted(sizes)
        }

    def open(self, split: str, position: SplitPosition) -> FileSplitReader:
        """Opens a file at a position.

        Raises:
            ValueError: If it cannot be read.
        """
        return FileSplitReader(split, position, self.line_format.has_header, self.follow)

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives the lines of all files from the start, each with its file's header line.

        Raises:
            ValueError: If a file cannot be read.
        """
        for split, position in self.initial_positions().items():
            reader = self.open(split, position)
            try:
                at_end = False
                while not at_end:
                    data, _, at_end = reader.read(_HEAD_BLOCK)
                    for raw in data.split(b"\n"):
                        yield reader.header, raw
                    at_end = at_end or not data
            finally:
                reader.close()


class FileSplitReader:
    """Reads whole lines of one file from a byte offset (after decompression)."""

    def __init__(
        self, path: str, position: SplitPosition, has_header: bool, follow: bool = False
    ) -> None:
        self._path = path
        self._end = position.end
        self._has_header = has_header
        self._follow = follow
        self.header = b""
        self._open(position.offset)

    def _open(self, offset: int) -> None:
        """Opens the file and steps over what stands before the records."""
        self._rest: list[bytes] = []  # the start of a line whose end has not come yet
        try:
            self._file: BinaryIO | Any = FileSystems.open(self._path)
            start = len(_BOM) if self._file.read(len(_BOM)) == _BOM else 0
            self._file.seek(start)
            if self._has_header:
                line = self._file.readline()
                complete = line.endswith(b"\n") or not self._follow
                self.header = line.strip(b"\r\n") if complete else b""
                start += len(line) if complete else 0
            self._offset = max(offset, start)
            self._file.seek(self._offset)
        except (OSError, BeamIOError, EOFError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"--input {self._path!r} cannot be read: {error}")

    def read(self, size: int) -> Block:
        """Gives the next lines, of about `size` bytes; a longer line comes whole.

        Raises:
            ValueError: If the file cannot be read on.
        """
        if self._follow and self._replaced():
            _LOG.warning("%s was truncated or replaced: reading it from its start", self._path)
            self.close()
            self._open(0)
        if self._follow and self._has_header and not self.header:
            self.close()
            self._open(0)
            if not self.header:
                return Block(b"", self._offset, at_end=False)
        pieces, self._rest = self._rest, []
        held = sum(map(len, pieces))
        while True:
            piece = self._read_piece(size, self._offset + held)
            if not piece:
                if self._follow:  # keep the unfinished line for later
                    self._rest = pieces
                    return Block(b"", self._offset, at_end=False)
                return self._block(b"".join(pieces), at_end=True)
            cut = piece.rfind(b"\n") + 1
            if cut:
                self._rest = [piece[cut:]] if cut < len(piece) else []
                data = b"".join([*pieces, piece[:cut]])
                ended = not self._rest and self._offset + len(data) == self._end
                return self._block(data, at_end=ended)
            pieces.append(piece)
            held += len(piece)

    def _replaced(self) -> bool:
        """Says whether the path now names another file, or a shorter one (as log rotation does)."""
        try:
            now = os.stat(self._path)
        except FileNotFoundError:  # moved away: what is open is read to its end
            return False
        return now.st_size < self._offset or now.st_ino != os.fstat(self._file.fileno()).st_ino

    def _read_piece(self, size: int, at: int) -> bytes:
        if self._end is not None:
            size = min(size, self._end - at)
        try:
            piece: bytes = self._file.read(size) if size > 0 else b""
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from error
        return piece

    def _block(self, data: bytes, at_end: bool) -> Block:
        block = Block(data, self._offset, at_end)
        self._offset += len(data)
        return block

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _compressed(path: str) -> bool:
    kind = CompressionTypes.detect_compression_type(path)
    return bool(kind != CompressionTypes.UNCOMPRESSED)


def _match(pattern: str) -> dict[str, int]:
    try:
        (result,) = FileSystems.match([pattern])
    except (BeamIOError, OSError, ValueError) as error:
        msg = f"--input {pattern!r} cannot be looked up: {error}"
        raise ValueError(msg) from error
    return {
        metadata.path: metadata.size_in_bytes
        for metadata in result.metadata_list
        if not os.path.isdir(metadata.path)
    }

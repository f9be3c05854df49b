"""Opens files on any Beam filesystem, decompressing by their ending."""

from __future__ import annotations

import bz2
import gzip
from typing import Any

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems


def open_file(path: str) -> Any:
    """Opens a file, decompressing by its ending.

    gzip and bzip2 by Python's own modules: Beam's take a file that was cut off for a whole one.
    """
    kind = CompressionTypes.detect_compression_type(path)
    if kind not in (CompressionTypes.GZIP, CompressionTypes.BZIP2):
        return FileSystems.open(path)
    raw = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return _Gzip(raw) if kind == CompressionTypes.GZIP else _Bzip2(raw)


class _Gzip(gzip.GzipFile):
    """A gzip file that closes what it reads from."""

    def __init__(self, raw: Any) -> None:
        super().__init__(fileobj=raw)
        self._raw = raw

    def close(self) -> None:
        super().close()
        self._raw.close()


class _Bzip2(bz2.BZ2File):
    """A bzip2 file that closes what it reads from."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self._raw = raw

    def close(self) -> None:
        super().close()
        self._raw.close()


def is_compressed(path: str) -> bool:
    """Says whether a file is compressed, by its ending."""
    kind = CompressionTypes.detect_compression_type(path)
    return bool(kind != CompressionTypes.UNCOMPRESSED)

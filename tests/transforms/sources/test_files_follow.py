"""Files that grow while they are read, as `tail -F` reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.files import Files, FileSplitReader
from beam_lateness.transforms.sources.formats import Csv, JsonLines, LineFormat

JSON = JsonLines("k")
CSV = Csv("k")


class Follow(Protocol):
    """Opens a file to follow it."""

    def __call__(
        self, path: Path, offset: int = 0, line_format: LineFormat = JSON
    ) -> FileSplitReader: ...


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Opens files to follow them, and closes them afterwards."""
    with ExitStack() as stack:

        def opened(path: Path, offset: int = 0, line_format: LineFormat = JSON) -> FileSplitReader:
            files = Files([str(path)], line_format, follow=True)
            return stack.enter_context(closing(files.open(str(path), SplitPosition(offset))))

        yield opened


def append(path: Path, data: bytes) -> None:
    """Lets a file grow."""
    with path.open("ab") as file:
        file.write(data)


def new(reader: FileSplitReader, size: int = 100) -> bytes:
    """What a reader gives now: it is never at an end."""
    data = b""
    while True:
        block = reader.read(size)
        assert not block.at_end
        if not block.data:
            return data
        data += block.data


def test_a_growing_file_gives_its_new_lines(tmp_path: Path, follow: Follow) -> None:
    """Each once, and nothing when there is nothing."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    reader = follow(path)
    assert [new(reader), new(reader)] == [b"1\n", b""]
    append(path, b"2\n3\n")
    assert [new(reader), new(reader)] == [b"2\n3\n", b""]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_an_unfinished_line_is_kept_until_it_is_whole(
    tmp_path: Path, follow: Follow, size: int
) -> None:
    """A writer may flush in the middle of a line, or of a character."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    reader = follow(path)
    assert new(reader, size) == b"1\n"
    for piece in (b'{"k":"', b"\xc3", b"\xa9"):
        append(path, piece)
        assert new(reader, size) == b""
    append(path, b'"}\n2')
    block = reader.read(size)
    assert block.data == b'{"k":"\xc3\xa9"}\n'
    assert block.offset == 2
    assert new(reader, size) == b""


def test_following_goes_on_from_an_offset(tmp_path: Path, follow: Follow) -> None:
    """After a restart, an unfinished line is read again from its start."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3")
    reader = follow(path, 2)
    assert new(reader) == b"2\n"
    append(path, b"0\n")
    reader = follow(path, 4)
    assert new(reader) == b"30\n"


def test_new_files_of_a_folder_or_a_glob_are_found(tmp_path: Path) -> None:
    """Also where there was none at first; compressed files do not grow."""
    for pattern in (str(tmp_path), str(tmp_path / "*.jsonl")):
        files = Files([pattern], JSON, follow=True)
        before = files.initial_positions()
        name = tmp_path / f"new-{len(before)}.jsonl"
        name.write_bytes(b"1\n")
        (tmp_path / "old.jsonl.gz").touch()
        (tmp_path / "folder.jsonl").mkdir(exist_ok=True)
        assert files.initial_positions() == before | {str(name): SplitPosition()}


@pytest.mark.parametrize("refill", [b"", b"4\n"])
def test_a_truncated_file_is_read_from_its_start(
    tmp_path: Path, follow: Follow, refill: bytes
) -> None:
    """As a log is that was copied away and emptied."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    reader = follow(path)
    assert new(reader) == b"1\n2\n3\n"
    path.write_bytes(refill)
    assert new(reader) == refill
    append(path, b"5\n")
    assert new(reader) == b"5\n"


def test_an_unfinished_line_that_is_cut_off_is_not_glued_to_the_next(
    tmp_path: Path, follow: Follow
) -> None:
    """The lines that come instead of it come whole."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"unfinished")
    reader = follow(path)
    assert new(reader) == b""
    path.write_bytes(b"")
    for _ in range(3):  # it may come as a line of its own
        assert reader.read(100).data in (b"", b"unfinished")
    append(path, b"1\n")
    assert new(reader) == b"1\n"
    append(path, b"2222222222\n")
    assert new(reader) == b"2222222222\n"


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path, follow: Follow) -> None:
    """Even if it is longer than the old one was."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    reader = follow(path)
    assert new(reader) == b"1\n"
    (tmp_path / "next").write_bytes(b"2\n3\n4\n")
    os.replace(tmp_path / "next", path)
    assert new(reader) == b"2\n3\n4\n"


def test_rotation_loses_no_line(tmp_path: Path, follow: Follow) -> None:
    """What was written to the old file since the last poll is read before the new one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    reader = follow(path)
    assert new(reader) == b"1\n"
    append(path, b"2\n")
    path.rename(tmp_path / "a.jsonl.1")
    path.write_bytes(b"3\n")
    assert new(reader) == b"2\n3\n"


def test_a_file_that_was_moved_away_is_read_to_its_end(tmp_path: Path, follow: Follow) -> None:
    """Until another takes its name."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    reader = follow(path)
    assert new(reader) == b"1\n"
    append(path, b"2\n")
    path.rename(tmp_path / "a.jsonl.1")
    assert [new(reader), new(reader)] == [b"2\n", b""]
    path.write_bytes(b"3\n")
    assert new(reader) == b"3\n"


def test_a_csv_file_may_get_its_header_later(tmp_path: Path, follow: Follow) -> None:
    """Nothing is read before the header is whole."""
    path = tmp_path / "a.csv"
    path.touch()
    reader = follow(path, line_format=CSV)
    for piece in (b"", b"k,", b"v"):
        append(path, piece)
        assert new(reader) == b""
        assert reader.header == b""
    append(path, b"\na,1\n")
    assert new(reader) == b"a,1\n"
    assert reader.header == b"k,v"


def test_a_replaced_csv_file_has_its_own_header(tmp_path: Path, follow: Follow) -> None:
    """It is no record, and may differ."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"k,v\na,1\n")
    reader = follow(path, line_format=CSV)
    assert new(reader) == b"a,1\n"
    (tmp_path / "next").write_bytes(b"v,k\n2,b\n")
    os.replace(tmp_path / "next", path)
    assert new(reader) == b"2,b\n"
    assert reader.header == b"v,k"


@pytest.mark.parametrize("pattern", ["gs://bucket/a.jsonl", "a.jsonl.gz"])
def test_only_plain_local_files_can_be_followed(pattern: str) -> None:
    """Refused at construction, by the flag."""
    with pytest.raises(ValueError, match=r"follow \(--follow\) needs plain local files"):
        Files([pattern], JSON, follow=True)

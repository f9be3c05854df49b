"""Private files: nobody else reads them, and nobody ever sees a part of one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.transforms import private_files
from beam_lateness.transforms.private_files import (
    append_private,
    make_private_folder,
    sync_folder,
    write_all,
    write_private,
)

SIZE = 1 << 21
LETTERS = b"abcdefgh"

# Both run the module by itself: without the package they start at once.
ENDLESS_WRITER = """
import runpy, sys
write_private = runpy.run_path(sys.argv[1])["write_private"]
number = 0
while True:
    write_private(sys.argv[2], b"abcdefgh"[number % 8 : number % 8 + 1] * int(sys.argv[3]))
    sys.stdout.write(".")
    sys.stdout.flush()
    number += 1
"""
WRITER_ON_A_FULL_DISK = """
import resource, runpy, sys
write_private = runpy.run_path(sys.argv[1])["write_private"]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_private(sys.argv[2], b"n" * 5000)
except OSError:
    sys.exit(77)
"""


def mode(path: Path) -> int:
    """The permissions of a file or folder."""
    return path.stat().st_mode & 0o777


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Sets the umask for a while."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def is_whole(data: bytes) -> bool:
    """Whether it is one of the contents that the endless writer writes."""
    return len(data) == SIZE and data == data[:1] * SIZE and data[:1] in LETTERS


def test_a_file_and_a_folder_are_the_owners_only(tmp_path: Path) -> None:
    """Even where the umask would let all read."""
    with umask(0):
        make_private_folder(tmp_path / "folder")
        write_private(tmp_path / "folder" / "written", b"x")
        append_private(tmp_path / "folder" / "appended").close()
    assert mode(tmp_path / "folder") == 0o700
    assert {mode(path) for path in (tmp_path / "folder").iterdir()} == {0o600}


def test_a_file_that_all_could_read_becomes_private_when_written_anew(tmp_path: Path) -> None:
    """It is a new file of the old one's name."""
    path = tmp_path / "report"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)


def test_a_file_that_is_appended_to_keeps_its_mode(tmp_path: Path) -> None:
    """Its owner may have opened it to others on purpose."""
    path = tmp_path / "letters"
    path.write_bytes(b"old,")
    path.chmod(0o644)
    with append_private(path) as file:
        write_all(file, b"new")
    assert (path.read_bytes(), mode(path)) == (b"old,new", 0o644)


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    """It may be shared."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    make_private_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o755


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    """As `mkdir -p` does: they hold nothing but it."""
    with umask(0o022):
        make_private_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o755, 0o700)


def test_a_file_in_a_folders_place_is_an_error(tmp_path: Path) -> None:
    """Nothing is made, and the file stays."""
    (tmp_path / "taken").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "taken")
    assert (tmp_path / "taken").read_bytes() == b"x"


@given(st.lists(st.binary(max_size=64)))
def test_a_file_holds_what_was_written_last_and_what_was_appended_since(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    """Any bytes, none too."""
    path = tmp_path_factory.mktemp("any") / "file"
    write_private(path, b"of before")
    write_private(path, b"".join(pieces[:1]))
    for piece in pieces[1:]:
        with append_private(path) as file:
            write_all(file, piece)
    assert path.read_bytes() == b"".join(pieces)
    assert os.listdir(path.parent) == ["file"]


def test_a_large_piece_is_written_whole_to_what_takes_little_at_once() -> None:
    """A pipe takes a part of it at a time."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, True)
    found: list[bytes] = []

    def drain() -> None:
        with open(read_end, "rb") as reader:
            found.append(reader.read())

    reader = threading.Thread(target=drain)
    reader.start()
    with open(write_end, "wb", buffering=0) as pipe:
        write_all(pipe, b"x" * SIZE)
    reader.join()
    assert found == [b"x" * SIZE]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    """What it points to is replaced."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    write_private(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "elsewhere") == ["file"]


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout must not be."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_private(path, b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    """Of a child that may write no more than 1,000 bytes to a file."""
    path = tmp_path / "report"
    path.write_bytes(b"old")
    command = [sys.executable, "-c", WRITER_ON_A_FULL_DISK, private_files.__file__, str(path)]
    assert subprocess.run(command, check=False).returncode == 77
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report"]


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    """Its mode would be anybody's guess."""
    with pytest.raises(FileNotFoundError):
        write_private(tmp_path / "missing" / "file", b"x")
    with pytest.raises(FileNotFoundError):
        append_private(tmp_path / "missing" / "file")
    assert list(tmp_path.iterdir()) == []


def test_only_a_folder_can_be_synced_as_one(tmp_path: Path) -> None:
    """A file that is taken for one would leave the names unsaved."""
    sync_folder(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "file")


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_never_sees_a_part_of_a_file_even_if_its_writer_is_killed(
    seed: int, tmp_path: Path
) -> None:
    """A child writes 2 MB again and again; it is killed at some moment, mostly while writing."""
    path = tmp_path / "file"
    moments = random.Random(seed)
    command = [sys.executable, "-c", ENDLESS_WRITER, private_files.__file__, str(path), str(SIZE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            for _ in range(moments.randrange(2, 12)):
                assert writer.stdout.read(1) == b"."
                assert is_whole(path.read_bytes())
            for _ in range(moments.randrange(5)):
                assert is_whole(path.read_bytes())
        finally:
            writer.kill()
    assert is_whole(path.read_bytes())
    left = {each.name for each in tmp_path.iterdir()} - {"file"}
    assert all(name.startswith(".file.") and name.endswith(".tmp") for name in left)
    write_private(path, b"next")
    assert path.read_bytes() == b"next"

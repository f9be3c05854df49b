"""Finite files: splits, byte offsets, compression, headers."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import Block, SplitPosition, SplitReader
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import Csv, JsonLines, LineFormat

JSON = JsonLines("k")
CSV = Csv("k")
BOM = b"\xef\xbb\xbf"
CONTENTS = st.one_of(
    st.binary(max_size=80), st.text("ab\r\n", max_size=40).map(lambda text: text.encode())
)


def blocks_of(reader: SplitReader, size: int) -> list[Block]:
    """Reads to the end."""
    blocks: list[Block] = []
    try:
        while not blocks or not blocks[-1].at_end:
            blocks.append(reader.read(size))
            assert blocks[-1].data or blocks[-1].at_end, "a finite file always gets on"
    finally:
        reader.close()
    return blocks


def read(path: Path, size: int = 1 << 16, line_format: LineFormat = JSON) -> list[Block]:
    """Reads a file from its start."""
    files = Files([str(path)], line_format)
    ((name, position),) = files.initial_positions().items()
    return blocks_of(files.open(name, position), size)


def data_of(blocks: list[Block]) -> bytes:
    """All bytes that were read."""
    return b"".join(block.data for block in blocks)


@settings(max_examples=80, deadline=None)
@given(content=CONTENTS, size=st.integers(1, 30), suffix=st.sampled_from([".jsonl", ".jsonl.gz"]))
def test_blocks_are_whole_lines_and_give_the_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int, suffix: str
) -> None:
    """Each at its offset, whatever the block size; only the end says so."""
    path = tmp_path_factory.mktemp("files") / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    body = content.removeprefix(BOM)
    blocks = read(path, size)
    assert data_of(blocks) == body
    offset = len(content) - len(body)
    for block in blocks:
        assert block.offset == offset
        offset += len(block.data)
        assert block.at_end or block.data.endswith(b"\n")
    assert [block.at_end for block in blocks] == [False] * (len(blocks) - 1) + [True]


@settings(max_examples=60, deadline=None)
@given(content=CONTENTS, size=st.integers(1, 30), data=st.data(), packed=st.booleans())
def test_reading_goes_on_from_any_offset_of_a_line(
    tmp_path_factory: pytest.TempPathFactory,
    content: bytes,
    size: int,
    data: st.DataObject,
    packed: bool,
) -> None:
    """A new reader at a block's end gives what the first one would have given."""
    path = tmp_path_factory.mktemp("files") / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    files = Files([str(path)], JSON)
    ((name, position),) = files.initial_positions().items()
    blocks = blocks_of(files.open(name, position), size)
    cut = data.draw(st.integers(0, len(blocks)))
    offset = blocks[cut].offset if cut < len(blocks) else len(content)
    rest = blocks_of(files.open(name, position._replace(offset=offset)), size)
    assert data_of(rest) == data_of(blocks[cut:])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_the_last_line_needs_no_line_break(tmp_path: Path, size: int) -> None:
    """It is a line like any other."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2")
    assert data_of(read(path, size)) == b"1\n2"


def test_a_byte_order_mark_is_stepped_over(tmp_path: Path) -> None:
    """Offsets still count it: they are bytes of the file."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(BOM + b"1\n2\n")
    (block,) = read(path)
    assert block == Block(b"1\n2\n", 3, at_end=True)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("start", [b"", BOM])
def test_a_csv_header_is_no_record(tmp_path: Path, start: bytes, end: bytes) -> None:
    """It is known to a reader wherever it starts."""
    path = tmp_path / "a.csv"
    path.write_bytes(start + b"k,v" + end + b"a,1" + end + b"b,2" + end)
    files = Files([str(path)], CSV)
    ((name, position),) = files.initial_positions().items()
    blocks = read(path, 1, CSV)
    assert data_of(blocks) == b"a,1" + end + b"b,2" + end
    for block in blocks:
        reader = files.open(name, position._replace(offset=block.offset))
        assert reader.header == b"k,v"
        reader.close()


@pytest.mark.parametrize("content", [b"", b"k,v", b"k,v\n"])
def test_a_csv_file_without_records_is_at_its_end(tmp_path: Path, content: bytes) -> None:
    """With a header or without."""
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert data_of(read(path, line_format=CSV)) == b""


def test_compressed_files_are_read_by_their_ending(tmp_path: Path) -> None:
    """Offsets count decompressed bytes; the end shows when it is reached."""
    lines = b"".join(b'{"k":%d}\n' % i for i in range(20_000))
    for name, packed in [
        ("a.jsonl.gz", gzip.compress(lines)),
        ("b.jsonl.gz", gzip.compress(lines[:90]) + gzip.compress(lines[90:])),
        ("c.jsonl.bz2", bz2.compress(lines)),
    ]:
        path = tmp_path / name
        path.write_bytes(packed)
        assert Files([str(path)], JSON).initial_positions() == {str(path): SplitPosition()}
        assert data_of(read(path, 10_000)) == lines


def test_a_truncated_gzip_file_is_an_error_not_an_end(tmp_path: Path) -> None:
    """An upload that broke off must not pass for a short file."""
    lines = b"".join(b'{"k":%d}\n' % (i * 7_919) for i in range(10_000))
    packed = gzip.compress(lines)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match="cannot be read"):
        read(path)


def test_a_file_that_is_no_gzip_is_an_error_with_its_name(tmp_path: Path) -> None:
    """Its ending lies."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b'{"k":1}\n')
    with pytest.raises(ValueError, match=r"--input '.*a\.jsonl\.gz' cannot be read"):
        read(path)


def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Whatever the order of the patterns, and each once."""
    names = ["b.jsonl", "a.jsonl", "c.jsonl", "a10.jsonl"]
    for name in names:
        (tmp_path / name).write_bytes(b"1\n")
    (tmp_path / "folder.jsonl").mkdir()
    patterns = [str(tmp_path / "c.jsonl"), str(tmp_path / "*.jsonl"), str(tmp_path / "b*")]
    positions = Files(patterns, JSON).initial_positions()
    assert list(positions) == sorted(str(tmp_path / name) for name in names)
    assert set(positions.values()) == {SplitPosition(end=2)}


def test_the_head_gives_the_lines_of_all_files_with_their_headers(tmp_path: Path) -> None:
    """File after file."""
    (tmp_path / "a.csv").write_bytes(b"k,v\na,1\n")
    (tmp_path / "b.csv").write_bytes(b"v,k\n2,b")
    head = list(Files([str(tmp_path / "*.csv")], CSV).head())
    assert [pair for pair in head if pair[1]] == [(b"k,v", b"a,1"), (b"v,k", b"2,b")]


@pytest.mark.parametrize("pattern", ["nothing-*.jsonl", "nothing.jsonl", "no/such/folder/*"])
def test_a_pattern_that_matches_no_file_is_refused(tmp_path: Path, pattern: str) -> None:
    """By name: an empty input is nearly always a mistake."""
    (tmp_path / "a.jsonl").touch()
    files = Files([str(tmp_path / "a.jsonl"), str(tmp_path / pattern)], JSON)
    with pytest.raises(ValueError, match=r"--input .* matches no file"):
        files.initial_positions()


def test_a_file_that_has_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    """Not an empty file."""
    path = str(tmp_path / "gone.jsonl")
    with pytest.raises(ValueError, match=r"--input '.*gone\.jsonl' cannot be read"):
        Files([path], JSON).open(path, SplitPosition(end=5))


def test_a_folder_cannot_be_read_as_a_file(tmp_path: Path) -> None:
    """The error names it."""
    with pytest.raises(ValueError, match=r"--input .* cannot be read"):
        Files([str(tmp_path)], JSON).open(str(tmp_path), SplitPosition(end=5))


def test_an_unknown_filesystem_is_refused() -> None:
    """By the pattern."""
    with pytest.raises(ValueError, match="--input 'nofs://x/y' cannot be looked up"):
        Files(["nofs://x/y"], JSON).initial_positions()


def test_a_line_of_50_mb_comes_whole_in_linear_time(tmp_path: Path) -> None:
    """A longer line than a block is one block."""
    path = tmp_path / "a.jsonl"
    line = b"x" * 50_000_000
    path.write_bytes(b"1\n" + line + b"\n2")
    blocks = read(path, 1 << 16)
    assert [len(block.data) for block in blocks] == [2, len(line) + 1, 1]


@pytest.mark.parametrize("patterns", [[], [""], ["a", ""]])
def test_no_pattern_is_refused(patterns: list[str]) -> None:
    """At construction, by the flag."""
    with pytest.raises(ValueError, match=r"patterns \(--input\)"):
        Files(patterns, JSON)


def test_one_text_is_no_list_of_patterns() -> None:
    """It would be read letter by letter."""
    with pytest.raises(ValueError, match="must be a list of paths"):
        Files("a.jsonl", JSON)

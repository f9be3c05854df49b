"""`AppendPanesToFiles`: every pane is a row, exact, in files that come whole."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
import numpy as np
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import Pane
from beam_lateness.transforms.sinks.append_files import (
    FILE_FORMATS,
    JSONL,
    PANE_SCHEMA,
    PARQUET,
    AppendPanesToFiles,
    JsonLinesFiles,
    ParquetFiles,
    _Append,
    pane_line,
    pane_row,
)
from tests.cases.engine import direct_pipeline

PANE = Pane("a", 0, 60_000, 7, 3, 0, "ON_TIME")
FIELDS = {
    "key": "a",
    "window_start_ms": 0,
    "window_end_ms": 60_000,
    "count": 3,
    "pane_index": 0,
    "timing": "ON_TIME",
    "run": "run-1",
}

NUMBERS = st.integers(-(2**80), 2**80) | st.floats()
VALUES = NUMBERS | st.text() | st.none() | st.booleans()
PANES = st.builds(
    Pane,
    key=st.text() | st.integers(),
    window_start=st.integers(-(2**62), 2**62),
    window_end=st.integers(-(2**62), 2**62),
    value=VALUES | st.dictionaries(st.text(), NUMBERS) | st.lists(VALUES),
    count=st.integers(0, 2**62),
    index=st.integers(0, 2**31),
    timing=st.sampled_from(["ON_TIME", "LATE"]),
)

# Its keys are long and cannot be compressed, so that a file is not written in an instant.
ENDLESS_WRITER = """
import os, sys
from beam_lateness import Pane
from beam_lateness.transforms.sinks.append_files import JsonLinesFiles, ParquetFiles
writers = [kind(sys.argv[1], "run-1") for kind in (JsonLinesFiles, ParquetFiles)]
panes = [Pane(os.urandom(200).hex(), 0, 60_000, n, 3, 0, "ON_TIME") for n in range(2000)]
while True:
    for writer in writers:
        writer.write(panes)
        sys.stdout.write(".")
        sys.stdout.flush()
"""


def lines(folder: Path) -> list[dict[str, Any]]:
    """Reads every line of every file of a folder."""
    found = [line for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines()]
    return [json.loads(line) for line in found]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Reads a folder of Parquet files as one dataset."""
    found: list[dict[str, Any]] = ds.dataset(folder, format="parquet").to_table().to_pylist()
    return found


def writer(folder: Path, file_format: str, written: Any = None) -> _Append:
    """A worker's DoFn, set up."""
    append = _Append(str(folder), "run-1", file_format, written)
    append.setup()
    return append


def write_bundle(append: _Append, panes: Sequence[Pane]) -> None:
    """Gives a worker a bundle."""
    append.start_bundle()
    for pane in panes:
        append.process(pane)
    append.finish_bundle()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Makes each write beyond a size fail, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class Note:
    """A picklable `written` that notes how many panes were on the disk."""

    path: str
    folder: str

    def __call__(self, panes: Sequence[Pane]) -> None:
        """Appends a line."""
        assert len(lines(Path(self.folder))) >= len(panes)
        with open(self.path, "a") as file:
            file.write(f"{len(panes)}\n")


def refuse(panes: Sequence[Pane]) -> None:
    """A `written` that fails."""
    raise RuntimeError(len(panes))


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_a_pipeline_writes_a_row_a_pane(
    file_format: Literal["jsonl", "parquet"], tmp_path: Path
) -> None:
    """Corrections too: nothing that is written is changed."""
    panes = [PANE, PANE._replace(value=9, index=1, timing="LATE"), PANE._replace(key="b")]
    with direct_pipeline() as pipeline:
        sink = AppendPanesToFiles(str(tmp_path / "panes"), "run-1", file_format)
        _ = pipeline | beam.Create(panes) | sink
    read = lines if file_format == JSONL else rows
    found = read(tmp_path / "panes")
    assert sorted((row["key"], row["pane_index"], row["timing"]) for row in found) == [
        ("a", 0, "ON_TIME"),
        ("a", 1, "LATE"),
        ("b", 0, "ON_TIME"),
    ]


def test_a_line_and_a_row_have_the_same_fields() -> None:
    """A row has the number beside the exact text."""
    assert json.loads(pane_line(PANE, "run-1")) == {**FIELDS, "value": 7}
    assert pane_row(PANE, "run-1") == {**FIELDS, "value": "7", "value_number": 7.0}


@pytest.mark.parametrize(
    ("value", "text", "number"),
    [
        (2**53 + 1, "9007199254740993", 2.0**53),
        (2**70, "1180591620717411303424", 2.0**70),
        (10**400, "1" + "0" * 400, None),
        (0.1, "0.1", 0.1),
        (np.int64(5), "5", 5.0),
        (math.inf, '"inf"', math.inf),
        (True, "true", None),
        (None, "null", None),
        ("7", '"7"', None),
        ({"sum": 2**64, "mean": 0.5}, '{"sum": 18446744073709551616, "mean": 0.5}', None),
        ((1, "b"), '[1, "b"]', None),
        ("\ud800", '"\\ud800"', None),
    ],
    ids=ascii,
)
def test_a_value_is_exact_text_and_the_nearest_float(
    value: Any, text: str, number: float | None, tmp_path: Path
) -> None:
    """The float only where it is a number that a float holds."""
    write_bundle(writer(tmp_path, PARQUET), [PANE._replace(value=value)])
    (row,) = rows(tmp_path)
    assert (row["value"], row["value_number"]) == (text, number)


def test_not_a_number_is_one_in_the_column_of_floats(tmp_path: Path) -> None:
    """JSON has none, so that there it is text."""
    write_bundle(writer(tmp_path, PARQUET), [PANE._replace(value=math.nan)])
    (row,) = rows(tmp_path)
    assert row["value"] == '"nan"'
    assert math.isnan(row["value_number"])


@settings(max_examples=40)  # each file is on the disk before the next
@given(st.lists(st.lists(PANES, min_size=1, max_size=4), max_size=4))
def test_bundles_of_any_panes_are_one_dataset_and_say_what_the_lines_say(
    tmp_path_factory: pytest.TempPathFactory, bundles: list[list[Pane]]
) -> None:
    """Whatever kinds of values the single files hold."""
    folders = {name: tmp_path_factory.mktemp(name) for name in FILE_FORMATS}
    for name, folder in folders.items():
        append = writer(folder, name)
        for bundle in bundles:
            write_bundle(append, bundle)
    found = rows(folders[PARQUET]) if bundles else []
    for row in found:
        row.pop("value_number")
        row["value"] = json.loads(row["value"])
    told = lines(folders[JSONL])
    for line in told:
        line["key"] = str(line["key"])
    assert sorted(map(repr, found)) == sorted(map(repr, told))
    assert len(found) == sum(map(len, bundles))
    assert len(list(folders[PARQUET].iterdir())) == len(bundles)
    assert len(list(folders[JSONL].iterdir())) == min(1, len(bundles))


@pytest.mark.parametrize(
    ("key", "text"),
    [("a", "a"), (7, "7"), (("a", 1), '["a",1]'), ("\ud800", "\\ud800"), (None, "null")],
    ids=ascii,
)
def test_a_key_that_is_no_text_is_json(key: Any, text: str, tmp_path: Path) -> None:
    """As in a topic's attributes."""
    write_bundle(writer(tmp_path, PARQUET), [PANE._replace(key=key)])
    assert [row["key"] for row in rows(tmp_path)] == [text]


def test_files_have_the_one_schema(tmp_path: Path) -> None:
    """So that a reader may take any file's."""
    for value in (1, 0.5, {"sum": 1}, None):
        write_bundle(writer(tmp_path, PARQUET), [PANE._replace(value=value)])
    schemas = [ds.dataset(file).schema for file in tmp_path.iterdir()]
    assert len(schemas) == 4
    assert all(schema.equals(PANE_SCHEMA) for schema in schemas)


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_files_are_named_by_the_run_and_private(file_format: str, tmp_path: Path) -> None:
    """And no two writers share one."""
    for _ in range(3):
        write_bundle(writer(tmp_path, file_format), [PANE])
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.match(f"panes-run-1-*.{file_format}") for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_no_panes_make_no_file(file_format: str, tmp_path: Path) -> None:
    """The folder stays empty."""
    write_bundle(writer(tmp_path, file_format), [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [JsonLinesFiles, ParquetFiles])
def test_a_large_bundle_is_written_in_pieces(
    kind: type[JsonLinesFiles | ParquetFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many panes as are held at once, and a rest."""
    monkeypatch.setattr(kind, "at_once", 10)
    sizes: list[int] = []
    append = writer(tmp_path, PARQUET if kind is ParquetFiles else JSONL, partial(count, sizes))
    write_bundle(append, [PANE] * 25)
    assert sizes == [10, 10, 5]


def count(sizes: list[int], panes: Sequence[Pane]) -> None:
    """Notes how many panes were written."""
    sizes.append(len(panes))


def test_written_is_called_when_the_panes_are_on_the_disk(tmp_path: Path) -> None:
    """With all of them, by the pipeline that it was pickled with."""
    folder = tmp_path / "panes"
    note = Note(str(tmp_path / "note"), str(folder))
    with direct_pipeline() as pipeline:
        sink = AppendPanesToFiles(str(folder), "run-1", written=note)
        _ = pipeline | beam.Create([PANE] * 5) | sink
    assert sum(map(int, (tmp_path / "note").read_text().split())) == 5


def test_written_that_fails_fails_the_bundle(tmp_path: Path) -> None:
    """So that the engine repeats it."""
    with pytest.raises(RuntimeError, match="2"):
        write_bundle(writer(tmp_path, JSONL, refuse), [PANE, PANE])


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_a_bundle_that_was_not_written_is_not_confirmed_and_can_be_repeated(
    file_format: str, tmp_path: Path
) -> None:
    """A part of a line that a full disk left behind is the last of its file: no line runs on."""
    sizes: list[int] = []
    append = writer(tmp_path, file_format, partial(count, sizes))
    panes = [PANE._replace(value=n) for n in range(300)]
    write_bundle(append, panes[:1])
    with files_of_at_most(2000), pytest.raises(OSError, match="File too large"):
        write_bundle(append, panes)
    assert sizes == [1]
    write_bundle(append, panes)
    assert sizes == [1, 300]
    if file_format == PARQUET:
        assert sorted(row["value_number"] for row in rows(tmp_path)) == [0, *range(300)]
        return
    parts = [line for file in tmp_path.iterdir() for line in file.read_bytes().split(b"\n")[:-1]]
    assert {json.loads(line)["value"] for line in parts} == set(range(300))
    assert all(b'"run":"run-1"}' in line[-14:] for line in parts)


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_a_bundle_that_fails_leaves_nothing_for_the_next(file_format: str, tmp_path: Path) -> None:
    """Panes of an aborted bundle are dropped with it; its repetition writes them."""
    sizes: list[int] = []
    append = writer(tmp_path, file_format, partial(count, sizes))
    append.start_bundle()
    append.process(PANE)
    write_bundle(append, [PANE, PANE])
    assert sizes == [2]


@pytest.mark.parametrize("seed", range(2))
def test_a_worker_that_is_killed_leaves_whole_files_and_at_most_a_partial_last_line(
    seed: int, tmp_path: Path
) -> None:
    """What it had confirmed is there; readers pass over a hidden file that it may leave."""
    command = [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path)]
    confirmed = random.Random(seed).randrange(2, 40)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.read(confirmed) == b"." * confirmed
            before = set(os.listdir(tmp_path))
            while set(os.listdir(tmp_path)) == before:  # until a file is begun
                assert child.poll() is None
        finally:
            child.kill()
    whole = [str(file) for file in tmp_path.glob("panes-*.parquet")]
    assert len(whole) >= confirmed // 2
    assert ds.dataset(whole).to_table().num_rows == 2000 * len(whole)
    (file,) = tmp_path.glob("panes-*.jsonl")
    lines_file = file.rename(tmp_path.parent / "lines.jsonl")
    assert ds.dataset(tmp_path).count_rows() == 2000 * len(whole)
    found = [json.loads(line) for line in lines_file.read_bytes().split(b"\n")[:-1]]
    assert len(found) >= 2000 * ((confirmed + 1) // 2)
    assert [line["value"] for line in found] == [n % 2000 for n in range(len(found))]


def test_a_missing_folder_is_made_for_the_owner(tmp_path: Path) -> None:
    """At construction."""
    AppendPanesToFiles(str(tmp_path / "panes"), "run-1")
    assert (tmp_path / "panes").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At construction, by the flag's name; a URL is none, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for path in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "gs://bucket/panes"):
        complaint = r"directory \(--output\) must be a writable local folder, got '.*'; give"
        with pytest.raises(ValueError, match=complaint):
            AppendPanesToFiles(path, "run-1")
    assert os.listdir(tmp_path) == ["file"]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match="file_format must be one of jsonl, parquet, got 'csv'"):
        AppendPanesToFiles(str(tmp_path), "run-1", "csv")  # type: ignore[arg-type]


@pytest.mark.parametrize("run", ["", "../run", "a/b", "a\0", "é", "r" * 101, "a b"], ids=ascii)
def test_a_run_that_is_no_part_of_a_file_name_is_refused(run: str, tmp_path: Path) -> None:
    """And no folder is made."""
    with pytest.raises(ValueError, match="run must be 1 to 100 letters"):
        AppendPanesToFiles(str(tmp_path / "panes"), run)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_run_gives_names_that_a_file_system_takes(tmp_path: Path) -> None:
    """The hidden name of a file that is being written is longer than its own."""
    ParquetFiles(str(tmp_path), "r" * 100).write([PANE])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_worker_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """Pickled before it is set up."""
    append = pickle.loads(pickle.dumps(_Append(str(tmp_path), "run-1", JSONL)))
    append.setup()
    write_bundle(append, [PANE])
    assert len(lines(tmp_path)) == 1

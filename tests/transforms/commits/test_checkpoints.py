"""Checkpoints in a database: what was written is there, for each source the latest."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.commits.checkpoints import Checkpoint, Checkpoints, SplitCheckpoint
from beam_lateness.transforms.sinks.window_table import WindowTable
from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, NO_WATERMARK_MS

OFFSETS = st.integers(0, 2**63 - 1)
POSITIONS = st.lists(OFFSETS, max_size=3) | st.lists(st.text("0123456789-é", max_size=9))
CHECKPOINTS = st.builds(
    Checkpoint,
    st.sampled_from(["kafka://t?group=", "pubsub://projects/p/subscriptions/s"]),
    st.text("1m ()", max_size=5),
    st.lists(st.text("run-12", max_size=5), min_size=1, max_size=3).map(tuple),
    st.integers(NO_WATERMARK_MS, MAX_EVENT_TIME_MS),
    st.booleans(),
    st.dictionaries(
        st.text("tp-01/", min_size=1, max_size=5),
        st.builds(SplitCheckpoint, OFFSETS, OFFSETS, POSITIONS, POSITIONS),
        max_size=3,
    ),
)


def url_of(path: Path) -> str:
    """Gives the URL of a SQLite file."""
    return f"sqlite:///{path}"


def at(source: str, watermark_ms: int = 7) -> Checkpoint:
    """A checkpoint of a source."""
    return Checkpoint(source, "1m", ("run-1", "run-2"), watermark_ms)


@settings(max_examples=25, deadline=None)
@given(st.lists(CHECKPOINTS, min_size=1, max_size=4))
def test_each_source_has_the_latest_checkpoint_that_was_written(written: list[Checkpoint]) -> None:
    """Whole, by another process too; the other sources' are as they were."""
    with tempfile.TemporaryDirectory() as folder:
        store = Checkpoints(url_of(Path(folder) / "db"))
        for checkpoint in written:
            store.write(checkpoint)
        store.close()
        store = Checkpoints(url_of(Path(folder) / "db"))
        latest = {checkpoint.source: checkpoint for checkpoint in written}
        assert {source: store.load(source) for source in latest} == latest
        assert sorted(store.sources()) == sorted(latest)
        store.close()


def test_a_source_without_a_checkpoint_has_none(tmp_path: Path) -> None:
    """Whatever others have."""
    store = Checkpoints(url_of(tmp_path / "db"))
    assert store.load("a") is None
    store.write(at("b"))
    assert store.load("a") is None
    store.close()


def test_a_checkpoint_replaces_the_one_before(tmp_path: Path) -> None:
    """There is a row a source."""
    store = Checkpoints(url_of(tmp_path / "db"))
    for watermark_ms in (1, 3, 2):
        store.write(at("a", watermark_ms))
    store.close()
    with closing(sqlite3.connect(tmp_path / "db")) as reader:
        assert reader.execute("SELECT source, watermark_ms FROM checkpoints").fetchall() == [
            ("a", 2)
        ]


def test_checkpoints_and_results_share_a_file(tmp_path: Path) -> None:
    """The default: neither table is in the other's way."""
    table, store = WindowTable(url_of(tmp_path / "db")), Checkpoints(url_of(tmp_path / "db"))
    store.write(at("a"))
    assert store.load("a") == at("a")
    store.close()
    table.close()


def test_a_checkpoint_outlives_a_loss_of_power(tmp_path: Path) -> None:
    """SQLite syncs its log at each commit."""
    store = Checkpoints(url_of(tmp_path / "db"))
    with store._engine.connect() as connection:
        (level,) = connection.exec_driver_sql("PRAGMA synchronous").one()
    store.close()
    full = 2  # https://sqlite.org/pragma.html#pragma_synchronous
    assert level == full


@pytest.mark.parametrize(
    "url",
    ["", "checkpoint.db", "sqlite://", "sqlite:///:memory:", "mysql://localhost/db"],
)
def test_a_url_of_no_file_is_refused(url: str) -> None:
    """By the flag's name, with a remedy."""
    with pytest.raises(ValueError, match=r"checkpoint \(--checkpoint\) must.*sqlite:///FILE"):
        Checkpoints(url)


def test_a_folder_that_is_not_there_is_refused() -> None:
    """By the flag's name."""
    with pytest.raises(ValueError, match=r"--checkpoint.*no writable folder '/no/such/folder'"):
        Checkpoints("sqlite:////no/such/folder/db")


def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    """It is somebody's file."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, but a text of some length " * 99)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"--checkpoint.*cannot be used: file is not a database"):
        Checkpoints(url_of(path))
    assert path.read_bytes() == before


def test_a_table_of_another_shape_is_refused_untouched(tmp_path: Path) -> None:
    """A table `checkpoints` of another program's: before anything runs, as with `windows`."""
    shape = "CREATE TABLE checkpoints (source TEXT PRIMARY KEY, step)"
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute(shape)
    with pytest.raises(ValueError, match="--checkpoint"):
        Checkpoints(url_of(tmp_path / "db")).close()
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        assert connection.execute("SELECT sql FROM sqlite_master").fetchone() == (shape,)

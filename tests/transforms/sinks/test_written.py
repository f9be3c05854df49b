"""The hook `written`: the sinks of files and tables tell what is on the disk, and no more."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from beam_lateness import InvalidRecord, Pane
from beam_lateness.transforms.sinks import dead_letters, upsert
from beam_lateness.transforms.sinks.dead_letters import _Append
from beam_lateness.transforms.sinks.upsert import WritePanes
from beam_lateness.transforms.sinks.window_table import WindowTable

PANES = [Pane(key, 0, 60_000, 1, 1, 0, "ON_TIME") for key in "abcde"]
RECORDS = [InvalidRecord("malformed_json", "", "f", i, f"f:{i}", b"{") for i in range(5)]


def run(dofn: Any, elements: Sequence[Any]) -> None:
    """Runs a bundle, and one without elements."""
    dofn.setup()
    for bundle in (elements, ()):
        dofn.start_bundle()
        for element in bundle:
            dofn.process(element)
        dofn.finish_bundle()
    dofn.teardown()


def test_written_panes_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees those of each call when it is made; all are told once."""
    monkeypatch.setattr(upsert, "_ROWS_AT_ONCE", 2)
    told: list[Pane] = []

    def written(panes: Sequence[Pane]) -> None:
        assert panes
        told.extend(panes)
        with closing(sqlite3.connect(tmp_path / "db")) as reader:
            keys = [key for (key,) in reader.execute("SELECT key FROM windows ORDER BY key")]
        assert keys == [pane.key for pane in told]

    run(WritePanes(partial(WindowTable, f"sqlite:///{tmp_path}/db"), "run-1", written), PANES)
    assert told == PANES


def test_written_records_are_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced before each call; all are told once."""
    monkeypatch.setattr(dead_letters, "_BYTES_AT_ONCE", 400)
    told: list[Any] = []
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    def written(records: Sequence[Any]) -> None:
        told.extend(records)
        (file,) = tmp_path.iterdir()
        ids = [json.loads(line)["record_id"] for line in file.read_text().splitlines()]
        assert ids == [record.record_id for record in told]

    run(_Append(str(tmp_path), "run-1", written), RECORDS)
    assert told == RECORDS
    assert len(synced) > 1


def test_the_table_survives_a_loss_of_power(tmp_path: Path) -> None:
    """SQLite syncs its log at each commit: what was told as written is on the disk."""
    table = WindowTable(f"sqlite:///{tmp_path}/db")
    with table.engine.connect() as connection:
        (level,) = connection.exec_driver_sql("PRAGMA synchronous").one()
    table.close()
    full = 2  # https://sqlite.org/pragma.html#pragma_synchronous
    assert level == full


def test_panes_that_could_not_be_written_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle fails instead."""
    told: list[Any] = []
    dofn = WritePanes(partial(WindowTable, f"sqlite:///{tmp_path}/db"), "run-1", told.append)

    def fail(*_: Any) -> None:
        msg = "disk full"
        raise OSError(msg)

    monkeypatch.setattr(WindowTable, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        run(dofn, PANES)
    assert told == []

"""The paths of jobs on Flink: a worker has a current folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.pipelines.flink.options import make_absolute
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import JsonLines


def absolute(**given_flags: Any) -> SimpleNamespace:
    """Flags of a job whose paths were made absolute."""
    names = ("input", "output", "dead_letters", "checkpoint", "alert_to")
    stream = SimpleNamespace(**{**dict.fromkeys(names), **given_flags})
    make_absolute(stream)
    return stream


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_of_this_folder_become_absolute(here: Path) -> None:
    """Globs too: a worker has a current folder of its own."""
    found = absolute(
        input=["in.jsonl", "day-*/*.jsonl.gz", "../other/in.jsonl"],
        output="sqlite:///windows.db",
        dead_letters="dead",
        checkpoint="sqlite:///kept/c.db",
        alert_to="file:alerts.jsonl",
    )
    assert found.alert_to == f"file:{here}/alerts.jsonl"
    assert found.input == [
        f"{here}/in.jsonl",
        f"{here}/day-*/*.jsonl.gz",
        f"{here.parent}/other/in.jsonl",
    ]
    assert found.output == f"sqlite:///{here}/windows.db"
    assert found.dead_letters == f"{here}/dead"
    assert found.checkpoint == f"sqlite:///{here}/kept/c.db"


@pytest.mark.parametrize(
    "name",
    [
        "/data/in.jsonl",
        "/data/*.jsonl",
        "gs://bucket/in.jsonl",
        "kafka://localhost:9092/topic?group=g",
        "pubsub://projects/p/subscriptions/s",
        "sqlite:////data/windows.db",
        "postgresql://h/d",
    ],
)
def test_what_is_absolute_stays_as_it_is(here: Path, name: str) -> None:
    """Wherever it is given."""
    found = absolute(input=[name], output=name, dead_letters=name, checkpoint=name)
    assert {*found.input, found.output, found.dead_letters, found.checkpoint} == {name}


def test_what_is_left_out_stays_left_out(here: Path) -> None:
    """No path is made of nothing."""
    found = absolute()
    assert (found.input, found.output, found.dead_letters, found.checkpoint) == (
        [],
        None,
        None,
        None,
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["a", "..", ".", "b*", "c d"]), min_size=1, max_size=5))
def test_an_absolute_path_names_what_the_relative_one_did(parts: list[str]) -> None:
    """And is made absolute once only."""
    name = "/".join(parts)
    found = absolute(input=[name], output=f"sqlite:///{name}")
    assert os.path.isabs(found.input[0])
    assert os.path.relpath(found.input[0]) == os.path.relpath(name)
    assert found.output == f"sqlite:///{found.input[0]}"
    assert absolute(input=found.input, output=found.output) == found


def test_a_database_is_the_same_file_by_every_url_that_the_sink_takes(here: Path) -> None:
    """Else each worker would write one of its own."""
    assert absolute(output="sqlite+pysqlite:///w.db").output == f"sqlite+pysqlite:///{here}/w.db"


@pytest.mark.parametrize("output", ["", "sqlite:///", "sqlite:///:memory:"])
def test_what_is_no_file_is_not_made_one(here: Path, output: str) -> None:
    """The checks that follow would refuse it, and by what was given."""
    assert absolute(output=output).output == output


def test_a_glob_is_looked_up_in_a_folder_whose_name_looks_like_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is without Flink."""
    folder = here / "run[1]"
    folder.mkdir()
    (folder / "in.jsonl").touch()
    monkeypatch.chdir(folder)
    names = ["*.jsonl", *absolute(input=["*.jsonl"]).input]
    found = [Files([name], JsonLines("k"), follow=True).initial_positions() for name in names]
    assert [len(each) for each in found] == [1, 1]

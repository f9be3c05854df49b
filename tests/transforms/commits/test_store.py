"""`CommitAfterStore`: the sinks' news reach what is in flight of the same run."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from beam_lateness import Pane, Windows
from beam_lateness.transforms.commits import store
from beam_lateness.transforms.commits.in_flight import Read
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.results import InvalidRecord
from tests.transforms.commits.world import batch_of

PANE = Pane("a", 0, 10, 1, 1, 0, "ON_TIME")
LETTER = InvalidRecord("bad", "", "q", "bad")


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitAfterStore:
    """That of a run; no other run is known."""
    monkeypatch.setattr(store, "_in_flight", {})
    return CommitAfterStore("run-1", Windows("10ms"), f"sqlite:///{tmp_path}/db")


def test_what_the_sinks_wrote_settles_what_the_source_read(commits: CommitAfterStore) -> None:
    """Though an engine gives each of them a copy."""
    in_flight = commits.open("source")
    batch = batch_of("q", [("m", "a", 3, 0)])
    in_flight.admit(Read([batch], [LETTER], [], {"q": 2}, 10))
    assert in_flight.commit() == {}
    copy = pickle.loads(pickle.dumps(commits))
    assert copy.open("source") is in_flight
    copy.panes_written([PANE])
    copy.letters_written([LETTER])
    assert set(in_flight.commit()["q"].positions) == {"m", "bad"}


def test_another_runs_news_are_not_this_ones(commits: CommitAfterStore, tmp_path: Path) -> None:
    """Nor is it an error to have nobody to tell."""
    in_flight = commits.open("source")
    in_flight.admit(Read([batch_of("q", [("m", "a", 3, 0)])], [], [], {"q": 1}, 10))
    other = CommitAfterStore("run-2", commits.windows, f"sqlite:///{tmp_path}/other")
    other.panes_written([PANE])
    other.letters_written([LETTER])
    assert in_flight.commit() == {}


def test_a_checkpoint_that_cannot_be_used_is_refused(
    commits: CommitAfterStore, tmp_path: Path
) -> None:
    """By its flag's name; and so is one of other windows."""
    commits.open("source").begin({"q": 0})
    other = CommitAfterStore("run-2", Windows("20ms"), commits.checkpoint)
    with pytest.raises(ValueError, match="--window"):
        other.open("source")
    nowhere = CommitAfterStore("run-3", Windows("10ms"), f"sqlite:///{tmp_path}/no/db")
    with pytest.raises(ValueError, match="--checkpoint"):
        nowhere.open("source")


def test_a_run_commits_one_source(commits: CommitAfterStore) -> None:
    """The records of two could not be told apart in the store."""
    commits.open("source")
    with pytest.raises(ValueError, match="one ReadEvents"):
        commits.open("another source")

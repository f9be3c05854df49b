"""The rhythm of the source's calls: how long one reads on, and how long the engine waits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.transforms.sources.rhythm import LEAST_PAUSE_S, PROMPT, Rhythm, rhythm_of
from beam_lateness.transforms.sources.split import Poll

COARSE = pytest.mark.parametrize("runner", [FlinkRunner(), PortableRunner()], ids=["flink", "port"])
FINE = pytest.mark.parametrize(
    "runner", [PrismRunner(), BundleBasedDirectRunner()], ids=["prism", "direct"]
)
SECONDS = st.floats(0, 100)


class Reader:
    """Gives polls, and takes a while for each.

    Args:
        polls: What it gives.
        monkeypatch: Sets the clock.
        poll_s: How long a poll takes, in seconds.
    """

    def __init__(
        self, polls: Iterable[Poll], monkeypatch: pytest.MonkeyPatch, poll_s: float = 0.25
    ) -> None:
        self._polls, self._poll_s = iter(polls), poll_s
        self._now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now_s)

    def poll(self) -> Poll:
        """Gives the next."""
        self._now_s += self._poll_s
        return next(self._polls)


@FINE
def test_an_engine_that_notes_every_watermark_is_called_again_at_once(runner: Any) -> None:
    """One poll a call, and no pause."""
    rhythm = rhythm_of(runner, None)
    assert rhythm == PROMPT
    assert rhythm.delay_s(Poll()) == 0


@COARSE
def test_an_engine_that_cuts_delays_waits_long_enough_after_every_call(runner: Any) -> None:
    """Also after the last poll and after one that asks for less: else no watermark is noted."""
    rhythm = rhythm_of(runner, None)
    for poll in (Poll(), Poll(wait_s=0.2), Poll(finished=True)):
        assert int(rhythm.delay_s(poll) - 0.01) >= 1  # what Flink makes of it a moment later


@COARSE
@pytest.mark.parametrize("interval", ["1s", "0s", "1099ms", 1.0])
def test_an_interval_that_is_too_short_for_the_engine_is_refused(
    runner: Any, interval: Any
) -> None:
    """With the least that it takes, and what would happen."""
    told = rf"--poll_interval.*at least {LEAST_PAUSE_S}s.*got .*no watermark"
    with pytest.raises(ValueError, match=told):
        rhythm_of(runner, interval)


@COARSE
def test_the_least_interval_is_taken(runner: Any) -> None:
    """It is what is waited without one."""
    assert rhythm_of(runner, f"{LEAST_PAUSE_S}s") == rhythm_of(runner, None)


@FINE
@pytest.mark.parametrize("interval", ["0s", "10ms", "1s"])
def test_another_engine_takes_any_interval(runner: Any, interval: str) -> None:
    """It cuts nothing."""
    rhythm_of(runner, interval)


@pytest.mark.parametrize("runner", [FlinkRunner(), PrismRunner()], ids=["flink", "prism"])
def test_an_interval_is_waited_where_there_was_nothing_more_and_nowhere_else(runner: Any) -> None:
    """While there is more, the input is read on as without one."""
    rhythm, without = rhythm_of(runner, "7s"), rhythm_of(runner, None)
    assert rhythm.delay_s(Poll(wait_s=0.2)) == 7
    assert rhythm.delay_s(Poll()) == without.delay_s(Poll())
    assert rhythm.delay_s(Poll(wait_s=9.0)) == 9


def test_only_prism_needs_calls_after_the_last() -> None:
    """Elsewhere a finite input ends with the call that finds its end."""
    assert rhythm_of(PrismRunner(), None).closing_calls > 0
    assert rhythm_of(FlinkRunner(), None).closing_calls == 0


@given(SECONDS, SECONDS, SECONDS)
def test_a_poll_is_never_asked_for_before_it_said(
    wait_s: float, pause_s: float, idle_s: float
) -> None:
    """And never before the engine's pause, of its kind."""
    delay_s = Rhythm(pause_s=pause_s, idle_s=idle_s).delay_s(Poll(wait_s=wait_s))
    assert delay_s == max(wait_s, idle_s if wait_s else pause_s)


def test_without_a_length_a_call_is_one_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick it was."""
    reader = Reader(itertools.repeat(Poll()), monkeypatch, poll_s=0)
    assert len(list(PROMPT.polls(reader))) == 1


def test_a_call_reads_on_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that has begun is read to its end."""
    reader = Reader(itertools.repeat(Poll()), monkeypatch, poll_s=0.3)
    assert len(list(Rhythm(call_s=1).polls(reader))) == 4


@pytest.mark.parametrize(
    "last", [Poll(finished=True), Poll(wait_s=0.1)], ids=["all was read", "nothing more"]
)
def test_a_call_ends_early_where_there_is_no_more(
    monkeypatch: pytest.MonkeyPatch, last: Poll
) -> None:
    """And gives the poll that said so."""
    reader = Reader([Poll(), Poll(), last, Poll()], monkeypatch)
    found = list(Rhythm(call_s=100).polls(reader))
    assert len(found) == 3
    assert found[-1] is last


def test_a_poll_is_given_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are out, and its watermark noted, before more is taken from the source."""
    reader = Reader([Poll()], monkeypatch)
    assert next(Rhythm(call_s=100).polls(reader)).finished is False

"""The rhythm of the source's calls: how long one reads on, and how long the engine waits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any, Final

import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.rhythm import PROMPT, Rhythm, is_flink, rhythm_of
from beam_lateness.transforms.sources.split import Poll

BY_TIMER: Final = {"flink": FlinkRunner(), "portable": PortableRunner()}
BY_CALLS: Final = {"prism": PrismRunner(), "direct": BundleBasedDirectRunner()}
RUNNERS: Final = {**BY_TIMER, **BY_CALLS}
any_runner = pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)

SECONDS = st.floats(0, 100)
MORE, NO_MORE, END = Poll(), Poll(wait_s=0.2), Poll(finished=True)


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


@pytest.mark.parametrize(
    ("runner", "timed"),
    [*((each, True) for each in BY_TIMER.values()), *((each, False) for each in BY_CALLS.values())],
    ids=RUNNERS,
)
def test_a_cluster_reads_by_a_timer_and_prism_though_portable_does_not(
    runner: Any, timed: bool
) -> None:
    """Prism is a portable runner too, and the only one that notes a watermark after each call."""
    assert is_flink(runner) is timed


@pytest.mark.parametrize("runner", BY_CALLS.values(), ids=BY_CALLS)
def test_an_engine_that_notes_a_watermark_after_each_call_gets_one_poll_a_call(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick the poll was: the next one may be behind another watermark."""
    reader = Reader(itertools.repeat(MORE), monkeypatch, poll_s=0)
    assert len(list(rhythm_of(runner, True, None).polls(reader))) == 1


@pytest.mark.parametrize("runner", BY_TIMER.values(), ids=BY_TIMER)
def test_a_timer_reads_several_polls_and_less_than_a_second(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call costs the cluster more than a poll; and a checkpoint waits for it."""
    reader = Reader(itertools.repeat(MORE), monkeypatch, poll_s=0.01)
    assert 1 < len(list(rhythm_of(runner, True, None).polls(reader))) < 100


@any_runner
@pytest.mark.parametrize("interval", [None, "7s"])
def test_there_is_no_pause_while_there_is_more(runner: Any, interval: str | None) -> None:
    """Nor after the end."""
    rhythm = rhythm_of(runner, True, interval)
    assert (rhythm.delay_s(MORE), rhythm.delay_s(END)) == (0, 0)


@any_runner
def test_an_interval_is_waited_where_there_was_nothing_more(runner: Any) -> None:
    """Without one as long as the poll said; with one at least so long."""
    assert rhythm_of(runner, True, None).delay_s(NO_MORE) == NO_MORE.wait_s
    assert rhythm_of(runner, True, "7s").delay_s(NO_MORE) == 7
    assert rhythm_of(runner, True, "100ms").delay_s(NO_MORE) == NO_MORE.wait_s


@any_runner
@pytest.mark.parametrize("interval", ["-1s", "soon", "0.5ms", -1.0])
def test_an_interval_that_is_no_time_is_refused(runner: Any, interval: Any) -> None:
    """By its flag."""
    with pytest.raises(ValueError, match="--poll_interval"):
        rhythm_of(runner, True, interval)


def test_prism_has_calls_after_the_last() -> None:
    """With none it was seen to be stuck."""
    assert rhythm_of(PrismRunner(), True, None).closing_calls > 0


@settings(deadline=None)
@given(SECONDS, SECONDS)
def test_a_poll_is_never_asked_for_before_it_said(wait_s: float, idle_s: float) -> None:
    """Whatever the interval."""
    assert Rhythm(idle_s=idle_s).delay_s(Poll(wait_s=wait_s)) >= wait_s


def test_a_call_reads_on_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that has begun is read to its end."""
    reader = Reader(itertools.repeat(MORE), monkeypatch, poll_s=0.3)
    assert len(list(Rhythm(call_s=1).polls(reader))) == 4


@pytest.mark.parametrize("last", [END, NO_MORE], ids=["all was read", "nothing more"])
def test_a_call_ends_early_where_there_is_no_more(
    monkeypatch: pytest.MonkeyPatch, last: Poll
) -> None:
    """And gives the poll that said so."""
    reader = Reader([MORE, MORE, last, MORE], monkeypatch)
    found = list(Rhythm(call_s=100).polls(reader))
    assert len(found) == 3
    assert found[-1] is last


def test_a_poll_is_given_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are out before more is taken from the source."""
    reader = Reader([MORE], monkeypatch)  # a second one would be an error
    assert next(PROMPT.polls(reader)) is MORE
    assert next(Rhythm(call_s=100).polls(Reader([MORE], monkeypatch))) is MORE


@pytest.mark.parametrize("runner", BY_TIMER.values(), ids=BY_TIMER)
def test_a_finite_input_is_read_with_pauses_that_flink_does_not_cut_to_nothing(runner: Any) -> None:
    """By a splittable DoFn: of its delay whole seconds are left."""
    rhythm = rhythm_of(runner, False, None)
    for poll in (MORE, END, NO_MORE):
        assert rhythm.delay_s(poll) > 1

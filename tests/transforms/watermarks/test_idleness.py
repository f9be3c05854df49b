"""Idleness: longer than the timeout without anything to read, as probes have found."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.watermarks.idleness import IdlenessTimer

FEW = settings(max_examples=100, deadline=None)
# What a probe finds (None: the split is paused), and how far the clock has moved since the last.
STEPS = st.lists(
    st.tuples(st.sampled_from([True, False, False, None]), st.integers(-3, 9)), max_size=12
)


def quiet(timer: IdlenessTimer, *moments_ms: int) -> list[bool]:
    """Probes that find nothing."""
    return [timer.probe(False, now_ms) for now_ms in moments_ms]


def test_a_split_is_idle_after_more_than_the_timeout() -> None:
    """Strictly more, counted from the first probe that found nothing."""
    assert quiet(IdlenessTimer(10), 100, 109, 110, 111) == [False, False, False, True]


def test_the_time_before_the_first_probe_does_not_count() -> None:
    """A reader that was blocked for an hour knows nothing about that hour."""
    timer = IdlenessTimer(10)
    timer.probe(True, 0)
    assert quiet(timer, 3_600_000, 3_600_010, 3_600_011) == [False, False, True]


def test_an_idle_split_stays_idle_until_there_is_something_to_read() -> None:
    """Neither the clock, nor a pause, makes it active."""
    timer = IdlenessTimer(10)
    assert quiet(timer, 0, 11, 12, 5, 0) == [False, True, True, True, True]
    timer.pause()
    assert quiet(timer, 13) == [True]
    assert timer.probe(True, 14) is False


def test_a_record_starts_the_count_anew() -> None:
    """However often: a steady flow is never idle."""
    timer = IdlenessTimer(10)
    for now_ms in range(0, 1_000, 10):
        assert timer.probe(True, now_ms) is False
        assert timer.probe(False, now_ms + 5) is False


def test_a_pause_starts_the_count_anew() -> None:
    """Nobody looked at the split meanwhile."""
    timer = IdlenessTimer(10)
    assert quiet(timer, 0, 10) == [False, False]
    timer.pause()
    assert quiet(timer, 11, 21, 22) == [False, False, True]


def test_a_clock_that_goes_back_makes_no_split_idle() -> None:
    """It is idle once the clock is past the timeout again."""
    assert quiet(IdlenessTimer(10), 100, 0, 90, 110, 111) == [False, False, False, False, True]


@FEW
@given(STEPS, st.integers(0, 12))
def test_a_timer_goes_on_from_its_fields_at_any_cut(
    steps: list[tuple[bool | None, int]], cut: int
) -> None:
    """A checkpoint holds when it became quiet, and whether it is idle."""
    whole, part, now_ms = IdlenessTimer(5), IdlenessTimer(5), 0
    for index, (found, moved_ms) in enumerate(steps):
        now_ms += moved_ms
        if index == cut:
            part = IdlenessTimer(5, part.quiet_since_ms, part.idle)
        for timer in (whole, part):
            if found is None:
                timer.pause()
            else:
                timer.probe(found, now_ms)
        assert part == whole


@FEW
@given(STEPS)
def test_idle_means_quiet_for_longer_than_the_timeout(steps: list[tuple[bool | None, int]]) -> None:
    """Against the whole history: the run of quiet probes since the last record or pause."""
    timer, now_ms, idle = IdlenessTimer(5), 0, False
    run: list[int] = []  # when the probes of this run were
    for found, moved_ms in steps:
        now_ms += moved_ms
        if found is None:
            timer.pause()
            run = []
        elif found:
            run, idle = [], False
            assert timer.probe(True, now_ms) is False
        else:
            run.append(now_ms)
            idle = idle or now_ms - run[0] > 5
            assert timer.probe(False, now_ms) is idle
        assert timer.idle is idle

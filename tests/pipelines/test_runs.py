"""Names of runs: a later one sorts after an earlier one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.pipelines.runs import new_run

MOMENTS = st.datetimes(datetime(1000, 1, 1), datetime(9000, 1, 1), timezones=st.just(timezone.utc))


@given(MOMENTS, st.integers(1, 10**15))
def test_a_later_run_sorts_after_an_earlier_one(moment: datetime, micros: int) -> None:
    """By a microsecond or by years: the upsert takes the greater name for the newer run."""
    later = moment + timedelta(microseconds=micros)
    assert new_run(lambda: moment) < new_run(lambda: later)


def test_two_runs_of_one_moment_differ() -> None:
    """Two machines may start at once."""
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert len({new_run(lambda: moment) for _ in range(20)}) > 1


def test_a_run_is_named_by_now() -> None:
    """Where no clock is given."""
    today = datetime.now(timezone.utc)
    assert new_run()[:8] in {f"{today + timedelta(days=days):%Y%m%d}" for days in (-1, 0, 1)}

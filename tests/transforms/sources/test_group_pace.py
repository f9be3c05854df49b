"""Injected clocks: a paced replay, and the guard against times from the future."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.model import Event
from tests.transforms.sources.memory import by_split, drain, expected, stamped, too_late, written

MINUTE = WatermarkStrategy.for_bounded_out_of_orderness("1m")
START = 1_357_035_300_000


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now_s


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.integers(0, 30_000), min_size=1, max_size=8),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([0.5, 1.0, 10.0]),
    st.sampled_from([40, 100, 1 << 20]),
)
def test_a_paced_replay_releases_records_by_their_event_time(
    times: dict[str, list[int]], speed: float, size: int
) -> None:
    """None before the clock has come to it, and all of them with the stamps of full speed."""
    streams = {
        split: [Event("k", 1, START + ts, f"{split}{i}") for i, ts in enumerate(each)]
        for split, each in times.items()
    }
    due = {
        event.name: latest
        for events in streams.values()
        for event, latest in zip(events, accumulate((e.ts for e in events), max), strict=True)
    }
    clock = Clock()
    reader = written(streams).reader(
        MINUTE, ReadSettings(block_bytes=size, replay_speed=speed, clock=clock)
    )
    first = min(events[0].ts for events in streams.values())
    polls: list[Poll] = []
    while not polls or not polls[-1].finished:
        polls.append(reader.poll())
        reached = first + (clock.now_s - 1_000) * 1_000 * speed
        assert all(due[record.name] <= reached + 1 for record in stamped(polls[-1:]))
        assert len(polls) < 1_000, "waiting as long as it says, a replay gets on"
        clock.now_s += polls[-1].wait_s
    assert by_split(stamped(polls)) == expected(streams, 60_000)


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_a_paced_replay_says_how_long_to_wait(speed: float) -> None:
    """Until the next record is due; at most a second, so that the job stays responsive."""
    events = [Event("k", 1, START + ts, str(ts)) for ts in (0, 400, 60_000)]
    clock = Clock()
    reader = written({"a": events}).reader(MINUTE, ReadSettings(replay_speed=speed, clock=clock))
    assert [record.name for record in stamped([reader.poll()])] == ["0"]
    wait = reader.poll()
    assert not wait.batches
    assert wait.wait_s == pytest.approx(0.4 / speed)
    clock.now_s += wait.wait_s - 0.01
    assert not reader.poll().batches
    clock.now_s += 0.02
    assert [record.name for record in stamped([reader.poll()])] == ["400"]
    assert 0 < reader.poll().wait_s <= 1


def test_a_paced_replay_holds_its_watermark_with_its_records() -> None:
    """What was read ahead does not count yet."""
    events = [Event("k", 1, START + ts, str(ts)) for ts in (0, 5_000)]
    clock = Clock()
    reader = written({"a": events}).reader(MINUTE, ReadSettings(replay_speed=1.0, clock=clock))
    assert reader.poll().state.watermark_ms == START - 60_001
    clock.now_s += 5
    assert reader.poll().state.watermark_ms == START - 55_001


FAST_CLOCK = [
    Event("k", 1, START + 1_000 * s, str(s))
    for s in (0, 120, 720 + 86_400, *range(180, 721, 60))  # one row a day ahead of the clock
]


def test_a_record_from_the_future_does_not_move_the_watermark() -> None:
    """C22: it is invalid, and the ten honest rows after it are in time."""
    clock = Clock(START / 1_000 + 720)
    settings_ = ReadSettings(max_future_skew_ms=300_000, clock=clock)
    polls = drain(written({"a": FAST_CLOCK}).reader(MINUTE, settings_))
    (invalid,) = [record for poll in polls for record in poll.invalid]
    assert (invalid.reason, invalid.record_id) == ("future_event_time", str(720 + 86_400))
    records = stamped(polls)
    assert len(records) == 12
    assert too_late(records, 60_000, 0) == set()


def test_without_the_guard_a_record_from_the_future_makes_the_others_too_late() -> None:
    """C22 with the guard off: ten of ten."""
    records = stamped(drain(written({"a": FAST_CLOCK}).reader(MINUTE)))
    assert too_late(records, 60_000, 0) == {str(s) for s in range(180, 721, 60)}


@pytest.mark.parametrize(("ahead_ms", "invalid"), [(300_000, 0), (300_001, 1)])
def test_the_guards_limit_is_the_clock_and_the_skew(ahead_ms: int, invalid: int) -> None:
    """To the millisecond."""
    clock = Clock(START / 1_000)
    source = written({"a": [Event("k", 1, START + ahead_ms, "x")]})
    settings_ = ReadSettings(max_future_skew_ms=300_000, clock=clock)
    polls = drain(source.reader(MINUTE, settings_))
    assert sum(len(poll.invalid) for poll in polls) == invalid
    assert len(stamped(polls)) == 1 - invalid

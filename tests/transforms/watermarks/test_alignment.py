"""Alignment: how far a reader of a group may go on."""

from __future__ import annotations

import gc
import threading

import pytest

from beam_lateness.transforms.watermarks.alignment import AlignmentMember, WatermarkAlignment
from tests.transforms.watermarks.policies import Clock

DRIFT_MS = 100
INTERVAL_S = 2


@pytest.fixture
def clock() -> Clock:
    """One clock for the whole process."""
    return Clock(1_000)


@pytest.fixture
def alignment(request: pytest.FixtureRequest) -> WatermarkAlignment:
    """A group of this test's own: groups are per process."""
    return WatermarkAlignment(request.node.nodeid, DRIFT_MS, INTERVAL_S * 1000)


def test_a_reader_alone_may_go_as_far_as_its_own_lowest_split(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """Within a reader that is exact at every poll, whatever the update interval."""
    member = AlignmentMember(alignment, clock)
    assert [member.max_allowed_ms(ms) for ms in (5, 7, 300)] == [105, 107, 400]


def test_where_nothing_is_known_there_is_no_limit(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """No split of the group has a watermark: neither this reader's, nor another's."""
    first, second = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    assert first.max_allowed_ms(None) is None
    assert second.max_allowed_ms(None) is None


def test_the_lowest_reader_of_a_group_holds_the_others(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """And none holds the lowest; one with nothing of its own is held too."""
    slow, fast, silent = (AlignmentMember(alignment, clock) for _ in range(3))
    assert slow.max_allowed_ms(10) == 110
    assert fast.max_allowed_ms(5_000) == 110
    assert silent.max_allowed_ms(None) == 110
    clock.seconds += INTERVAL_S
    assert slow.max_allowed_ms(10) == 110


def test_readers_see_each_other_as_of_their_last_update(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """Both have an interval: when one tells where it stands, and when the other looks."""
    slow, fast = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    slow.max_allowed_ms(10)
    assert fast.max_allowed_ms(5_000) == 110
    clock.seconds += INTERVAL_S - 0.5
    slow.max_allowed_ms(1_000)  # not told yet
    assert slow.reported_ms == 10
    assert fast.max_allowed_ms(5_000) == 110
    clock.seconds += 0.5
    assert fast.max_allowed_ms(5_000) == 110  # looks, and finds what was told last
    slow.max_allowed_ms(1_000)
    assert slow.reported_ms == 1_000
    assert fast.max_allowed_ms(5_000) == 110
    clock.seconds += INTERVAL_S
    assert fast.max_allowed_ms(5_000) == 1_100


def test_a_clock_that_goes_back_does_not_stop_the_updates(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """The next look is an update."""
    slow, fast = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    slow.max_allowed_ms(10)
    fast.max_allowed_ms(5_000)
    clock.seconds -= 900
    slow.max_allowed_ms(2_000)
    assert slow.reported_ms == 2_000
    assert fast.max_allowed_ms(5_000) == 2_100


def test_a_reader_without_a_watermark_holds_nobody(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """C30: all its splits are idle, or it has none; at its first record it counts again."""
    active, idle = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    idle.max_allowed_ms(10)
    assert active.max_allowed_ms(5_000) == 110
    clock.seconds += INTERVAL_S
    idle.max_allowed_ms(None)
    assert idle.reported_ms is None
    assert active.max_allowed_ms(5_000) == 5_100
    clock.seconds += INTERVAL_S
    assert idle.max_allowed_ms(20) == 120
    assert active.max_allowed_ms(5_000) == 120


def test_a_reader_that_has_left_holds_nobody(alignment: WatermarkAlignment, clock: Clock) -> None:
    """Its source is closed; leaving twice, or before the first look, is no error."""
    left, active = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    left.leave()
    left.max_allowed_ms(10)
    assert active.max_allowed_ms(5_000) == 110
    left.leave()
    left.leave()
    clock.seconds += INTERVAL_S
    assert active.max_allowed_ms(5_000) == 5_100


def test_a_reader_that_was_dropped_without_a_word_holds_nobody(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """A bundle that failed closes nothing."""
    dropped, active = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    dropped.max_allowed_ms(10)
    assert active.max_allowed_ms(5_000) == 110
    del dropped
    gc.collect()
    clock.seconds += INTERVAL_S
    assert active.max_allowed_ms(5_000) == 5_100


def test_readers_of_other_groups_do_not_matter(alignment: WatermarkAlignment, clock: Clock) -> None:
    """However far behind they are."""
    elsewhere = WatermarkAlignment((alignment.group, "other"), DRIFT_MS, INTERVAL_S * 1000)
    stranger, member = AlignmentMember(elsewhere, clock), AlignmentMember(alignment, clock)
    stranger.max_allowed_ms(-(10**9))
    assert member.max_allowed_ms(5_000) == 5_100


def test_each_reader_has_the_drift_of_its_own_configuration(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """A group is a name: two strategies may name it with different drifts."""
    wider = WatermarkAlignment(alignment.group, 3 * DRIFT_MS, INTERVAL_S * 1000)
    first, second = AlignmentMember(alignment, clock), AlignmentMember(wider, clock)
    first.max_allowed_ms(10)
    assert second.max_allowed_ms(5_000) == 10 + 3 * DRIFT_MS


def test_readers_of_several_threads_see_each_other(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """An engine runs the readers of a process side by side."""
    members = [AlignmentMember(alignment, clock) for _ in range(8)]
    barrier = threading.Barrier(len(members))

    def tell(member: AlignmentMember, minimum_ms: int) -> None:
        barrier.wait()
        member.max_allowed_ms(minimum_ms)

    threads = [
        threading.Thread(target=tell, args=(member, 1_000 + index))
        for index, member in enumerate(members)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.seconds += INTERVAL_S
    assert {member.max_allowed_ms(5_000) for member in members[1:]} == {1_100}


def test_a_reader_that_is_silent_for_ten_intervals_holds_nobody(
    alignment: WatermarkAlignment, clock: Clock
) -> None:
    """It may be gone without a word; one that comes back holds again."""
    gone, going = AlignmentMember(alignment, clock), AlignmentMember(alignment, clock)
    gone.max_allowed_ms(10)
    clock.seconds += 10 * INTERVAL_S
    assert going.max_allowed_ms(5_000) == 110
    clock.seconds += INTERVAL_S
    assert going.max_allowed_ms(5_000) == 5_100
    gone.max_allowed_ms(10)
    clock.seconds += INTERVAL_S
    assert going.max_allowed_ms(5_000) == 110

"""The watermark of a group of splits."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.splits import SplitWatermarks

Step: TypeAlias = tuple[str, str, int]

FEW = settings(max_examples=150, deadline=None)
NAMES = "abc"
# What happens to a split, and a watermark where it needs one.
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(["update", "update", "new", "idle", "active", "remove", "advance"]),
        st.sampled_from(NAMES),
        st.integers(-9, 9),
    ),
    max_size=14,
)


class Plain:
    """The same rule, from scratch at each step: the splits' watermarks, and who is idle."""

    def __init__(self, combined_ms: int = NO_WATERMARK_MS) -> None:
        self.own: dict[str, int] = {}
        self.idle: dict[str, bool] = {}
        self.combined_ms = combined_ms

    def take(self, step: Step) -> None:
        """Takes a step, and looks at the group after it."""
        op, split, watermark_ms = step
        if op == "advance":
            self.combined_ms = max(self.combined_ms, watermark_ms)
        elif op == "remove":
            self.own.pop(split, None)
            self.idle.pop(split, None)
        else:
            before = self.own.get(split, NO_WATERMARK_MS)
            self.own[split] = max(before, watermark_ms) if op == "update" else before
            self.idle[split] = op == "idle"
        if self.active:
            self.combined_ms = max(self.combined_ms, min(self.active.values()))
        elif self.own:
            self.combined_ms = max(self.combined_ms, *self.own.values())

    @property
    def active(self) -> dict[str, int]:
        """The watermarks of the splits that are not idle."""
        return {name: ms for name, ms in self.own.items() if not self.idle[name]}


def take(splits: SplitWatermarks, step: Step) -> None:
    """Takes a step."""
    op, split, watermark_ms = step
    match op:
        case "update":
            splits.update(split, watermark_ms)
        case "new":
            splits.update(split, NO_WATERMARK_MS)
        case "active":
            splits.update(split, splits.of(split))
        case "idle":
            splits.mark_idle(split)
        case "remove":
            splits.remove(split)
        case "advance":
            splits.advance(watermark_ms)


@FEW
@given(STEPS)
def test_the_group_is_the_minimum_of_its_active_splits_and_never_goes_back(
    steps: list[Step],
) -> None:
    """Against plain dictionaries, whatever the order: and the highest, where all are idle."""
    splits, plain = SplitWatermarks(), Plain()
    for step in steps:
        before = splits.combined_ms
        take(splits, step)
        plain.take(step)
        assert splits.combined_ms == plain.combined_ms >= before
        assert splits.all_idle is (bool(plain.own) and all(plain.idle.values()))


@FEW
@given(STEPS)
def test_a_split_is_seen_alone_and_among_the_others(steps: list[Step]) -> None:
    """Its own watermark, the minimum of the other active ones, and of those that have one."""
    splits, plain = SplitWatermarks(), Plain()
    for step in steps:
        take(splits, step)
        plain.take(step)
        known = [ms for ms in plain.active.values() if ms > NO_WATERMARK_MS]
        assert splits.minimum_known() == min(known, default=None)
        for name in NAMES:
            assert splits.of(name) == plain.own.get(name, NO_WATERMARK_MS)
            others = [ms for other, ms in plain.active.items() if other != name]
            assert splits.minimum_of_others(name) == min(others, default=None)


@FEW
@given(STEPS, st.integers(-9, 9))
def test_a_group_goes_on_from_its_combined_watermark(steps: list[Step], combined_ms: int) -> None:
    """Restored splits that are behind do not pull the group back."""
    splits, plain = SplitWatermarks(combined_ms), Plain(combined_ms)
    for step in steps:
        take(splits, step)
        plain.take(step)
        assert splits.combined_ms == plain.combined_ms >= combined_ms


def test_a_split_without_a_watermark_holds_the_group() -> None:
    """Until every split has spoken, there is none."""
    splits = SplitWatermarks()
    splits.update("quiet", NO_WATERMARK_MS)
    splits.update("a", 5)
    assert splits.combined_ms == NO_WATERMARK_MS
    assert splits.minimum_known() == 5


def test_a_finished_split_holds_nothing() -> None:
    """The minimum is over those that have more to come."""
    splits = SplitWatermarks()
    splits.update("a", 1)
    splits.update("b", 5)
    assert splits.combined_ms == 1
    splits.remove("a")
    assert splits.combined_ms == 5


def test_an_idle_split_holds_nothing_until_it_speaks_again() -> None:
    """W8: and what it says then cannot pull the group back."""
    splits = SplitWatermarks()
    splits.update("a", 20)
    splits.update("silent", 10)
    assert splits.combined_ms == 10
    splits.mark_idle("silent")
    assert splits.combined_ms == 20
    splits.update("silent", 11)
    splits.update("a", 30)
    assert splits.combined_ms == 20
    splits.update("silent", 25)
    assert splits.combined_ms == 25


def test_a_split_may_be_idle_before_its_first_record() -> None:
    """It has no watermark, and holds nothing."""
    splits = SplitWatermarks()
    splits.mark_idle("never spoke")
    assert splits.all_idle
    assert splits.combined_ms == NO_WATERMARK_MS
    splits.update("a", 5)
    assert not splits.all_idle
    assert splits.combined_ms == 5


def test_where_all_splits_are_idle_none_holds_the_others() -> None:
    """The group goes to the highest of theirs, and stands there, or is moved on by the clock."""
    splits = SplitWatermarks()
    for split, watermark_ms in (("a", 5), ("b", 2)):
        splits.update(split, watermark_ms)
        splits.mark_idle(split)
    assert splits.combined_ms == 5
    splits.advance(9)
    splits.advance(7)
    assert splits.combined_ms == 9
    splits.update("b", 8)
    assert splits.combined_ms == 9


def test_the_last_idle_split_of_a_group_may_finish() -> None:
    """A group without splits is not idle: there is nothing to wait for."""
    splits = SplitWatermarks()
    splits.update("a", 5)
    splits.mark_idle("a")
    assert splits.combined_ms == 5
    splits.remove("a")
    assert not splits.all_idle
    assert splits.combined_ms == 5
    assert splits.minimum_known() is None


def test_removing_an_unknown_split_is_no_error() -> None:
    """A split may end before its first record."""
    splits: Any = SplitWatermarks()
    splits.remove("never seen")
    assert splits.combined_ms == NO_WATERMARK_MS

"""The watermark of a group of splits."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.splits import SplitWatermarks

Steps: TypeAlias = list[tuple[str, int | None]]

FEW = settings(max_examples=50, deadline=None)
# A watermark for a split, or its end.
STEPS: st.SearchStrategy[Steps] = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(-9, 9)), max_size=12
)


def apply(splits: SplitWatermarks, split: str, watermark_ms: int | None) -> None:
    """Takes one step."""
    if watermark_ms is None:
        splits.remove(split)
    else:
        splits.update(split, watermark_ms)


@FEW
@given(STEPS)
def test_the_group_is_the_minimum_of_its_splits_and_never_goes_back(steps: Steps) -> None:
    """Against a plain dictionary, whatever the order of updates and ends."""
    splits, own, highest = SplitWatermarks(), dict[str, int](), NO_WATERMARK_MS
    for split, watermark_ms in steps:
        apply(splits, split, watermark_ms)
        if watermark_ms is None:
            own.pop(split, None)
        else:
            own[split] = max(own.get(split, watermark_ms), watermark_ms)
        highest = max(highest, min(own.values(), default=NO_WATERMARK_MS))
        assert splits.combined_ms == highest
        for name in "abc":
            assert splits.of(name) == own.get(name, NO_WATERMARK_MS)
            others = [ms for other, ms in own.items() if other != name]
            assert splits.minimum_of_others(name) == (min(others) if others else None)


@FEW
@given(STEPS, st.integers(-9, 9))
def test_a_group_goes_on_from_its_combined_watermark(steps: Steps, combined_ms: int) -> None:
    """Restored splits that are behind do not pull the group back."""
    splits = SplitWatermarks(combined_ms)
    for step in steps:
        apply(splits, *step)
        assert splits.combined_ms >= combined_ms


def test_a_split_without_a_watermark_holds_the_group() -> None:
    """Until every split has spoken, there is none."""
    splits = SplitWatermarks()
    splits.update("quiet", NO_WATERMARK_MS)
    splits.update("a", 5)
    assert splits.combined_ms == NO_WATERMARK_MS


def test_a_finished_split_holds_nothing() -> None:
    """The minimum is over those that have more to come."""
    splits = SplitWatermarks()
    splits.update("a", 1)
    splits.update("b", 5)
    assert splits.combined_ms == 1
    splits.remove("a")
    assert splits.combined_ms == 5


def test_removing_an_unknown_split_is_no_error() -> None:
    """A split may end before its first record."""
    splits: Any = SplitWatermarks()
    splits.remove("never seen")
    assert splits.combined_ms == NO_WATERMARK_MS

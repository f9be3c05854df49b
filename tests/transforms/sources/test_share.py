"""Shares: every split of an input is read by exactly one of its readers, whenever it appears."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_group import ReadGroup
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.restriction import Restriction
from beam_lateness.transforms.sources.share import WHOLE, Share, shares
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.model import Event
from tests.transforms.sources.memory import MemoryInput, stamped

NAMES = st.sets(st.text(max_size=8), min_size=1, max_size=12)


@st.composite
def dealt(draw: st.DrawFn, least: int = 1) -> tuple[list[str], list[Share]]:
    """Draws the splits of an input, in any order, and at least so many readers of them."""
    splits = draw(st.lists(st.text(max_size=8), min_size=least, max_size=12, unique=True))
    return splits, shares(splits, draw(st.integers(least, len(splits))))


@settings(deadline=None)
@given(dealt(), NAMES)
def test_every_split_is_of_exactly_one_share(
    drawn: tuple[list[str], list[Share]], later: set[str]
) -> None:
    """Those that were known and those that appear later."""
    splits, readers = drawn
    for split in {*splits, *later}:
        assert [reader.has(split) for reader in readers].count(True) == 1


@settings(deadline=None)
@given(dealt())
def test_no_reader_is_without_a_split_and_none_has_two_more_than_another(
    drawn: tuple[list[str], list[Share]],
) -> None:
    """One without would hold back the watermark of all."""
    splits, readers = drawn
    sizes = [len(reader.of(dict.fromkeys(splits, 0))) for reader in readers]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(dealt())
def test_the_shares_do_not_depend_on_the_order_in_which_splits_were_found(
    drawn: tuple[list[str], list[Share]],
) -> None:
    """Each launch finds the same ones."""
    splits, readers = drawn
    assert shares(sorted(splits), len(readers)) == readers


@settings(deadline=None)
@given(dealt())
def test_the_positions_of_a_share_are_those_of_its_splits(
    drawn: tuple[list[str], list[Share]],
) -> None:
    """None is moved, and together they are all."""
    splits, readers = drawn
    positions = {name: number for number, name in enumerate(splits)}
    together: dict[str, int] = {}
    for reader in readers:
        together |= reader.of(positions)
    assert together == positions


@settings(deadline=None)
@given(dealt(least=2))
def test_a_share_comes_back_from_the_element_that_it_was_made_into(
    drawn: tuple[list[str], list[Share]],
) -> None:
    """And different readers have different elements."""
    _, readers = drawn
    encoded = [reader.encode() for reader in readers]
    assert [Share.decode(each) for each in encoded] == readers
    assert len(set(encoded)) == len(readers)


@settings(deadline=None)
@given(NAMES, NAMES)
def test_the_only_reader_has_every_split(splits: set[str], later: set[str]) -> None:
    """Its element is the one of a pipeline without shares: Beam's impulse."""
    (only,) = shares(sorted(splits), 1)
    assert only.encode() == b""
    found = Share.decode(b"")
    assert found == WHOLE
    assert all(each.has(name) for each in (only, found) for name in splits | later)


@pytest.mark.parametrize(("splits", "count"), [(0, 2), (1, 2), (3, 4), (3, 100)])
def test_more_readers_than_splits_are_refused(splits: int, count: int) -> None:
    """With both numbers, the flag, and the reason."""
    names = [f"split{number}" for number in range(splits)]
    told = rf"--num_readers.*splits, {splits}, got {count}.*hold back the watermark"
    with pytest.raises(ValueError, match=told):
        shares(names, count)


def test_an_input_without_splits_has_one_reader() -> None:
    """A topic, or a folder, that is empty yet."""
    assert len(shares([], 1)) == 1


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5), min_size=2),
    st.integers(2, 6),
    st.sets(st.sampled_from(["late1", "late2", "late3"])),
)
def test_the_readers_of_a_followed_input_read_every_record_once(
    counts: dict[str, int], readers: int, later: set[str]
) -> None:
    """Each its share, and of the splits that appear while they read."""
    source = MemoryInput({}, follows=True)
    for split, count in counts.items():
        source.write(split, *(Event("k", 1, number, f"{split}{number}") for number in range(count)))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    group = Group(
        source,
        strategy.with_timestamp_assigner(FieldTime("t", "ms")),
        [],
        ReadSettings(max_future_skew_ms=None),
    )
    opened = [
        group.open(share=share) for share in shares(sorted(counts), min(readers, len(counts)))
    ]
    polls = [reader.poll() for reader in opened]
    for split in later:
        source.write(split, Event("k", 1, 9, split))
    polls += [reader.poll() for reader in opened]
    wanted = [f"{split}{number}" for split, count in counts.items() for number in range(count)]
    assert sorted(record.name for record in stamped(polls)) == sorted([*wanted, *later])


def test_a_reader_begins_with_its_share_of_the_input() -> None:
    """By the element that it is given."""
    source = MemoryInput(dict.fromkeys("abc", b""))
    group = Group(
        source,
        WatermarkStrategy.for_monotonous_timestamps(),
        [],
        ReadSettings(max_future_skew_ms=None),
    )
    begun = [
        ReadGroup(group).initial_restriction(share.encode()) for share in shares(["a", "b", "c"], 2)
    ]
    assert begun == [
        Restriction({"a": SplitPosition(), "c": SplitPosition()}),
        Restriction({"b": SplitPosition()}),
    ]

"""A `CombineFn` as aggregate: grouped anywhere, merged in any order, the same result."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import PickleCoder
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.transforms.lateness.aggregation import CombineAggregation, Rows

Pair = tuple[str, Any]

PAIRS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.one_of(st.text(max_size=3), st.integers())),
    min_size=1,
    max_size=30,
)


class SortedWords(beam.CombineFn):
    """Gathers values of any type; the accumulator is not the result."""

    def __init__(self) -> None:
        """Is typed, unlike the one of Beam."""

    def create_accumulator(self) -> list[str]:
        """Makes an empty list."""
        return []

    def add_input(self, accumulator: list[str], element: Any) -> list[str]:
        """Adds a value."""
        return [*accumulator, str(element)]

    def merge_accumulators(self, accumulators: Iterable[list[str]]) -> list[str]:
        """Joins lists."""
        return [word for words in accumulators for word in words]

    def extract_output(self, accumulator: list[str]) -> str:
        """Gives the words in order."""
        return " ".join(sorted(accumulator))


def aggregation_of(combine: beam.CombineFn) -> CombineAggregation:
    """Makes an aggregation of a CombineFn."""
    coder = PickleCoder()
    return CombineAggregation(
        combine.create_accumulator,
        combine.add_input,
        combine.merge_accumulators,
        combine.extract_output,
        coder.encode,
        coder.decode,
    )


def group(aggregation: CombineAggregation, pairs: Sequence[Pair]) -> Rows:
    """Groups pairs of values of any type."""
    by = pa.table({"key": pa.array([key for key, _ in pairs], pa.string())})
    return aggregation.group_values(by, [value for _, value in pairs])


def read(aggregation: CombineAggregation, rows: Rows) -> dict[str, Any]:
    """Gives results and counts by key."""
    results = zip(aggregation.values(rows), rows.column("count").to_pylist(), strict=True)
    return dict(zip(rows.column("key").to_pylist(), results, strict=True))


def plainly(combine: beam.CombineFn, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Combines each key's values by hand."""
    by_key: dict[str, list[Any]] = defaultdict(list)
    for key, value in pairs:
        by_key[key].append(value)
    return {key: (combine.apply(values), len(values)) for key, values in by_key.items()}


@given(pairs=PAIRS, seed=st.integers(0, 99))
def test_accumulators_merge_in_any_partition_and_order(pairs: list[Pair], seed: int) -> None:
    """The merge of any parts is what the CombineFn makes of the whole."""
    dice = random.Random(seed)
    shuffled = dice.sample(pairs, len(pairs))
    cut = dice.randint(0, len(shuffled))
    halves = [half for half in (shuffled[:cut], shuffled[cut:]) if half]
    aggregation = aggregation_of(SortedWords())
    parts = [group(aggregation, half) for half in halves]
    merged = aggregation.merge(parts)
    again = aggregation.merge([merged, group(aggregation, pairs)])
    assert read(aggregation, merged) == plainly(SortedWords(), pairs)
    assert read(aggregation, again) == plainly(SortedWords(), [*pairs, *pairs])


@given(pairs=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-(2**63), 2**63 - 1))))
def test_columns_and_values_group_alike(pairs: list[Pair]) -> None:
    """Batches and plain records come to the same result."""
    aggregation = aggregation_of(SortedWords())
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.int64())
    rows = aggregation.group(pa.table({"key": keys, "value": values}), ["key"])
    assert read(aggregation, rows) == read(aggregation, group(aggregation, pairs))

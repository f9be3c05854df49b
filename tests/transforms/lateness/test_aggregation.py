"""Column aggregates: grouped anywhere, merged in any order, the same result."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.lateness.aggregation import (
    AGGREGATES,
    ColumnAggregation,
    Rows,
)

Pair = tuple[str, Any]

KEYS = st.sampled_from(["a", "b", "c", "é", ""])
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-10, 10))
SOME = settings(max_examples=40, deadline=None)
"""For each of five aggregates."""

EXACT_FLOATS = st.integers(-(2**20), 2**20).map(lambda n: n / 8)
"""Floats whose sums are exact in any order."""


def group(aggregation: ColumnAggregation, pairs: Sequence[Pair], kind: Any = None) -> Rows:
    """Groups pairs as a transform would."""
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], kind)
    return aggregation.group(pa.table({"key": keys, "value": values}), ["key"])


def group_values(aggregation: ColumnAggregation, pairs: Sequence[Pair]) -> Rows:
    """Groups pairs of Python values, as plain records are."""
    by = pa.table({"key": pa.array([key for key, _ in pairs], pa.string())})
    return aggregation.group_values(by, [value for _, value in pairs])


def read(aggregation: ColumnAggregation, rows: Rows) -> dict[str, Any]:
    """Gives the results by key."""
    keys = rows.column("key").to_pylist()
    return dict(zip(keys, aggregation.values(rows), strict=True))


def counts(rows: Rows) -> dict[str, int]:
    """Gives the counts by key."""
    keys, found = rows.column("key").to_pylist(), rows.column("count").to_pylist()
    return dict(zip(keys, found, strict=True))


def plainly(name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Works out an aggregate the plain way."""
    by_key: dict[str, list[Any]] = defaultdict(list)
    for key, value in pairs:
        by_key[key].append(value)
    how: dict[str, Any] = {
        "sum": sum,
        "count": len,
        "min": min,
        "max": max,
        "mean": lambda values: float(Fraction(sum(values)) / len(values)),
    }
    return {key: how[name](values) for key, values in by_key.items()}


def partitions(pairs: list[Pair], seed: int) -> list[list[Pair]]:
    """Shuffles pairs and cuts them anywhere."""
    dice = random.Random(seed)
    shuffled = dice.sample(pairs, len(pairs))
    parts: list[list[Pair]] = [[]]
    for pair in shuffled:
        parts[-1].append(pair)
        if dice.random() < 0.4:
            parts.append([])
    return [part for part in parts if part]


def merge_in_steps(aggregation: ColumnAggregation, parts: list[Rows], seed: int) -> Rows:
    """Merges parts in a random tree."""
    dice = random.Random(seed)
    while len(parts) > 1:
        taken = dice.randint(2, len(parts))
        parts = [*parts[taken:], aggregation.merge(parts[:taken])]
    return parts[0]


@pytest.mark.parametrize("name", AGGREGATES)
@SOME
@given(pairs=st.lists(st.tuples(KEYS, INT64), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_integers_aggregate_exactly_in_any_partition_and_order(
    name: str, pairs: list[Pair], seed: int
) -> None:
    """The merge of any parts is the aggregate of the whole, beyond 64 bits too."""
    aggregation = ColumnAggregation([name])
    parts = [group(aggregation, part) for part in partitions(pairs, seed)]
    merged = read(aggregation, merge_in_steps(aggregation, parts, seed))
    assert merged == read(aggregation, group(aggregation, pairs)) == plainly(name, pairs)
    if name != "mean":
        assert {type(value) for value in merged.values()} == {int}


@pytest.mark.parametrize("name", AGGREGATES)
@SOME
@given(
    pairs=st.lists(st.tuples(KEYS, EXACT_FLOATS), min_size=1, max_size=30),
    seed=st.integers(0, 99),
)
def test_floats_aggregate_in_any_partition_and_order(
    name: str, pairs: list[Pair], seed: int
) -> None:
    """The same for floats."""
    aggregation = ColumnAggregation([name])
    parts = [group(aggregation, part) for part in partitions(pairs, seed)]
    merged = read(aggregation, merge_in_steps(aggregation, parts, seed))
    assert merged == pytest.approx(plainly(name, pairs), rel=1e-12, abs=0)


@pytest.mark.parametrize("name", AGGREGATES)
@SOME
@given(
    ints=st.lists(st.tuples(KEYS, st.integers(-(2**40), 2**40)), min_size=1, max_size=10),
    wide=st.lists(st.tuples(KEYS, st.integers(2**62, 2**63 - 1)), min_size=1, max_size=10),
    floats=st.lists(st.tuples(KEYS, EXACT_FLOATS), min_size=1, max_size=10),
    seed=st.integers(0, 99),
)
def test_integers_wide_sums_and_floats_merge(
    name: str, ints: list[Pair], wide: list[Pair], floats: list[Pair], seed: int
) -> None:
    """Parts of integers, of sums beyond 64 bits and of floats merge in any order, as floats."""
    aggregation = ColumnAggregation([name])
    parts = [group(aggregation, part) for part in (ints, wide, floats)]
    random.Random(seed).shuffle(parts)
    merged = read(aggregation, merge_in_steps(aggregation, parts, seed))
    expected = plainly(name, [*ints, *wide, *floats])
    assert merged.keys() == expected.keys()
    for key, value in merged.items():
        assert math.isclose(value, expected[key], rel_tol=1e-9, abs_tol=2.0**12)


@given(
    pairs=st.lists(st.tuples(KEYS, INT64), min_size=1, max_size=20),
    names=st.permutations(AGGREGATES),
    how_many=st.integers(2, len(AGGREGATES)),
    seed=st.integers(0, 99),
)
def test_several_aggregates_are_each_what_they_are_alone(
    pairs: list[Pair], names: list[str], how_many: int, seed: int
) -> None:
    """Several give a dictionary by name, in the order asked for."""
    asked = names[:how_many]
    several = ColumnAggregation(asked)
    parts = [group(several, part) for part in partitions(pairs, seed)]
    merged = read(several, merge_in_steps(several, parts, seed))
    alone = {name: plainly(name, pairs) for name in asked}
    assert merged == {
        key: {name: alone[name][key] for name in asked} for key in {k for k, _ in pairs}
    }
    assert all(list(value) == asked for value in merged.values())


@pytest.mark.parametrize("name", AGGREGATES)
@SOME
@given(pairs=st.lists(st.tuples(KEYS, INT64), min_size=1, max_size=20), seed=st.integers(0, 99))
def test_every_record_is_counted_whatever_the_aggregate(
    name: str, pairs: list[Pair], seed: int
) -> None:
    """`count` goes along with every aggregate."""
    aggregation = ColumnAggregation([name])
    parts = [group(aggregation, part) for part in partitions(pairs, seed)]
    merged = counts(merge_in_steps(aggregation, parts, seed))
    assert merged == plainly("count", pairs)


def test_an_integer_sum_passes_64_bits_within_one_part() -> None:
    """Arrow would wrap it silently."""
    largest = 2**63 - 1
    aggregation = ColumnAggregation(["sum"])
    rows = group(aggregation, [("a", largest)] * 3)
    assert read(aggregation, rows) == {"a": 3 * largest}


def test_an_integer_sum_passes_64_bits_when_parts_merge() -> None:
    """Each part fits, their sum does not."""
    lowest = -(2**63)
    aggregation = ColumnAggregation(["sum"])
    parts = [group(aggregation, [("a", lowest)]) for _ in range(3)]
    assert read(aggregation, aggregation.merge(parts)) == {"a": 3 * lowest}


@SOME
@given(pairs=st.lists(st.tuples(KEYS, st.one_of(INT64, EXACT_FLOATS)), min_size=1, max_size=20))
def test_python_values_group_as_columns_do(pairs: list[Pair]) -> None:
    """Plain records and batches come to the same result; one float makes all floats."""
    aggregation = ColumnAggregation(["sum", "max"])
    floats = any(isinstance(value, float) for _, value in pairs)
    columns = [(key, float(value) if floats else value) for key, value in pairs]
    rows = group_values(aggregation, pairs)
    assert read(aggregation, rows) == read(aggregation, group(aggregation, columns))


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([2**63, 2**63], 2**64),
        ([2**70, -1], 2**70 - 1),
        ([np.uint64(2**63), np.uint64(2**63)], 2**64),
        ([np.int32(7), 2**40], 2**40 + 7),
        ([np.int8(100), np.int8(100)], 200),
        ([np.float32(0.5), 1], 1.5),
        ([2**53 + 1, 0.5], 2.0**53),
        ([True, 2], 3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("together", [True, False])
def test_numbers_of_any_width_sum_exactly(values: list[Any], total: float, together: bool) -> None:
    """Python's and NumPy's, in one part or merged from two: none wraps."""
    aggregation = ColumnAggregation(["sum"])
    pairs = [("a", value) for value in values]
    parts = [pairs] if together else [pairs[:1], pairs[1:]]
    merged = aggregation.merge([group_values(aggregation, part) for part in parts])
    assert read(aggregation, merged) == {"a": total}


@pytest.mark.parametrize("value", [None, "1", Decimal(1), Fraction(1, 3), [1], 1j], ids=repr)
def test_a_value_that_is_no_number_is_refused_by_name(value: Any) -> None:
    """The message tells the value, and the way out."""
    with pytest.raises(TypeError, match=r"take int and float values, got .* as a CombineFn"):
        group_values(ColumnAggregation(["sum"]), [("a", 1), ("a", value)])


def test_values_of_any_type_are_counted() -> None:
    """A count looks at none of them."""
    aggregation = ColumnAggregation(["count"])
    rows = group_values(aggregation, [("a", "text"), ("a", None), ("b", [1])])
    assert read(aggregation, rows) == {"a": 2, "b": 1}


def test_a_count_needs_no_values() -> None:
    """Records without a value are counted."""
    aggregation = ColumnAggregation(["count"])
    rows = group(aggregation, [("a", None), ("a", None), ("b", None)], pa.int64())
    assert read(aggregation, rows) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "names", [["median"], ["sum", "median"], [], ["sum", "sum"], ["Sum"], [""]]
)
def test_unknown_repeated_or_no_names_are_refused(names: list[str]) -> None:
    """The message names the flag and the choices."""
    complaint = r"aggregate \(--aggregate\) must be one or more of sum, count, min, max, mean"
    with pytest.raises(ValueError, match=complaint):
        ColumnAggregation(names)

"""A correction gives what aggregating everything at once would have given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_lateness.transforms.lateness.aggregation import AGGREGATES
from beam_lateness.transforms.reconcile.correction import Correction

Numbers = list[Any]
Result = dict[str, Any]

integers = st.integers(-(10**25), 10**25)
floats = st.floats(-1e15, 1e15)
names = st.lists(st.sampled_from(AGGREGATES), min_size=1, unique=True)


def at_once(values: Sequence[Any]) -> Result:
    """Every aggregate, in the plainest way."""
    whole = all(isinstance(value, int) for value in values)
    total = sum(values) if whole else math.fsum(values)
    return {
        "sum": total,
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "mean": total / len(values),
    }


def of(aggregate: Sequence[str], values: Sequence[Any]) -> Any:
    """What a job puts into the table for values; None for none."""
    if not values:
        return None
    everything = at_once(values)
    if len(aggregate) == 1:
        return everything[aggregate[0]]
    return {name: everything[name] for name in aggregate}


def check(aggregate: Sequence[str], parts: Sequence[Numbers], exact: bool) -> None:
    """Adds part by part, and compares with all at once."""
    correction = Correction(aggregate)
    together = [value for part in parts for value in part]
    found, count = of(aggregate, parts[0]), len(parts[0])
    for part in parts[1:]:
        found = correction(found, count, part)
        count += len(part)
    expected = of(aggregate, together)
    found_by_name = found if len(aggregate) > 1 else {aggregate[0]: found}
    expected_by_name = expected if len(aggregate) > 1 else {aggregate[0]: expected}
    assert list(found_by_name) == list(expected_by_name)
    size = math.fsum(abs(float(value)) for value in together)  # by which rounding is judged
    for name, value in found_by_name.items():
        if name == "mean" or (name == "sum" and not exact):
            tolerance = size * len(parts) * 2**-50
            assert value == pytest.approx(expected_by_name[name], rel=0, abs=tolerance)
        else:
            assert value == expected_by_name[name]
            assert type(value) is type(expected_by_name[name])


@given(
    aggregate=names,
    first=st.lists(integers),
    more=st.lists(st.lists(integers, min_size=1), min_size=1, max_size=3),
)
def test_integers_are_exact_beyond_64_bits(
    aggregate: list[str], first: Numbers, more: list[Numbers]
) -> None:
    """Whether there was a value before or none, in one step or several; a mean is a float."""
    check(aggregate, [first, *more], exact=True)


@given(
    aggregate=names,
    first=st.lists(floats),
    more=st.lists(st.lists(floats, min_size=1), min_size=1, max_size=3),
)
def test_floats_are_as_exact_as_a_sum_of_sums_can_be(
    aggregate: list[str], first: Numbers, more: list[Numbers]
) -> None:
    """A rounding a step, and none within one."""
    check(aggregate, [first, *more], exact=False)


@given(first=st.lists(integers, min_size=1), more=st.lists(floats, min_size=1))
def test_integers_and_floats_add_up_to_a_float(first: Numbers, more: Numbers) -> None:
    """As in the job."""
    found = Correction(["sum"])(sum(first), len(first), more)
    assert type(found) is float
    assert found == pytest.approx(math.fsum([*first, *more]), rel=1e-15, abs=1e11)


def test_a_sum_within_a_step_loses_nothing() -> None:
    """Where adding one by one would give 0."""
    assert Correction(["sum"])(1e100, 1, [1.0, -1e100]) == 1.0


@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_a_sum_beyond_the_largest_float_is_infinite(aggregate: str) -> None:
    """As in the job; it is no error that would stop the others."""
    assert Correction([aggregate])(1.5e308, 1, [1.5e308]) == math.inf


def test_a_count_takes_records_of_any_value() -> None:
    """A job that counts needs none."""
    assert Correction(["count"])(2, 2, [None, "x", True]) == 5


@pytest.mark.parametrize("value", [None, "7", True, [1], {"v": 1}, 10**400], ids=repr)
@pytest.mark.parametrize("aggregate", [["sum"], ["count", "max"]], ids=str)
def test_a_value_that_is_no_number_is_refused(aggregate: list[str], value: Any) -> None:
    """By the look and by the act."""
    correction = Correction(aggregate)
    why = correction.refusal(value)
    assert why is not None
    assert why.startswith("the record's value")
    with pytest.raises(ValueError, match="the record's value"):
        correction(of(aggregate, [1]), 1, [value])


@pytest.mark.parametrize(
    ("aggregate", "before"),
    [
        (["sum"], {"sum": 1, "max": 1}),
        (["sum"], "text"),
        (["sum"], None),
        (["sum", "max"], 1),
        (["sum", "max"], {"sum": 1}),
        (["sum", "max"], {"sum": 1, "max": None}),
    ],
    ids=str,
)
def test_a_value_of_other_aggregates_is_not_added_to(aggregate: list[str], before: Any) -> None:
    """What stands in the table is named."""
    with pytest.raises(ValueError, match="the table has"):
        Correction(aggregate)(before, 1, [5])


@pytest.mark.parametrize(
    ("aggregate", "value", "suits"),
    [
        (["sum"], 1, True),
        (["mean"], 0.5, True),
        (["sum"], {"sum": 1, "max": 1}, False),
        (["max", "sum"], {"sum": 1, "max": 1}, True),
        (["sum", "min"], {"sum": 1, "max": 1}, False),
        (["sum", "max"], 1, False),
    ],
    ids=str,
)
def test_it_tells_whether_a_table_is_of_its_aggregates(
    aggregate: list[str], value: Any, suits: bool
) -> None:
    """As far as a value shows it."""
    assert Correction(aggregate).suits(value) is suits


@pytest.mark.parametrize("aggregate", [["median"], [], ["sum", "sum"], ["sum", ""]], ids=str)
def test_wrong_aggregates_are_refused(aggregate: list[str]) -> None:
    """By the parameter and the flag."""
    with pytest.raises(ValueError, match=r"aggregate \(--aggregate\) must"):
        Correction(aggregate)

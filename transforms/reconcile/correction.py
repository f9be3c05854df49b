"""What a window's value becomes when records are added to it afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from beam_lateness.transforms.lateness.aggregation import AGGREGATES


class Correction:
    """Adds records to a value that stands in the table.

    Args:
        aggregate: The job's aggregates: one, whose value is a number, or several, whose value is a
            dictionary by name.

    Raises:
        ValueError: If one is unknown or stands twice, or there is none.

    Example:
        >>> Correction(["sum"])(80_000, 2, [5_000])
        85000
        >>> Correction(["mean", "max"])({"mean": 2.0, "max": 3}, 2, [8])
        {'mean': 4.0, 'max': 8}
    """

    def __init__(self, aggregate: Sequence[str]) -> None:
        for name in aggregate:
            if name not in AGGREGATES:
                msg = (
                    f"aggregate (--aggregate) must be of {', '.join(AGGREGATES)}, got {name!r}; "
                    "a CombineFn's results cannot be added to"
                )
                raise ValueError(msg)
        if not aggregate or len(set(aggregate)) < len(aggregate):
            msg = (
                f"aggregate (--aggregate) must name each aggregate once, got "
                f"{','.join(aggregate) or 'nothing'}; give the job's"
            )
            raise ValueError(msg)
        self._names = list(aggregate)

    @property
    def several(self) -> bool:
        """Whether a value is a dictionary by name."""
        return len(self._names) > 1

    def suits(self, value: Any) -> bool:
        """Says whether a value in the table may be of these aggregates.

        Example:
            >>> Correction(["sum"]).suits(7), Correction(["sum"]).suits({"sum": 7, "count": 1})
            (True, False)
        """
        if self.several:
            return isinstance(value, Mapping) and set(value) == set(self._names)
        return _is_number(value)

    def refusal(self, value: Any) -> str | None:
        """Says why a record's value cannot be added; None if it can.

        Example:
            >>> Correction(["sum"]).refusal("7")
            "the record's value must be a number, got '7'"
        """
        if self._names == ["count"]:
            return None
        if not _is_number(value):
            return f"the record's value must be a number, got {value!r}"
        try:
            float(value)
        except OverflowError:  # it could not be added to one
            return "the record's value is an integer beyond what a float holds"
        return None

    def __call__(self, before: Any, count: int, values: Sequence[Any]) -> Any:
        """Gives the new value.

        Args:
            before: The value in the table; None if there is none.
            count: How many records it stands on.
            values: The values of the records to add, at least one.

        Raises:
            ValueError: If a value is no number, or the one in the table is of other aggregates.
        """
        for value in values:
            msg = self.refusal(value)
            if msg is not None:
                raise ValueError(msg)
        if not self.several:
            return self._add(self._names[0], before, count, values)
        known = {} if before is None else before
        if not isinstance(known, Mapping) or (count and set(known) != set(self._names)):
            msg = f"the table has {before!r} there, which is not of {','.join(self._names)}"
            raise ValueError(msg)
        return {name: self._add(name, known.get(name), count, values) for name in self._names}

    def _add(self, name: str, before: Any, count: int, values: Sequence[Any]) -> Any:
        if count and not _is_number(before):
            msg = f"the table has {before!r} there, which is no {name}"
            raise ValueError(msg)
        known = [before] if count else []
        if name == "count":
            return count + len(values)
        if name == "mean":
            return _sum([*(each * count for each in known), *values]) / (count + len(values))
        if name == "sum":
            return _sum([*known, *values])
        return (min if name == "min" else max)([*known, *values])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _sum(values: Sequence[Any]) -> Any:
    """Adds numbers: integers exactly, floats without loss between them."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond the largest float: infinity or none, as in the job
        return sum(map(float, values))

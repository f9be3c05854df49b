"""How the value of a window stands in a database, and comes back from there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import orjson
from sqlalchemy import Dialect, Numeric
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from beam_lateness.transforms.database import POSTGRESQL

NUMBER: Final = "number"
JSON: Final = "json"
VALUES: Final = (NUMBER, JSON)
_NO_JSON_NUMBERS: Final = ("nan", "inf", "-inf")


class _Untyped(UserDefinedType[Any]):
    """A column without a type, so that SQLite keeps integers, floats and text as they come."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return ""


class ValueType(TypeDecorator[Any]):
    """The column of a value: untyped in SQLite, NUMERIC or JSONB in PostgreSQL.

    Args:
        values: `number`, or `json` for several aggregates or a `CombineFn` of any result.
    """

    impl = _Untyped
    cache_ok = True

    def __init__(self, values: str = NUMBER) -> None:
        super().__init__()
        self.values = values

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name != POSTGRESQL:
            return dialect.type_descriptor(_Untyped())
        kind: Any = Numeric() if self.values == NUMBER else JSONB(none_as_null=True)
        return dialect.type_descriptor(kind)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        if dialect.name != POSTGRESQL:
            return _to_sqlite
        return _to_decimal if self.values == NUMBER else _to_jsonb

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], Any]:
        if dialect.name == POSTGRESQL:
            return from_decimal if self.values == NUMBER else from_jsonb
        return from_sqlite


def plain(value: Any) -> Any:
    """Gives what JSON has not as what it has: a number of NumPy's as one of Python's, or text.

    Example:
        >>> plain(np.int64(3)), plain(1j)
        (3, '1j')
    """
    return value.item() if isinstance(value, np.generic) else str(value)


def _to_sqlite(value: Any) -> Any:
    """Fits a value to SQLite.

    Several aggregates, or a list, become JSON. An integer beyond 64 bits, which SQLite would round,
    and a float that is none (NaN, which it would take for null) become text.
    """
    if isinstance(value, np.generic):  # SQLite would take an integer of NumPy's for bytes
        value = value.item()
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, default=plain)
    if isinstance(value, str) and from_sqlite(value) != value:  # it would come back as a number
        return json.dumps(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_sqlite(value: Any) -> Any:
    """Gives a value that `_to_sqlite` has fitted.

    Example:
        >>> from_sqlite("18446744073709551616"), from_sqlite('{"sum": 3}'), from_sqlite("a")
        (18446744073709551616, {'sum': 3}, 'a')
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=float)
    except ValueError:
        try:
            return float(value)  # nan, inf
        except ValueError:
            return value


def _to_decimal(value: Any) -> Any:
    if isinstance(value, (list, tuple)):  # psycopg would make it an array
        msg = f"the value must be a number, got {value!r}"
        raise TypeError(msg)
    if isinstance(value, bool):
        return int(value)
    # By way of a double PostgreSQL would keep 15 digits only.
    return Decimal(_digits(value)) if isinstance(value, float) else value


def _digits(value: float) -> str:
    """Writes a float so that NUMERIC gives it back as one: with a fraction, be it a zero."""
    digits = Decimal(float.__repr__(value))  # NumPy's floats have another repr
    whole = digits.is_finite() and digits.as_tuple().exponent >= 0  # type: ignore[operator]
    return f"{digits:f}.0" if whole else str(digits)


def from_decimal(value: Any) -> Any:
    """Gives a number as Python has it: an integer if it has no fraction.

    Example:
        >>> from_decimal(Decimal("7")), from_decimal(Decimal("0.1"))
        (7, 0.1)
    """
    if not isinstance(value, Decimal):
        return value
    if value.is_finite() and value.as_tuple().exponent >= 0:  # type: ignore[operator]
        return int(value)
    return float(value)


def _to_jsonb(value: Any) -> Any:
    if value is None:  # the database refuses it; JSON's null is a value
        return None
    from psycopg.types.json import Jsonb

    return Jsonb(value, dumps=_dumps)


def _dumps(value: Any) -> str:
    try:
        return orjson.dumps(_fitted(value), default=str).decode()
    except TypeError:  # a lone surrogate, whose escape the database refuses
        return json.dumps(value, default=plain)


def _fitted(value: Any) -> Any:
    """Writes numbers that JSON has not as text, and others with all their digits."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return orjson.Fragment(_digits(value)) if math.isfinite(value) else str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return orjson.Fragment(str(value))
    if isinstance(value, Mapping):
        return {str(name): _fitted(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fitted(each) for each in value]
    return value


def from_jsonb(value: Any) -> Any:
    """Gives a value that `_to_jsonb` has fitted.

    Example:
        >>> from_jsonb({"mean": "nan", "count": 3})
        {'mean': nan, 'count': 3}
    """
    if isinstance(value, Mapping):
        return {name: from_jsonb(each) for name, each in value.items()}
    if isinstance(value, list):
        return [from_jsonb(each) for each in value]
    return float(value) if value in _NO_JSON_NUMBERS else value

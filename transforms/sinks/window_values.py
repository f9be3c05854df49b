"""How the value of a window stands in a database, and comes back from there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Dialect, Numeric
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from beam_lateness.transforms.database import POSTGRESQL

NUMBER: Final = "number"
JSON: Final = "json"
VALUES: Final = (NUMBER, JSON)


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
            return from_decimal if self.values == NUMBER else _same
        return from_sqlite


def _same(value: Any) -> Any:
    return value


def _to_sqlite(value: Any) -> Any:
    """Fits a value to SQLite.

    Several aggregates, or a list, become JSON. An integer beyond 64 bits, which SQLite would round,
    and a float that is none (NaN, which it would take for null) become text.
    """
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, default=str)
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
    # By way of a double PostgreSQL would keep 15 digits only.
    return Decimal(repr(value)) if isinstance(value, float) else value


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
    from psycopg.types.json import Jsonb

    return Jsonb(value, dumps=_dumps)


def _dumps(value: Any) -> str:
    return json.dumps(_finite(value), default=str)


def _finite(value: Any) -> Any:
    """Writes numbers that JSON has not as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value

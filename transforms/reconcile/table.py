"""Opens the table of windows that is reconciled, and looks whether it is the right one."""

from __future__ import annotations

from sqlalchemy import inspect, select

from beam_lateness.transforms.database import POSTGRESQL, looking, without_login
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.sinks.audit_trail import AuditTrail
from beam_lateness.transforms.sinks.window_table import WindowTable, values_of
from beam_lateness.transforms.sinks.window_values import JSON


def open_windows(url: str, table: str, correction: Correction) -> WindowTable:
    """Opens the table of a job, with its audit trail if it has one.

    Args:
        url: The database.
        table: The table's name.
        correction: How the job aggregates.

    Raises:
        ValueError: If the database cannot be used, has no such table, or one of other aggregates.
    """
    windows = WindowTable(url, table, None, audit=_look(url, table))
    try:
        _check_values(windows, correction)
    except ValueError:
        windows.close()
        raise
    return windows


def _look(url: str, table: str) -> bool:
    """Says whether a table has an audit trail."""
    with looking(url, "output (--output)") as connection:
        found = inspect(connection)
        if not found.has_table(table):
            msg = (
                f"output (--output) {without_login(url)!r} has no table {table!r} (--table): give "
                "the database and the table of the job whose dead letters these are"
            )
            raise ValueError(msg)
        return bool(found.has_table(AuditTrail.of(table).entries.name))


def _check_values(windows: WindowTable, correction: Correction) -> None:
    """Refuses a table of other aggregates: a window without a row would get a strange value."""
    table = windows.table
    query = select(table.c.value).where(table.c.count > table.c.reconciled).limit(1)
    with windows.engine.connect() as connection:
        found = connection.execute(query).scalar()
        kind = values_of(connection, table.name)
    strange = windows.engine.dialect.name == POSTGRESQL and correction.several != (kind == JSON)
    if strange or (found is not None and not correction.suits(found)):
        shown = f"values such as {found!r}" if found is not None else f"values of the kind {kind!r}"
        msg = (
            f"table {table.name!r} (--table) holds {shown}, which are not of these aggregates "
            "(--aggregate); give those of the job"
        )
        raise ValueError(msg)

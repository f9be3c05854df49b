"""The runs that wrote to a table of windows: which of them read their input from its start."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Boolean, Column, MetaData, Table, Text, inspect, select

from beam_lateness.transforms.database import insert_into, open_table, retrying
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, WindowTable

_SUFFIX: Final = "_runs"


class _Run(NamedTuple):
    source: str
    anew: bool


def _runs_table(table: str) -> Table:
    return Table(
        f"{table}{_SUFFIX}",
        MetaData(),
        Column("run", Text, primary_key=True),
        Column("source", Text, nullable=False),
        Column("anew", Boolean, nullable=False),
    )


def record_run(url: str, run: str, source: str, *, anew: bool, table: str = TABLE_NAME) -> None:
    """Notes that a run is about to write to a table of windows.

    Args:
        url: The database.
        run: Names the run.
        source: Names its input.
        anew: Whether it reads that from the start, and not on from where an earlier run came to.
        table: The table of windows.

    Raises:
        ValueError: If the database cannot be used.
        SQLAlchemyError: If it cannot be written.
    """
    runs = _runs_table(table)
    engine = open_table(url, "output (--output)", runs)
    row = insert_into(engine, runs).values(run=run, source=source, anew=anew)

    def write() -> None:
        with engine.begin() as connection:
            connection.execute(row.on_conflict_do_nothing())

    try:
        retrying(write, "noting the run")
    finally:
        engine.dispose()


class Runs:
    """What is known of the runs of a table of windows.

    Args:
        runs: Each run's source, and whether it began anew.
    """

    def __init__(self, runs: dict[str, _Run]) -> None:
        self._runs = runs

    @staticmethod
    def read(windows: WindowTable) -> Runs:
        """Reads them; there are none where nobody has noted any."""
        runs = _runs_table(windows.table.name)
        with windows.engine.connect() as connection:
            if not inspect(connection).has_table(runs.name):
                return Runs({})
            rows = connection.execute(select(runs)).all()
        return Runs({row.run: _Run(row.source, row.anew) for row in rows})

    def superseded_by(self, run: str, row_run: str | None) -> str | None:
        """Says which run judged again what an earlier one had judged; None if none did.

        Args:
            run: The earlier one.
            row_run: The run of the row in question: of later runs nothing is in it. None for no
                row.
        """
        if run not in self._runs:
            return None
        source = self._runs[run].source
        later = (
            name
            for name, known in self._runs.items()
            if known.anew and known.source == source and run < name
        )
        return min((name for name in later if row_run is None or name <= row_run), default=None)

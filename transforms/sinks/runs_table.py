"""The runs that wrote to a table of windows: what each read, and whether it judged that anew.

Reconciliation needs them: a record that was too late in one run may stand in a window of the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    column,
    inspect,
    select,
    table,
    update,
)

from beam_lateness.transforms.database import insert_into, open_table, retrying

_SUFFIX: Final = "_runs"


@dataclass(frozen=True)
class Run:
    """A run of a job.

    Args:
        splits: What it read: the full name of each split by the one that its records carry.
        anew: Whether it read that from the start, and not on from where an earlier run came to.
        windows: The windows, as text.
        aggregate: The aggregates.
        ended: Whether it came to the end of its input, with all results written.
    """

    splits: Mapping[str, str] = field(default_factory=dict)
    anew: bool = False
    windows: str = ""
    aggregate: tuple[str, ...] = ()
    ended: bool = False

    def reads(self, split: str) -> bool:
        """Whether it read a split, by its full name."""
        return split in self.splits.values()


class Runs:
    """Runs by their names, which sort by time."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def values(self) -> Iterable[Run]:
        """Gives the runs."""
        return self._runs.values()

    def of(self, names: Collection[str]) -> Runs:
        """Gives some of them."""
        return Runs({name: run for name, run in self._runs.items() if name in names})

    def superseding(self, run: str, split: str | None, row_run: str | None) -> str | None:
        """Says which run has judged again what an earlier one has judged; None if none did.

        Args:
            run: The earlier one.
            split: The split of the record in question, as that run names it.
            row_run: The run of the row in question, and nothing of later runs is in it. None for no
                row: only runs that have come to their end have had their say then.
        """
        name = self._split(run, split)
        for later in sorted(self._runs):
            known = self._runs[later]
            in_time = known.ended if row_run is None else later <= row_run
            if later > run and known.anew and known.reads(name) and in_time:
                return later
        return None

    def is_ahead(self, run: str, split: str | None, row_run: str) -> bool:
        """Says whether a run judges anew what is in a row of an earlier run, and has not ended."""
        known = self._runs.get(run)
        earlier = self._runs.get(row_run)
        return (
            known is not None
            and earlier is not None
            and known.anew
            and row_run < run
            and earlier.reads(self._split(run, split))
        )

    def replaced_by(self, run: str) -> list[str]:
        """Gives the earlier runs whose whole input a run has read anew."""
        known = self._runs[run]
        mine = set(known.splits.values())
        return [
            name
            for name, earlier in self._runs.items()
            if known.anew and name < run and earlier.splits and set(earlier.splits.values()) <= mine
        ]

    def _split(self, run: str, split: str | None) -> str:
        known = self._runs.get(run)
        return known.splits.get(split or "", "") if known is not None else ""


class RunsTable:
    """The table of the runs.

    Args:
        of: The table of windows.
    """

    def __init__(self, of: str) -> None:
        self._of = of
        self.table = Table(
            f"{of}{_SUFFIX}",
            MetaData(),
            Column("run", Text, primary_key=True),
            Column("splits", Text, nullable=False),
            Column("anew", Boolean, nullable=False),
            Column("windows", Text, nullable=False),
            Column("aggregate", Text, nullable=False),
            Column("ended", Boolean, nullable=False),
        )

    @contextmanager
    def opened(self, url: str) -> Iterator[Engine]:
        """Opens the database, with the table in it."""
        engine = open_table(url, "output (--output)", self.table)
        try:
            yield engine
        finally:
            engine.dispose()

    def read(self, connection: Connection) -> Runs:
        """Reads the runs; there are none where nobody has noted any."""
        if not inspect(connection).has_table(self.table.name):
            return Runs({})
        found = {}
        for row in connection.execute(select(self.table)):
            aggregate = tuple(row.aggregate.split(","))
            splits = json.loads(row.splits)
            found[row.run] = Run(splits, row.anew, row.windows, aggregate, row.ended)
        return Runs(found)

    def with_rows(self, connection: Connection) -> Runs:
        """Reads those runs of which something stands in the table of windows."""
        if not inspect(connection).has_table(self._of):
            return Runs({})
        windows = table(self._of, column("run"))
        found = {row.run for row in connection.execute(select(windows.c.run).distinct())}
        return self.read(connection).of(found)

    def begin(self, engine: Engine, name: str, run: Run) -> None:
        """Notes that a run is about to write."""
        row = {
            "run": name,
            "splits": json.dumps(dict(run.splits)),
            "anew": run.anew,
            "windows": run.windows,
            "aggregate": ",".join(run.aggregate),
            "ended": run.ended,
        }
        statement = insert_into(engine, self.table).values(row).on_conflict_do_nothing()
        _write(engine, lambda connection: connection.execute(statement), "noting the run")

    def end(self, engine: Engine, name: str) -> Runs:
        """Notes that a run has come to its end; gives all of them."""
        statement = update(self.table).where(self.table.c.run == name).values(ended=True)
        _write(engine, lambda connection: connection.execute(statement), "noting the run's end")
        with engine.connect() as connection:
            return self.read(connection)


def _write(engine: Engine, act: Callable[[Connection], object], what: str) -> None:
    def write() -> None:
        with engine.begin() as connection:
            act(connection)

    retrying(write, what)

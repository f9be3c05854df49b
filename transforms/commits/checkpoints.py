"""Checkpoints of a source, in a database: from where, and with which watermark, it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    LargeBinary,
    MetaData,
    Table,
    Text,
    select,
)

from beam_lateness.transforms.database import insert_into, open_table, retrying

TABLE_NAME: Final = "checkpoints"

_TABLE: Final = Table(
    TABLE_NAME,
    MetaData(),
    Column("source", Text, primary_key=True),
    Column("windows", Text, nullable=False),
    Column("runs", Text, nullable=False),
    Column("watermark_ms", BigInteger, nullable=False),
    Column("clean", Boolean, nullable=False),
    Column("splits", LargeBinary, nullable=False),
)


class SplitCheckpoint(NamedTuple):
    """Where one split stands.

    Args:
        next: The offset up to which it has been read.
        resume: The offset before which every record is settled: reading goes on here.
        open: Offsets below `next` of dead letters that are not written yet: not settled, though
            their window may be closed.
        settled: What is settled and may come again all the same: offsets from `resume` on of
            invalid records, which are of no window, and ids that the source has not confirmed.
    """

    next: int
    resume: int
    open: Sequence[int | str] = ()
    settled: Sequence[int | str] = ()


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a source for good.

    Args:
        source: The source's name.
        windows: The windows by which it was judged, as text.
        runs: The runs that may have rows of windows that are not settled; the last one wrote this.
        watermark_ms: The exclusive watermark up to which every window is closed for good and its
            results are in the store.
        clean: Whether that run ended in order, and gave back what it had not acknowledged.
        splits: Where its splits stand.
    """

    source: str
    windows: str
    runs: tuple[str, ...]
    watermark_ms: int
    clean: bool = False
    splits: Mapping[str, SplitCheckpoint] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run that wrote it."""
        return self.runs[-1]


class Checkpoints:
    """The table `checkpoints`: a row a source, replaced by each new checkpoint.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.

    Raises:
        ValueError: If the database cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._engine = open_table(url, "checkpoint (--checkpoint)", _TABLE)

    def load(self, source: str) -> Checkpoint | None:
        """Gives a source's checkpoint; None if it has none."""
        with self._engine.connect() as connection:
            row = connection.execute(select(_TABLE).where(_TABLE.c.source == source)).first()
        if row is None:
            return None
        splits = {
            name: SplitCheckpoint(*fields) for name, fields in orjson.loads(row.splits).items()
        }
        return Checkpoint(
            row.source,
            row.windows,
            tuple(orjson.loads(row.runs)),
            row.watermark_ms,
            row.clean,
            splits,
        )

    def sources(self) -> list[str]:
        """Gives the sources that have a checkpoint."""
        with self._engine.connect() as connection:
            return [row.source for row in connection.execute(select(_TABLE.c.source))]

    def write(self, checkpoint: Checkpoint) -> None:
        """Replaces a source's checkpoint; when this returns, it outlives the process."""
        row = {
            "source": checkpoint.source,
            "windows": checkpoint.windows,
            "runs": orjson.dumps(checkpoint.runs).decode(),
            "watermark_ms": checkpoint.watermark_ms,
            "clean": checkpoint.clean,
            "splits": orjson.dumps({name: tuple(s) for name, s in checkpoint.splits.items()}),
        }
        statement = insert_into(self._engine, _TABLE).values(row)
        statement = statement.on_conflict_do_update(
            index_elements=["source"], set_={name: row[name] for name in row if name != "source"}
        )

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(statement)

        retrying(write, "the checkpoint")

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

"""Which splits of an input one of several readers has."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """A reader's share of an input: known splits are dealt in turn, later ones by their names.

    It travels with the restriction, not with the pipeline: a job that is resumed with more splits
    or readers goes on with the shares that its checkpoint holds, so no split is read twice.

    Args:
        index: Which reader, from 0.
        count: How many readers there are.
        names: The splits that were known when the job was launched, in order.

    Example:
        >>> Share(1, 2, ("a", "b", "c")).has("b")
        True
    """

    index: int = 0
    count: int = 1
    names: tuple[str, ...] = ()

    def has(self, split: str) -> bool:
        """Says whether a split is of this share."""
        if self.count == 1:
            return True
        turn = self.names.index(split) if split in self.names else zlib.crc32(split.encode())
        return turn % self.count == self.index

    def of(self, positions: Mapping[str, T]) -> dict[str, T]:
        """Gives what belongs to this share."""
        return {name: position for name, position in positions.items() if self.has(name)}

    def encode(self) -> bytes:
        """Gives it as an element of the pipeline; empty where there is one reader."""
        return b"" if self.count == 1 else json.dumps(astuple(self)).encode()

    @staticmethod
    def decode(encoded: bytes) -> Share:
        """Reads what `encode` gave."""
        if not encoded:
            return WHOLE
        index, count, names = json.loads(encoded)
        return Share(index, count, tuple(names))


WHOLE: Final = Share()
"""The share of the only reader."""


def shares(splits: Sequence[str], count: int) -> list[Share]:
    """Deals the splits of an input to readers.

    Args:
        splits: The splits that are known.
        count: How many readers there shall be.

    Raises:
        ValueError: If there are more readers than splits: one without any would hold the watermark
            of all for ever.
    """
    if count > max(len(splits), 1):
        msg = (
            f"num_readers (--num_readers) must be at most the number of splits, {len(splits)}, "
            f"got {count}: a reader without a split would hold back the watermark for ever"
        )
        raise ValueError(msg)
    return [Share(index, count, tuple(sorted(splits))) for index in range(count)]

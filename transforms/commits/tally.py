"""Per window, what was accepted and what the store has; per split, what an earlier run settled."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_lateness.transforms.commits.checkpoints import SplitCheckpoint
from beam_lateness.transforms.times import Flags

Position: TypeAlias = int | str


class WindowTally:
    """The records of one window: how many were accepted, and how many the store stands on."""

    def __init__(self) -> None:
        self.accepted = 0
        self.ids: list[tuple[str, pa.Array]] = []  # by split; where positions are message ids
        self.lowest: dict[str, int] = {}  # by split; where they are offsets
        self._stored = 0
        self._by_key: dict[Any, int] = {}

    @property
    def complete(self) -> bool:
        """Whether the store stands on every record."""
        return self._stored == self.accepted

    def accept(self, split: str, positions: pa.Array) -> None:
        """Takes records of a split."""
        self.accepted += len(positions)
        if pa.types.is_integer(positions.type):
            lowest = int(pc.min(positions).as_py())
            self.lowest[split] = min(self.lowest.get(split, lowest), lowest)
        else:
            self.ids.append((split, positions))

    def store(self, key: Any, count: int) -> None:
        """Takes note that a key's pane stands on so many records; an earlier pane tells nothing."""
        known = self._by_key.get(key, 0)
        if count > known:
            self._by_key[key] = count
            self._stored += count - known


class Before:
    """What an earlier run had settled of a split."""

    def __init__(self, split: SplitCheckpoint) -> None:
        self.next = split.next
        self.open = set(split.open)
        self.settled = set(split.settled)

    def settled_among(self, positions: pa.Array, closed: Flags) -> Flags:
        """Marks the records that were settled, given which are of windows closed then."""
        settled = self._among(positions, self.settled)
        if pa.types.is_string(positions.type):
            return settled
        before: Flags = closed & (positions.to_numpy() < self.next)
        if before.any():
            before &= ~self._among(positions, self.open)
        return settled | before

    @staticmethod
    def _among(positions: pa.Array, known: set[Any]) -> Flags:
        if not known:
            return np.zeros(len(positions), dtype=np.bool_)
        found = (position in known for position in positions.to_pylist())
        return np.fromiter(found, np.bool_, len(positions))

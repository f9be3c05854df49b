"""What the source asks of a connector: the splits of an input, and blocks of lines from each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from beam_lateness.transforms.sources.formats import LineFormat


class SplitPosition(NamedTuple):
    """How far a split has been read.

    Args:
        offset: Where the next record starts.
        end: Where the split ends; None if that shows only when it is read.
        done: Whether all of it has been read.
        base: What a record's position counts from: the length of what was read under this name
            before (a log file before it was rotated).
    """

    offset: int = 0
    end: int | None = None
    done: bool = False
    base: int = 0


Positions: TypeAlias = Mapping[str, SplitPosition]
"""The position of every split of a group: what a checkpoint holds of a source."""


class Block(NamedTuple):
    """Whole lines of a split.

    Args:
        data: The lines.
        offset: Where the first one starts in the split.
        at_end: Whether nothing follows (never, while a split may still grow).
        base: What a record's position counts from.
    """

    data: bytes
    offset: int
    at_end: bool
    base: int = 0


class SplitReader(Protocol):
    """Reads one split, in order."""

    @property
    def header(self) -> bytes:
        """The split's header line; empty where the format has none."""

    def read(self, size: int) -> Block:
        """Gives the next lines, of about `size` bytes; a longer line comes whole."""

    def close(self) -> None:
        """Gives up what the reader holds."""


class Connector(Protocol):
    """An input: something that has splits."""

    @property
    def line_format(self) -> LineFormat:
        """How its lines are read."""

    @property
    def follows(self) -> bool:
        """Whether splits grow, and new ones appear, while they are read."""

    def initial_positions(self) -> dict[str, SplitPosition]:
        """Finds the splits, in the order of their names.

        Raises:
            ValueError: If there is nothing to read.
        """

    def open(self, split: str, position: SplitPosition) -> SplitReader:
        """Opens a split at a position."""

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives the lines of all splits from the start, each with its split's header line."""

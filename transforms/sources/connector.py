"""What the source asks of a connector: the splits of an input, and blocks of lines from each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from beam_lateness.transforms.sources.blocks import Lines
from beam_lateness.transforms.sources.formats import LineFormat
from beam_lateness.transforms.sources.messages import MessageLines, Messages
from beam_lateness.transforms.watermarks.timestamps import TimestampAssigner


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
    """Whole lines of a split, or messages.

    Args:
        data: The lines.
        offset: Where the first one starts in the split.
        at_end: Whether nothing follows (never, while a split may still grow).
        base: What a record's position counts from.
        messages: The messages, where the records come as such; `data` is empty then.
        caught_up: Of an empty block: whether it is known that there is nothing more for now. (A
            broker that does not answer is no sign of a silent split.)
    """

    data: bytes
    offset: int
    at_end: bool
    base: int = 0
    messages: Messages | None = None
    caught_up: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.data and self.messages is None

    def lines(self, timestamps: TimestampAssigner) -> Lines:
        """Cuts it into records."""
        if self.messages is not None:
            return MessageLines.of(self.messages, timestamps)
        return Lines(self.data, self.offset, self.base)


class SplitReader(Protocol):
    """Reads one split, in order."""

    @property
    def header(self) -> bytes:
        """The split's header line; empty where the format has none."""

    def read(self, size: int) -> Block:
        """Gives the next lines, of about `size` bytes; a longer line comes whole."""

    def close(self) -> None:
        """Gives up what the reader holds."""


class AcknowledgingReader(SplitReader, Protocol):
    """Reads a split of a source that keeps its records until they are acknowledged.

    Its `close` gives back what is not acknowledged, so that the next reader has it at once.
    """

    @property
    def gave_back(self) -> bool:
        """Whether it holds nothing that is not acknowledged: after `close`, if that worked."""

    def acknowledge(self, positions: Sequence[int | str], resume: int) -> list[int | str]:
        """Tells the source that records are done with.

        Args:
            positions: The records' positions.
            resume: The offset before which every record is done with.

        Returns:
            The positions of which the source could not be told; the caller tries again.
        """

    def recovered(self, until: int, clean: bool) -> bool:
        """Says whether what was unacknowledged when the last run ended has come again.

        Args:
            until: The offset that the last run had read up to.
            clean: Whether it ended in order, and gave back what it had not acknowledged.
        """


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


@runtime_checkable
class AcknowledgingConnector(Connector, Protocol):
    """An input that keeps its records until they are acknowledged; its readers can do that."""

    @property
    def source_id(self) -> str:
        """Names the input: the same in each run that goes on with it."""

    @property
    def replays(self) -> bool:
        """Whether a split is read again in the same order, from any position."""

    def later_positions(self) -> dict[str, SplitPosition]:
        """Finds the splits, each at its beginning: where one is read that was added later."""

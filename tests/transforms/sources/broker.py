"""A broker in memory: splits that keep their messages until they are acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from beam_lateness.transforms.sources.connector import Block, SplitPosition
from beam_lateness.transforms.sources.formats import LineFormat
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.messages import Messages
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests import model
from tests.transforms.sources.memory import JSON, Clock, line_of

MARKED = WatermarkStrategy.for_markers("end")
ZERO = WatermarkStrategy.for_monotonous_timestamps()


class Told(NamedTuple):
    """An acknowledgement."""

    split: str
    positions: list[int | str]
    resume: int


class Broker:
    """An input of messages.

    Args:
        splits: Names of the splits that are there from the start, empty.
        ids: Whether messages are named by ids, not by offsets: a reader is given then all that is
            not acknowledged, wherever it begins to count.
    """

    follows = True
    source_id = "memory"

    def __init__(self, *splits: str, ids: bool = False) -> None:
        self.payloads: dict[str, list[bytes]] = {split: [] for split in splits}
        self.ids = ids
        self.replays = not ids
        self.told: list[Told] = []
        self.deaf = False  # whether it cannot be told
        self.shuffle: random.Random | None = None  # the order in which it delivers; None: its own
        self.open_readers: list[str] = []
        self.clock = Clock()

    @property
    def line_format(self) -> LineFormat:
        """How payloads are read."""
        return JSON

    def publish(self, split: str, *steps: model.Event | model.Marker | bytes) -> None:
        """Adds messages to a split, which may be new."""
        payloads = (x if isinstance(x, bytes) else line_of(x).strip() for x in steps)
        self.payloads.setdefault(split, []).extend(payloads)

    def initial_positions(self) -> dict[str, SplitPosition]:
        """The splits."""
        return {split: SplitPosition() for split in sorted(self.payloads)}

    def later_positions(self) -> dict[str, SplitPosition]:
        """The same: a split begins at 0."""
        return self.initial_positions()

    def open(self, split: str, position: SplitPosition) -> BrokerReader:
        """Opens a split."""
        self.open_readers.append(split)
        return BrokerReader(self, split, position.offset)

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives nothing."""
        return iter(())

    def group(self, strategy: WatermarkStrategy = ZERO) -> Group:
        """The input, ready to be read."""
        timed = strategy.with_timestamp_assigner(FieldTime("t", "ms"))
        return Group(self, timed, [], ReadSettings(max_future_skew_ms=None, clock=self.clock))

    def acknowledged(self) -> dict[str, list[int | str]]:
        """What was acknowledged, by split."""
        found: dict[str, list[int | str]] = {}
        for told in self.told:
            found.setdefault(told.split, []).extend(told.positions)
        return {split: positions for split, positions in found.items() if positions}


class BrokerReader:
    """Reads one split."""

    header = b""

    gave_back = True

    def __init__(self, broker: Broker, split: str, offset: int) -> None:
        self._broker, self._split, self._next = broker, split, offset
        self._given: set[int] = set(range(0 if broker.ids else offset))

    def read(self, size: int) -> Block:
        """Gives all messages that are there."""
        payloads, name = self._broker.payloads[self._split], self._split
        gone = {each for told in self._broker.told for each in told.positions}
        fresh = [
            n for n in range(len(payloads)) if n not in self._given and f"{name}{n}" not in gone
        ]
        if not fresh:
            return Block(b"", self._next, at_end=False)
        self._given.update(fresh)
        if self._broker.shuffle is not None:
            self._broker.shuffle.shuffle(fresh)
        first, self._next = self._next, self._next + len(fresh)
        raw = [payloads[n] for n in fresh]
        offsets = range(first, self._next)
        positions: Sequence[Any] = [f"{name}{n}" for n in fresh] if self._broker.ids else offsets
        messages = Messages(
            raw, raw, positions, offsets, self._next, lambda each: 0, lambda each, name: None
        )
        return Block(b"", first, at_end=False, messages=messages)

    def acknowledge(self, positions: Sequence[int | str], resume: int) -> list[int | str]:
        """Takes note."""
        if self._broker.deaf:
            return list(positions)
        self._broker.told.append(Told(self._split, list(positions), resume))
        return []

    def recovered(self, until: int, clean: bool) -> bool:
        """Whether all has been read again."""
        return self._next >= until

    def close(self) -> None:
        """Gives back what is not acknowledged."""
        self._broker.open_readers.remove(self._split)

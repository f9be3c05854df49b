"""Messages of a broker as records of a block: payload, position, and what stands around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from beam_lateness.transforms.sources.blocks import Indices, Lines
from beam_lateness.transforms.sources.records import INT64_MIN, BadRecordError
from beam_lateness.transforms.times import Millis
from beam_lateness.transforms.watermarks.timestamps import MessageTime, TimestampAssigner

TOMBSTONE: Final = "tombstone"
EMPTY: Final = "empty_payload"


@dataclass(frozen=True)
class Messages:
    """Messages of one split, in the order in which they came.

    Args:
        raw: The client library's messages.
        payloads: What each holds; None for a tombstone (a Kafka message without a value).
        positions: What names each in its split: offsets, or message ids.
        offsets: Where reading goes on before each of them.
        stop: Where it goes on after the last.
        time_of: Gives the time of a message, in ms: when it was published.
        attribute_of: Gives an attribute (header) of a message; None if it has none of that name.
    """

    raw: Sequence[Any]
    payloads: Sequence[bytes | None]
    positions: Sequence[int] | Sequence[str]
    offsets: Sequence[int]
    stop: int
    time_of: Callable[[Any], int]
    attribute_of: Callable[[Any, str], str | None]

    def __len__(self) -> int:
        return len(self.raw)


@dataclass
class MessageLines(Lines):
    """The payloads of messages, a record each; none is blank, since each must be accounted for.

    Args:
        messages: The messages.
        given: Their event times in ms, where these stand beside the payload.
        wrong: What is wrong with a message, whatever its payload holds.
    """

    messages: Messages = field(kw_only=True)
    given: Millis | None = field(kw_only=True)
    wrong: dict[int, BadRecordError] = field(kw_only=True)

    @staticmethod
    def of(messages: Messages, timestamps: TimestampAssigner) -> MessageLines:
        """Joins the payloads to one block, and takes the event times if they stand beside them."""
        payloads = [payload or b"" for payload in messages.payloads]
        wrong = {}
        if b"" in payloads:
            for row, payload in enumerate(messages.payloads):
                if payload is None:
                    wrong[row] = BadRecordError(TOMBSTONE, "the message has no value")
                elif not payload:
                    wrong[row] = BadRecordError(EMPTY, "the message has no payload")
        given = None
        if isinstance(timestamps, MessageTime):
            given = _times(messages, timestamps, wrong)
        return MessageLines(b"\n".join(payloads), messages=messages, given=given, wrong=wrong)

    def __post_init__(self) -> None:
        self.bytes_ = np.frombuffer(self.data, dtype=np.uint8)
        lengths = np.fromiter(
            (len(payload or b"") for payload in self.messages.payloads),
            np.int64,
            len(self.messages),
        )
        self.ends = np.cumsum(lengths + 1) - 1
        self.starts = self.ends - lengths
        self.stops = self.ends
        self.blank_starts = np.empty(0, dtype=np.int64)

    @property
    def problems(self) -> Mapping[int, BadRecordError]:
        """What is wrong with a message before its payload is parsed."""
        return self.wrong

    def event_times(self, low: int, high: int) -> Millis | None:
        """Gives the event times that stand beside the records, in ms."""
        return None if self.given is None else self.given[low:high]

    def irregular(self) -> Indices:
        """Gives the messages whose payload has a line break in it."""
        if self.data.count(b"\n") == len(self) - 1:
            return np.empty(0, dtype=np.int64)
        breaks = np.flatnonzero(self.bytes_ == ord("\n"))
        within = breaks[~np.isin(breaks, self.ends)]
        return np.unique(np.searchsorted(self.ends, within))

    def positions(self, rows: Indices) -> pa.Array:
        """Gives the positions of some messages."""
        return pa.array([self.messages.positions[row] for row in rows.tolist()])

    def resume_at(self, row: int | None) -> int:
        """Gives the offset at which reading goes on before a message."""
        return self.messages.stop if row is None else int(self.messages.offsets[row])

    def payloads(self) -> pa.Array:
        """Gives the payloads as they came."""
        return pa.array(self.messages.payloads, pa.binary())


def _times(messages: Messages, timestamps: MessageTime, wrong: dict[int, BadRecordError]) -> Millis:
    name = timestamps.attribute
    times: Millis = np.full(len(messages), INT64_MIN, dtype=np.int64)
    if name is None:
        times[:] = [messages.time_of(raw) for raw in messages.raw]
        return times
    for row, raw in enumerate(messages.raw):
        value = messages.attribute_of(raw, name)
        try:
            if value is None:
                wrong.setdefault(
                    row, BadRecordError("missing_event_time", f"no attribute {name!r}")
                )
            else:
                times[row] = timestamps.to_ms(value)
        except (ValueError, OverflowError) as error:
            wrong.setdefault(row, BadRecordError("bad_event_time", str(error)))
    return times

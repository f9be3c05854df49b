"""Sends a stream to a topic as its event times come due, and counts what it sent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from beam_lateness.pipelines.feed import FUTURE, Item, Pacer
from beam_lateness.transforms.sinks.topic_messages import Message, TopicWriter

EVENT_TIME_ATTRIBUTE: Final = "event_time_ms"

_LONG_WAIT_S: Final = 1.0  # before one, what has been sent is confirmed


class Publisher:
    """Sends a stream, and counts by kind.

    Args:
        writer: The topic's writer.
        speed: Event time per wall time; None for as fast as possible.
        stop: Set from outside to end early; what has been sent is then still confirmed.
        keyed: Whether the topic's messages have keys and timestamps (Kafka's have).
        clock: Gives the time in seconds.
        wait: Waits for some seconds, or less once it is to stop.
    """

    def __init__(
        self,
        writer: TopicWriter,
        speed: float | None,
        stop: threading.Event,
        *,
        keyed: bool,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._writer = writer
        self._pacer = Pacer(speed, clock)
        self._stop = stop
        self._keyed = keyed
        self._wait = stop.wait if wait is None else wait
        self.counts: Counter[str] = Counter()
        """Messages sent, by kind; all are confirmed once `run` has returned."""
        self.confirmed = 0
        """Messages that the broker has confirmed."""
        self.clock_ms: int | None = None
        """The event time that the stream has come to, in ms."""

    def run(self, items: Iterable[Item]) -> None:
        """Sends a stream to its end, or until it is stopped.

        Raises:
            PublishError: If the broker does not take a message.
        """
        for item in items:
            self._await(item.clock_ms)
            if self._stop.is_set():
                break
            self._writer.send(message_of(item, keyed=self._keyed))
            self.counts[item.kind] += 1
            self.clock_ms = item.clock_ms
            if self._writer.full:
                self._flush()
        self._flush()

    def _await(self, clock_ms: int | None) -> None:
        while (left := self._pacer.due_in(clock_ms)) > 0 and not self._stop.is_set():
            if left > _LONG_WAIT_S and self._writer.pending:
                self._flush()
            else:
                self._wait(min(left, threading.TIMEOUT_MAX))

    def _flush(self) -> None:
        self._writer.flush()
        self.confirmed = self.counts.total()


def message_of(item: Item, *, keyed: bool) -> Message:
    """Gives an item of a stream as a message.

    Args:
        item: The item.
        keyed: Whether the topic's messages have keys and timestamps (Kafka's have).
    """
    known = item.event_time_ms
    attributes = {} if known is None else {EVENT_TIME_ATTRIBUTE: str(known)}
    if not keyed:
        return Message(item.payload, None, attributes)
    key = None if item.key is None else item.key.encode()
    # Kafka 4 refuses timestamps an hour ahead of its clock: log.message.timestamp.after.max.ms.
    stamp = item.clock_ms if known is None or item.kind == FUTURE else known
    return Message(item.payload, key, attributes, stamp)

"""Reads the partitions of a Kafka topic with one client, and commits offsets to its group."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from beam_lateness.transforms.sources.connector import Block
from beam_lateness.transforms.sources.kafka_lookup import (
    Errors,
    Settings,
    consumer_of,
    explain,
    look_up,
)
from beam_lateness.transforms.sources.messages import Messages
from beam_lateness.transforms.sources.notices import Notices
from beam_lateness.transforms.sources.records import INT64_MIN
from beam_lateness.transforms.times import duration_ms

_LOG = logging.getLogger(__name__)

_MESSAGES_AT_ONCE: Final = 20_000
_BUFFERED: Final = 16 << 20  # bytes of a partition that are kept while it is not read
_OVERHEAD: Final = 200  # bytes of a message beside what it holds
_COMMIT_EVERY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 1.0  # whether the brokers are back
_SILENCE_S: Final = 5.0  # after which they are asked whether they are there at all
_ANSWER_S: Final = 1.0  # for which a question may hold up the reading
_RENEW_S: Final = 20.0  # without an answer, after which another consumer is tried
_END_S: Final = 5.0  # for which a job that ends waits for the brokers


class Client:
    """One consumer for all partitions of a topic that this process reads.

    Args:
        source: The input.
    """

    def __init__(self, source: Settings) -> None:
        self.source = source
        self._notices = Notices(_LOG, f"topic {source.topic} at {source.bootstrap}")
        self._connect()
        self._buffers: dict[int, deque[Any]] = {}
        self._at_end: dict[int, bool] = {}
        self._paused: set[int] = set()
        self._batch_s = duration_ms(source.batch, name="batch") / 1000
        self._discovery_s = duration_ms(source.discovery, name="discovery") / 1000
        self._known: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._last: dict[int, int] = {}  # offsets to commit at the end
        self._looked = self._asked = self._pumped = 0.0
        self._heard = self._answered = time.monotonic()

    def _connect(self) -> None:
        self._errors = Errors()
        self._consumer = consumer_of(self.source, self._errors, self._committed)

    def add(self, partition: int, offset: int) -> None:
        """Begins to read a partition."""
        self._known.setdefault(partition, OFFSET_BEGINNING)
        self._buffers[partition] = deque()
        self._at_end[partition] = False
        self._next[partition] = offset
        self._bytes[partition] = 0
        self._consumer.incremental_assign([TopicPartition(self.source.topic, partition, offset)])

    def remove(self, partition: int, commit: int | None) -> bool:
        """Reads a partition no more, and says whether it was the last one.

        Args:
            partition: The partition.
            commit: The offset to commit for it; None for nothing.
        """
        self._buffers.pop(partition, None)
        if commit is not None:
            self._last[partition] = commit
        if self._buffers:
            self._consumer.incremental_unassign([TopicPartition(self.source.topic, partition)])
            return False
        _in_thread(self._end).join(_END_S)
        return True

    def _end(self) -> None:
        if self._last:
            self._commit(self._last, wait=True)
        self._consumer.close()

    def _renew(self, now: float) -> None:
        """Goes on with another consumer.

        A broker that goes down may answer that there are no brokers at all, and librdkafka then
        forgets them for good, those it was told to start from too (its issue 5301).
        """
        self._heard = now
        _in_thread(self._consumer.close)
        self._connect()
        self._paused.clear()
        self._consumer.assign(
            [TopicPartition(self.source.topic, each, self._next[each]) for each in self._buffers]
        )

    def partitions(self) -> dict[int, int]:
        """Gives the partitions, looking for new ones now and then; all of these are read."""
        now = time.monotonic()
        if self._errors.doubt or (self._looked and now - self._looked < self._discovery_s):
            return self._known
        try:
            found = look_up(self._consumer, self.source, _ANSWER_S)
        except KafkaException as error:
            self._doubt(error.args[0])
            return self._known
        new = set(found) - self._known.keys()
        if self._looked and new:
            _LOG.info("topic %s: new partitions %s", self.source.topic, sorted(new))
        self._known.update(dict.fromkeys(new, OFFSET_BEGINNING))
        self._looked = now
        return self._known

    def _pump(self) -> None:
        """Takes what the brokers have sent; waits a little, if that was not done just now."""
        now = time.monotonic()
        wait_s = self._batch_s if now - self._pumped >= self._batch_s else 0.0
        for message in self._consumer.consume(_MESSAGES_AT_ONCE, wait_s):
            error, partition = message.error(), message.partition()
            if error is None and partition in self._buffers:
                self._buffers[partition].append(message)
                self._next[partition] = int(message.offset() or 0) + 1
                self._bytes[partition] += len(message) + _OVERHEAD
                self._at_end[partition] = False
            elif error is None:
                continue  # of a partition that was closed meanwhile
            elif error.code() == KafkaError._PARTITION_EOF and partition is not None:
                self._at_end[partition] = True
                # After markers of transactions, which are no messages, and in an empty partition.
                self._next[partition] = max(self._next[partition], int(message.offset() or 0))
            else:
                self._refuse(message, error)
                continue
            self._heard = now
        self._ask(now)
        self._pumped = time.monotonic()
        full = {p for p in self._buffers if self._bytes[p] >= _BUFFERED}
        for partition in full - self._paused:
            self._consumer.pause([TopicPartition(self.source.topic, partition)])
            self._paused.add(partition)

    def _refuse(self, message: Any, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            msg = (
                f"partition {message.partition()} of topic {self.source.topic} cannot be read from "
                f"where the job stood: {error.str()}. Records were removed before they were read "
                "(retention), or the topic was made anew: name another --checkpoint to begin again"
            )
            raise ValueError(msg)
        if error.fatal() or error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ):
            raise ValueError(explain(self.source, error))
        self._notices.show(f"cannot be read for now: {error.str()}")

    def _ask(self, now: float) -> None:
        """Asks where the partitions end, if that is in doubt or was said long ago.

        What the brokers do not answer is no silence, and what they said before an outage counts no
        more. The client library does not tell every outage, nor an end a second time.
        """
        held = any(self._at_end[partition] for partition in self._buffers)
        heard = max(self._answered, self._heard)
        in_doubt = self._errors.doubt or now - (self._answered if held else heard) >= _SILENCE_S
        if not in_doubt or now - self._asked < _LOOK_AGAIN_S:
            return
        self._asked = now
        if now - heard >= _RENEW_S:
            self._renew(now)
        wanted = [TopicPartition(self.source.topic, each, OFFSET_END) for each in self._buffers]
        try:
            answers = self._consumer.offsets_for_times(wanted, timeout=_ANSWER_S)
        except KafkaException as error:
            answers, why = [], error.args[0]
        else:
            why = next((each.error for each in answers if each.error is not None), None)
        if why is not None:
            self._doubt(why)
            return
        self._errors.doubt = False
        self._answered = now
        for each in answers:
            self._at_end[each.partition] = self._next[each.partition] >= each.offset

    def _doubt(self, error: KafkaError) -> None:
        self._errors.doubt = True
        self._notices.show(f"the brokers do not answer: {(self._errors.last or error).str()}")

    def take(self, partition: int, size: int) -> list[Any]:
        """Gives messages of a partition, of about `size` bytes.

        Raises:
            ValueError: If the topic cannot be read any more.
        """
        buffer = self._buffers[partition]
        if not buffer:
            self._pump()
        taken, held = [], 0
        while buffer and held < size:
            message = buffer.popleft()
            taken.append(message)
            held += len(message)
            self._bytes[partition] -= len(message) + _OVERHEAD
        if partition in self._paused and self._bytes[partition] < _BUFFERED // 2:
            self._paused.discard(partition)
            self._consumer.resume([TopicPartition(self.source.topic, partition)])
        return taken

    def is_at_end(self, partition: int) -> bool:
        """Says whether there is known to be nothing more in a partition for now."""
        return self._at_end[partition] and not self._buffers[partition] and not self._errors.doubt

    def commit(self, partition: int, offset: int) -> None:
        """Commits an offset to the group, for who looks on; the job does not depend on it."""
        self._commit({partition: offset}, wait=False)

    def _committed(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        if error is not None:
            self._notices.show(f"offsets cannot be committed for now: {error.str()}")

    def _commit(self, offsets: Mapping[int, int], *, wait: bool) -> None:
        wanted = [
            TopicPartition(self.source.topic, partition, offset)
            for partition, offset in offsets.items()
        ]
        try:
            if wait:
                self._consumer.commit(offsets=wanted, asynchronous=False)
            else:
                self._consumer.commit(offsets=wanted)
        except KafkaException as error:
            self._notices.show(f"offsets cannot be committed for now: {error.args[0].str()}")


def _in_thread(task: Callable[[], None]) -> threading.Thread:
    """Begins what waits for brokers, if they are away for as long as a minute."""
    thread = threading.Thread(target=task, name="kafka end", daemon=True)
    thread.start()
    return thread


class KafkaReader:
    """Reads one partition.

    Args:
        clients: Holds the client that the partitions share; emptied when the last one closes.
        partition: The partition.
        offset: Where to begin.
    """

    header = b""
    gave_back = True  # a log keeps what it holds, whoever has read it

    def __init__(self, clients: list[Client], partition: int, offset: int) -> None:
        self._clients = clients
        self._client = clients[0]
        self._partition = partition
        self._next = offset
        self._resume = self._committed = -1
        self._committed_at = 0.0
        self._closed = False
        self._client.add(partition, offset)

    def read(self, size: int) -> Block:
        """Gives the messages that are there, of about `size` bytes; it waits a little for some.

        Raises:
            ValueError: If the topic cannot be read any more.
        """
        taken = self._client.take(self._partition, size)
        if not taken:
            caught_up = self._client.is_at_end(self._partition)
            return Block(b"", self._next, at_end=False, caught_up=caught_up)
        offsets = [message.offset() for message in taken]
        self._next = offsets[-1] + 1
        messages = Messages(
            taken,
            [message.value() for message in taken],
            offsets,
            offsets,
            self._next,
            _time_ms,
            _header,
        )
        return Block(b"", offsets[0], at_end=False, messages=messages)

    def acknowledge(self, positions: Sequence[int | str], resume: int) -> list[int | str]:
        """Commits the offset of the first record in flight, once a second at most."""
        self._resume = resume
        now = time.monotonic()
        if self._is_behind and now - self._committed_at >= _COMMIT_EVERY_S:
            self._client.commit(self._partition, resume)
            self._committed, self._committed_at = resume, now
        return []

    @property
    def _is_behind(self) -> bool:
        """Whether the group knows less than it might."""
        return self._client.source.group is not None and self._resume > self._committed

    def recovered(self, until: int, clean: bool) -> bool:
        """Says whether all has been read again that the last run had read."""
        return self._next >= until or self._client.is_at_end(self._partition)

    def close(self) -> None:
        """Commits where the next reader goes on; the last one closes the client."""
        if self._closed:
            return
        self._closed = True
        if self._client.remove(self._partition, self._resume if self._is_behind else None):
            self._clients.clear()


def _time_ms(message: Any) -> int:
    kind, ms = message.timestamp()
    return INT64_MIN if kind == TIMESTAMP_NOT_AVAILABLE else int(ms)


def _header(message: Any, name: str) -> str | None:
    for key, value in reversed(message.headers() or ()):
        if key == name and value is not None:
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return None

"""A Kafka topic as an input: each partition a split, its records named by offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.formats import JsonLines, LineFormat
from beam_lateness.transforms.times import Duration, duration_ms

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
COMMITTED: Final = "committed"


@dataclass(frozen=True)
class Kafka:
    """A topic of Apache Kafka, each message a JSON object.

    Where reading goes on is kept in the job's checkpoint, and committed to the group for who looks
    on: the committed offset of a partition is that of its first record in flight.

    Args:
        bootstrap: The brokers, as `HOST:PORT,HOST:PORT`.
        topic: The topic.
        line_format: What the values hold.
        group: The consumer group to commit to; None to commit nowhere.
        start: Where to begin without a checkpoint: `earliest`, `latest`, `committed` (the group's
            offsets; `earliest` in a partition without), or a time in ms since the epoch (the first
            message not before it). A partition that is added later is read from its beginning.
        options: Settings of librdkafka, such as `security.protocol` and `sasl.username`.
        batch: How long a poll waits for messages.
        discovery: How often to look for new partitions.

    Raises:
        ValueError: If an argument is wrong.

    Example:
        >>> from beam_lateness import JsonLines
        >>> source = Kafka("localhost:9092", "payments", JsonLines("account", "amount"), group="g")
        >>> source.source_id
        'kafka://payments?group=g'
    """

    bootstrap: str
    topic: str
    line_format: LineFormat
    group: str | None = None
    start: str | int = EARLIEST
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password
    batch: Duration = "50ms"
    discovery: Duration = "30s"
    _clients: list[Any] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if not self.bootstrap or not self.topic:
            msg = (
                "bootstrap and topic (--input=kafka://HOST:PORT/TOPIC) must be given, got "
                f"{self.bootstrap!r} and {self.topic!r}"
            )
            raise ValueError(msg)
        if isinstance(self.start, str) and self.start not in (EARLIEST, LATEST, COMMITTED):
            msg = (
                f"start must be {EARLIEST}, {LATEST}, {COMMITTED} or a time in ms, "
                f"got {self.start!r}"
            )
            raise ValueError(msg)
        if self.start == COMMITTED and self.group is None:
            msg = "start=committed needs a group, whose offsets it means (?group=NAME)"
            raise ValueError(msg)
        if not isinstance(self.line_format, JsonLines):
            msg = "messages (--input=kafka://...) must hold JSON objects; --format must be jsonl"
            raise ValueError(msg)
        duration_ms(self.batch, name="batch")
        duration_ms(self.discovery, name="discovery", minimum_ms=1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def follows(self) -> bool:
        """A topic has no end."""
        return True

    @property
    def replays(self) -> bool:
        """A partition has one order."""
        return True

    @property
    def source_id(self) -> str:
        """Names the input in a checkpoint."""
        return f"kafka://{self.topic}?group={self.group or ''}"

    def initial_positions(self) -> dict[str, SplitPosition]:
        """Finds the partitions, and where to begin in each.

        Raises:
            ValueError: If the brokers cannot be reached, refuse, or have no such topic.
        """
        known = self._clients[0].partitions() if self._clients else _lookup().start_offsets(self)
        return self._positions(known)

    def later_positions(self) -> dict[str, SplitPosition]:
        """Finds the partitions, each at its beginning.

        Raises:
            ValueError: If the brokers cannot be reached, refuse, or have no such topic.
        """
        return self._positions(_lookup().beginnings(self))

    def _positions(self, offsets: Mapping[int, int]) -> dict[str, SplitPosition]:
        return {
            f"{self.topic}-{partition}": SplitPosition(offsets[partition])
            for partition in sorted(offsets)
        }

    def open(self, split: str, position: SplitPosition) -> Any:
        """Opens a partition (a `KafkaReader`); the partitions of a process share a client."""
        library = _library()
        if not self._clients:
            self._clients.append(library.Client(self))
        partition = int(split.rpartition("-")[2])
        return library.KafkaReader(self._clients, partition, position.offset)

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives the first payloads that the topic holds."""
        for payload in _lookup().first_payloads(self):
            yield b"", payload


def _library() -> ModuleType:
    _lookup()
    from beam_lateness.transforms.sources import kafka_reader

    return kafka_reader


def _lookup() -> ModuleType:
    """The module that needs Kafka's client library, imported only by who reads Kafka."""
    try:
        from beam_lateness.transforms.sources import kafka_lookup
    except ImportError as error:
        msg = "kafka:// needs Kafka's client library: pip install 'beam-lateness[kafka]'"
        raise ValueError(msg) from error
    return kafka_lookup

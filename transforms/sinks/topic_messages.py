"""What is sent to a topic, and what a writer of it does."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CHECK_WITHIN_S: Final = 10.0
MESSAGES_AT_ONCE: Final = 5000
_BYTES_AT_ONCE: Final = 1 << 25


class Message(NamedTuple):
    """What is sent.

    Args:
        data: The payload.
        key: Kafka's message key, by which it chooses the partition; Pub/Sub has none.
        attributes: Pub/Sub's attributes (one of more than 1,024 bytes, its limit, is left out),
            Kafka's headers.
        timestamp_ms: Kafka's message timestamp, ms since the epoch; None, or one before 1970, which
            Kafka does not take, for that of sending.
    """

    data: bytes
    key: bytes | None
    attributes: Mapping[str, str]
    timestamp_ms: int | None = None


class PublishError(RuntimeError):
    """A broker did not take a message."""


class TopicWriter(ABC):
    """Sends messages, and waits until the broker has confirmed them.

    One that has raised `PublishError` is of no more use but to be closed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._bytes = 0
        self.pending = 0
        """Messages sent since the last flush."""

    @property
    def full(self) -> bool:
        """Whether so much is pending that it should be flushed: 5,000 messages, or 32 MiB."""
        return self.pending >= MESSAGES_AT_ONCE or self._bytes >= _BYTES_AT_ONCE

    def send(self, message: Message) -> None:
        """Hands a message over to be sent in the background.

        Raises:
            PublishError: If it cannot be sent, or an earlier one was refused meanwhile.
        """
        self._send(message)
        self.pending += 1
        self._bytes += len(message.data)

    def flush(self) -> None:
        """Waits until the broker has confirmed every message sent.

        Raises:
            PublishError: If it refused one, or did not answer in the client's time.
        """
        self._flush()
        self.pending = self._bytes = 0

    @abstractmethod
    def _send(self, message: Message) -> None: ...

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Closes the connections; what has not been flushed may be lost."""

    def _refused(self, why: str) -> PublishError:
        return PublishError(f"{self._url}: {why}")


def load_client(module: str, extra: str, url: str) -> Any:
    """Imports the library that a topic needs; it is optional, and imported when it is used.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        msg = f"{url} needs the library {module}; pip install 'beam-lateness[{extra}]'"
        raise ValueError(msg) from error

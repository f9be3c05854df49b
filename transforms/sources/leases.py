"""The messages of a subscription that this job holds, and those that it has let go of."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any


class Leases:
    """Messages in flight, by id; it tells a message that comes again from a new one.

    Args:
        remembered: How many ids of acknowledged messages are remembered.
    """

    def __init__(self, remembered: int) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, str] = {}  # the latest ack id by message id
        self._ended: dict[str, None] = {}  # in the order of their acknowledgement
        self._again: dict[str, str] = {}  # acknowledged, and delivered once more
        self._remembered = remembered

    def __len__(self) -> int:
        return len(self._held)

    def take(self, received: Iterable[Any]) -> Iterator[Any]:
        """Takes what the service has delivered, and gives the messages that are new."""
        with self._lock:
            for each in received:
                name = each.message.message_id
                if name in self._ended:
                    self._again[name] = each.ack_id
                    continue
                known = name in self._held
                self._held[name] = each.ack_id  # only the latest is sure to count
                if not known:
                    yield each.message

    def ack_ids(self) -> list[str]:
        """Gives the ack ids of all that is held."""
        with self._lock:
            return list(self._held.values())

    def ack_ids_of(self, ids: Iterable[str]) -> list[str]:
        """Gives the ack ids by which to acknowledge messages, and those that came once more."""
        with self._lock:
            again = list(self._again.values())
            return [self._held[name] for name in ids if name in self._held] + again

    def end(self, ids: Iterable[str]) -> None:
        """Takes note that messages were acknowledged."""
        with self._lock:
            self._again.clear()
            for name in ids:
                if self._held.pop(name, None) is not None:
                    self._ended[name] = None
            while len(self._ended) > self._remembered:
                del self._ended[next(iter(self._ended))]

"""Pub/Sub subscriptions as an input: each a split, its records named by message id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.formats import JsonLines, LineFormat
from beam_lateness.transforms.times import Duration, duration_ms

_NAME: Final = re.compile(r"projects/[^/]+/subscriptions/[^/]+")


@dataclass(frozen=True)
class PubSub:
    """Subscriptions of Google Cloud Pub/Sub, each message a JSON object.

    A message is acknowledged when its results are durable (`ReadEvents(commits=...)`), and its
    deadline is extended until then. Pub/Sub delivers at least once: a message that comes again
    while it is in flight, or within `remembered` later messages of its subscription, is left out;
    one that comes again after that, or after a restart of the job although it was acknowledged, is
    read again.

    Credentials are Google's default ones; `PUBSUB_EMULATOR_HOST` names an emulator.

    Args:
        subscriptions: `projects/P/subscriptions/S`, one or several.
        line_format: What the payloads hold.
        lease: For how long the service keeps a message for this job before it may give it to
            another one; it is extended as long as the job lives. After a crash the service gives
            back what was in flight only then, and the watermark stands until it has.
        batch: How long a poll waits for more messages once one is there.
        max_in_flight: Messages of a subscription that may be read and not acknowledged: with each
            open window, its messages are held. At the limit no more are read.
        remembered: How many ids of acknowledged messages are remembered.

    Raises:
        ValueError: If a subscription's name is wrong, or a duration is out of range.

    Example:
        >>> from beam_lateness import JsonLines
        >>> source = PubSub(["projects/p/subscriptions/payments"], JsonLines("account", "amount"))
        >>> source.source_id
        'pubsub://projects/p/subscriptions/payments'
    """

    subscriptions: Sequence[str]
    line_format: LineFormat
    lease: Duration = "60s"
    batch: Duration = "50ms"
    max_in_flight: int = 1_000_000
    remembered: int = 100_000

    def __post_init__(self) -> None:
        names = self.subscriptions
        if isinstance(names, str) or not names:
            msg = f"subscriptions (--input) must be a list of names, got {names!r}"
            raise ValueError(msg)
        for name in names:
            if not _NAME.fullmatch(name):
                msg = f"subscription (--input) must be projects/P/subscriptions/S, got {name!r}" + (
                    "; a topic is read through a subscription to it" if "/topics/" in name else ""
                )
                raise ValueError(msg)
        if not isinstance(self.line_format, JsonLines):
            msg = "messages (--input=pubsub://...) must hold JSON objects; --format must be jsonl"
            raise ValueError(msg)
        lease_ms = duration_ms(self.lease, name="lease")
        if not 1_000 <= lease_ms <= 600_000:
            msg = f"lease must be from 1s to 10m (what Pub/Sub allows), got {self.lease!r}"
            raise ValueError(msg)
        duration_ms(self.batch, name="batch")
        if self.max_in_flight < 1 or self.remembered < 0:
            msg = (
                "max_in_flight must be at least 1 and remembered at least 0, got "
                f"{self.max_in_flight} and {self.remembered}"
            )
            raise ValueError(msg)

    @property
    def follows(self) -> bool:
        """A subscription has no end."""
        return True

    @property
    def replays(self) -> bool:
        """What comes again does so in any order."""
        return False

    @property
    def source_id(self) -> str:
        """Names the input in a checkpoint."""
        return ",".join(f"pubsub://{name}" for name in sorted(set(self.subscriptions)))

    def initial_positions(self) -> dict[str, SplitPosition]:
        """Gives the subscriptions; where each stands only the service knows."""
        return {name: SplitPosition() for name in sorted(self.subscriptions)}

    def later_positions(self) -> dict[str, SplitPosition]:
        """Gives the same: a subscription has one beginning."""
        return self.initial_positions()

    def check(self, *, ordered_allowed: bool) -> None:
        """Looks whether the subscriptions are there and may be read.

        Args:
            ordered_allowed: Whether they may order messages by key.

        Raises:
            ValueError: If one is not there, may not be read, or is ordered though it may not.
        """
        for name in self.subscriptions:
            if _library().is_ordered(name) and not ordered_allowed:
                msg = (
                    f"subscription {name} orders messages by key: Pub/Sub delivers the next "
                    "one of a key when the one before is acknowledged, and here that is when "
                    "its window is stored. Use a subscription without ordering on the same "
                    "topic: event times order the records"
                )
                raise ValueError(msg)

    def open(self, split: str, position: SplitPosition) -> Any:
        """Opens a subscription (a `PubSubReader`)."""
        return _library().PubSubReader(split, position, self)

    def head(self) -> Iterator[tuple[bytes, bytes]]:
        """Gives nothing: to look at a message would be to take it."""
        return iter(())


def _library() -> ModuleType:
    """The module that needs Google's client library, imported only by who reads Pub/Sub."""
    try:
        from beam_lateness.transforms.sources import pubsub_reader
    except ImportError as error:
        msg = "pubsub:// needs Google's client library: pip install 'beam-lateness[pubsub]'"
        raise ValueError(msg) from error
    return pubsub_reader

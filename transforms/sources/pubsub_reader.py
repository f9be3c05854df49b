"""Reads one Pub/Sub subscription: pulls ahead, keeps the leases, acknowledges."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import google.cloud.pubsub_v1 as pubsub_v1
from google.api_core import exceptions
from google.pubsub_v1.types import (
    AcknowledgeRequest,
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    PullRequest,
    PullResponse,
)

from beam_lateness.transforms.sources.connector import Block, SplitPosition
from beam_lateness.transforms.sources.leases import Leases
from beam_lateness.transforms.sources.messages import Messages
from beam_lateness.transforms.sources.notices import Notices
from beam_lateness.transforms.times import Duration, duration_ms

_LOG = logging.getLogger(__name__)

_PULL_MESSAGES: Final = 1000
_PULL_S: Final = 20.0  # the service holds an empty pull for about as long
_IDS_AT_ONCE: Final = 2500  # a request to acknowledge holds at most 512 KiB
_QUEUED: Final = 64 << 20  # bytes pulled ahead of the reader; a pull more may come on top
_OVERHEAD: Final = 1_000  # bytes of a message beside what it holds
_TRANSIENT: Final = (
    exceptions.ServiceUnavailable,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.Unknown,
)
_ANSWER_S: Final = 5.0
_CLOSE_S: Final = 5.0  # for which closing waits for the end of the open pull
_GIVEN_BACK_S: Final = 1.0  # until the service delivers again what was given back to it
_RECOVERY_S: Final = 10.0  # after that: for how long to wait for it to have nothing more


def is_ordered(name: str) -> bool:
    """Says whether a subscription orders messages by key; False where it may not be asked.

    Raises:
        ValueError: If it is not there, or the service cannot be reached.
    """
    request = GetSubscriptionRequest(subscription=name)
    try:
        with pubsub_v1.SubscriberClient() as client:
            found = client.get_subscription(request, timeout=10.0, retry=None)
    except exceptions.PermissionDenied:  # reading needs less than asking
        _LOG.warning(
            "%s: it cannot be seen whether it orders messages by key (that needs "
            "roles/pubsub.viewer); if it does, a key stalls until its windows are stored",
            name,
        )
        return False
    except Exception as error:  # of the service, or of missing credentials
        raise ValueError(explain(name, error)) from error
    return bool(found.enable_message_ordering)


class Settings(Protocol):
    """What a reader must know (see `PubSub`)."""

    @property
    def lease(self) -> Duration: ...
    @property
    def batch(self) -> Duration: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def remembered(self) -> int: ...


class PubSubReader:
    """Reads one subscription; a thread pulls ahead, another extends the leases.

    Args:
        split: The subscription.
        position: How many messages were read of it before.
        settings: How to read it.
    """

    header = b""

    def __init__(self, split: str, position: SplitPosition, settings: Settings) -> None:
        self.split = split
        self._settings = settings
        self._count = position.offset
        self._batch_s = duration_ms(settings.batch, name="batch") / 1000
        self._lease_s = duration_ms(settings.lease, name="lease") / 1000
        self._client = pubsub_v1.SubscriberClient()
        self._puller = pubsub_v1.SubscriberClient()  # apart, so that an open pull can be cut off
        self._leases = Leases(settings.remembered)
        self._queue: deque[Any] = deque()
        self._queued = 0  # bytes
        self._changed = threading.Condition()
        self._stopped = False
        self._failure: Exception | None = None
        self._answers = False  # whether the service answered last
        self._opened = time.monotonic()
        self._empty_at = self._opened  # when it was found empty last
        self._notices = Notices(_LOG, split)
        self.gave_back = False
        self._threads = [
            threading.Thread(target=target, name=f"pubsub {split}", daemon=True)
            for target in (self._pull_ahead, self._extend)
        ]
        for thread in self._threads:
            thread.start()

    def _pull_ahead(self) -> None:
        wait_s = 0.1
        while not self._stopped:
            if not self._has_room():
                continue
            room = self._settings.max_in_flight - len(self._leases)
            request = PullRequest(
                subscription=self.split, max_messages=max(1, min(_PULL_MESSAGES, room))
            )
            asked = time.monotonic()
            try:
                response = self._puller.pull(request, timeout=_PULL_S, retry=None)
                received = PullResponse.pb(response).received_messages
            except exceptions.DeadlineExceeded:
                self._answers = self._asks()
                if not self._answers:
                    continue
                received = ()  # nothing came for so long
            except _TRANSIENT as error:
                self._show(f"cannot be pulled from for now: {_short(error)}")
                self._answers = False
                with self._changed:
                    self._changed.wait_for(self._is_stopped, wait_s)
                wait_s = min(wait_s * 2, 5.0)
                continue
            except Exception as error:  # not found, no permission: time mends nothing
                with self._changed:
                    if not self._stopped:
                        self._failure = error
                    self._changed.notify_all()
                return
            wait_s = 0.1
            # A lease of ours before anything is made of it: the subscription's own deadline may be
            # shorter, or longer than a restarted job waits.
            lease_s = 0 if self._stopped else int(self._lease_s)
            self._modify([each.ack_id for each in received], lease_s)
            with self._changed:
                self._answers = True
                if not received:
                    self._empty_at = asked
                new = list(self._leases.take(received))  # also at the end: `close` gives it back
                if not self._stopped:
                    self._queue.extend(new)
                    self._queued += sum(len(message.data) + _OVERHEAD for message in new)
                self._changed.notify_all()

    def _asks(self) -> bool:
        """Whether the service answers: a network that swallows packets looks like silence."""
        request = GetSubscriptionRequest(subscription=self.split)
        try:
            self._client.get_subscription(request, timeout=_ANSWER_S, retry=None)
        except exceptions.PermissionDenied:  # an answer, if not to the question
            return True
        except Exception as error:  # the next pull tells what it is
            self._show(f"does not answer for now: {_short(error)}")
            return False
        return True

    def _has_room(self) -> bool:
        with self._changed:
            if self._queued >= _QUEUED:
                self._changed.wait(0.05)
                return False
        if len(self._leases) < self._settings.max_in_flight:
            return True
        self._show(
            f"{len(self._leases):,} messages are in flight, the most allowed: no more are read "
            "until windows close and their results are stored. If that stands, a window with its "
            "bound and allowed lateness holds more: raise max_in_flight, or shorten them"
        )
        time.sleep(0.1)
        return False

    def _show(self, text: str) -> None:
        if self._stopped:  # a call that is cut off tells nothing
            return
        self._notices.show(text)

    def _extend(self) -> None:
        while not self._stopped:
            with self._changed:
                self._changed.wait_for(self._is_stopped, self._lease_s / 3)
            if not self._stopped:
                self._modify(self._leases.ack_ids(), int(self._lease_s))

    def _is_stopped(self) -> bool:
        return self._stopped

    def _modify(self, ack_ids: list[str], seconds: int) -> bool:
        for low in range(0, len(ack_ids), _IDS_AT_ONCE):
            request = ModifyAckDeadlineRequest(
                subscription=self.split,
                ack_ids=ack_ids[low : low + _IDS_AT_ONCE],
                ack_deadline_seconds=seconds,
            )
            try:
                self._client.modify_ack_deadline(request, timeout=10.0, retry=None)
            except Exception as error:  # they come again, and are known then
                self._show(f"deadlines cannot be extended for now: {_short(error)}")
                return False
        return True

    def read(self, size: int) -> Block:
        """Gives the messages that are there, of about `size` bytes; it waits a little for some.

        Raises:
            ValueError: If the subscription cannot be read: deleted, or no permission.
        """
        deadline = time.monotonic() + self._batch_s
        with self._changed:
            while len(self._queue) < _PULL_MESSAGES and self._failure is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            if self._failure is not None and not self._queue:
                raise ValueError(explain(self.split, self._failure)) from self._failure
            taken, held = [], 0
            while self._queue and held < size:
                taken.append(self._queue.popleft())
                held += len(taken[-1].data)
            self._queued -= held + _OVERHEAD * len(taken)
            self._changed.notify_all()
        if not taken:
            return Block(b"", self._count, at_end=False, caught_up=self._answers)
        first, self._count = self._count, self._count + len(taken)
        messages = Messages(
            taken,
            [message.data for message in taken],
            [message.message_id for message in taken],
            range(first, self._count),
            self._count,
            _publish_time_ms,
            _attribute,
        )
        return Block(b"", first, at_end=False, messages=messages)

    def acknowledge(self, positions: Sequence[int | str], resume: int) -> list[int | str]:
        """Acknowledges messages by their ids; gives those of which the service was not told."""
        known = [str(position) for position in positions]
        for low in range(0, max(len(known), 1), _IDS_AT_ONCE):
            ids = known[low : low + _IDS_AT_ONCE]
            ack_ids = self._leases.ack_ids_of(ids)
            if ack_ids:
                request = AcknowledgeRequest(subscription=self.split, ack_ids=ack_ids)
                try:
                    self._client.acknowledge(request, timeout=10.0, retry=None)
                except Exception as error:  # the service is asked again
                    self._show(f"cannot be acknowledged for now: {_short(error)}")
                    return list(known[low:])
            self._leases.end(ids)
        return []

    def recovered(self, until: int, clean: bool) -> bool:
        """Says whether what was in flight when the last run ended has come again.

        The service gives back what a crashed run held when its leases end, and does not say when
        it has: so this is when they have ended and nothing more was there, or a while after.
        """
        again = self._opened + (_GIVEN_BACK_S if clean else self._lease_s)
        if time.monotonic() >= again + _RECOVERY_S:
            self._show(
                "messages still come, so that it is not known whether all that the last run held "
                "has come again: what comes later may be too late"
            )
            return True
        with self._changed:  # a pull that began since then brought nothing, and all before is read
            return self._empty_at >= again and not self._queue

    def close(self) -> None:
        """Gives back what is not acknowledged, and closes the connection."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
        # First the open pull: the service would answer it with what is given back, and nobody
        # would have that until the subscription's own deadline.
        self._puller.close()
        self._threads[0].join(_CLOSE_S)
        self.gave_back = self._modify(self._leases.ack_ids(), 0)
        self._client.close()


def _publish_time_ms(message: Any) -> int:
    stamp = message.publish_time
    return int(stamp.seconds) * 1000 + int(stamp.nanos) // 1_000_000


def _attribute(message: Any, name: str) -> str | None:
    value = message.attributes.get(name)
    return None if value is None else str(value)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def explain(name: str, error: Exception) -> str:
    """Says why a subscription cannot be read, and what helps."""
    remedy = "see that the service can be reached and credentials are set"
    if isinstance(error, exceptions.NotFound):
        remedy = "it was deleted, or never made: mend --input or create it, and start the job again"
    elif isinstance(error, (exceptions.PermissionDenied, exceptions.Unauthenticated)):
        remedy = (
            "grant the job's account roles/pubsub.subscriber and roles/pubsub.viewer on it, or "
            "mend its credentials"
        )
    return f"subscription {name} (--input) cannot be read: {_short(error)}; {remedy}"

"""Writes to a Pub/Sub topic."""

from __future__ import annotations

import importlib
from typing import Any, Final

from beam_lateness.transforms.sinks.topic_messages import (
    CHECK_WITHIN_S,
    Message,
    PublishError,
    TopicWriter,
    load_client,
)
from beam_lateness.transforms.sinks.topic_urls import PubSubTopic

# https://cloud.google.com/pubsub/quotas: a request takes 1,000 messages, an attribute 1,024 bytes.
_BATCH: Final = 1000
_BATCH_BYTES: Final = 1_000_000
_LINGER_S: Final = 0.01
_ATTRIBUTE_BYTES: Final = 1024
_PUBLISH_PERMISSION: Final = "pubsub.topics.publish"


class PubSubWriter(TopicWriter):
    """Writes to a Pub/Sub topic.

    Args:
        url: The topic's URL, for messages.
        topic: The topic.

    Raises:
        ValueError: If the library is missing, or there are no credentials.
    """

    def __init__(self, url: str, topic: PubSubTopic) -> None:
        super().__init__(url)
        self._path = topic.path
        pubsub = load_client("google.cloud.pubsub_v1", "pubsub", url)
        self._errors = importlib.import_module("google.api_core.exceptions")
        self._too_large = pubsub.publisher.exceptions.MessageTooLargeError
        self._futures: list[Any] = []
        self._failure: BaseException | None = None
        batches = pubsub.types.BatchSettings(
            max_messages=_BATCH,
            max_bytes=_BATCH_BYTES,
            max_latency=_LINGER_S,
        )
        self._client = _with_credentials(pubsub.PublisherClient, url, batch_settings=batches)

    def _send(self, message: Message) -> None:
        attributes = {
            name: text
            for name, text in message.attributes.items()
            if len(text.encode()) <= _ATTRIBUTE_BYTES
        }
        if self._failure is not None:
            raise self._explain(self._failure) from self._failure
        try:
            future = self._client.publish(self._path, message.data, **attributes)
        except self._too_large as error:
            size = f"a message of {len(message.data):,} bytes is too large for Pub/Sub"
            msg = f"{size}, which takes 10 MB"
            raise self._refused(msg) from error
        future.add_done_callback(self._confirm)
        self._futures.append(future)

    def _flush(self) -> None:
        for future in self._futures:
            try:
                future.result()
            except Exception as error:  # the client passes on what its transport raised
                raise self._explain(error) from error
        self._futures = []

    def _confirm(self, future: Any) -> None:
        self._failure = self._failure or future.exception()

    def _explain(self, error: BaseException) -> PublishError:
        if isinstance(error, self._errors.NotFound):
            return self._refused(f"the topic does not exist; create it ({error})")
        if isinstance(error, (self._errors.Forbidden, self._errors.Unauthorized)):
            return self._refused(
                f"access is denied: {error}; the account needs the role Pub/Sub Publisher"
            )
        return self._refused(f"a message was not confirmed: {error or type(error).__name__}")

    def close(self) -> None:
        self._client.stop()
        self._client.transport.close()

    def check(self) -> None:
        """Asks whether the topic is there and may be published to.

        Raises:
            ValueError: If not.
        """
        once = {"timeout": CHECK_WITHIN_S, "retry": None}
        try:
            try:
                self._client.get_topic(topic=self._path, **once)
            except self._errors.PermissionDenied:
                # A mere publisher may not look at the topic, but anyone may ask what they may do.
                asked = {"resource": self._path, "permissions": [_PUBLISH_PERMISSION]}
                if not self._client.test_iam_permissions(request=asked, **once).permissions:
                    raise
        except (self._errors.NotFound, self._errors.Forbidden, self._errors.Unauthorized) as error:
            raise ValueError(str(self._explain(error))) from error
        except Exception as error:  # of the transport, or of the credentials
            msg = f"{self._url} cannot be reached: {error}"
            raise ValueError(msg) from error


def check_pubsub(url: str, topic: PubSubTopic) -> None:
    """Asks Pub/Sub whether a topic is there and may be published to.

    Raises:
        ValueError: If not, or there is no answer within 10 s, or no credentials.
    """
    writer = PubSubWriter(url, topic)
    try:
        writer.check()
    finally:
        writer.close()


def _with_credentials(make: Any, url: str, **how: Any) -> Any:
    auth = importlib.import_module("google.auth.exceptions")
    try:
        return make(**how)
    except auth.GoogleAuthError as error:
        msg = f"{url}: no credentials: {error}"
        raise ValueError(msg) from error

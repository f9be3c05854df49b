"""Asks Kafka's brokers for a topic, whoever wants to read it or write to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

_STEP_S: Final = 1.0  # what blocks in C is done in steps: signals are seen, and why no answer comes


def ask_topic(
    kafka: Any, consumer: Any, topic: str, within_s: float, denied: Callable[[], bool]
) -> Any:
    """Asks for a topic's metadata, until a broker answers or will not let us in.

    Args:
        kafka: The client library: it is optional, and imported by who uses it.
        consumer: Asks; it reads nothing yet (its callbacks are served, which would take a message).
            A producer's question would make the broker create the topic.
        topic: The topic.
        within_s: How long to wait for an answer, in seconds.
        denied: Whether a broker has refused the client meanwhile.

    Returns:
        The library's metadata of the topic; None if there is none.

    Raises:
        KafkaException: If there was no answer.
    """
    end = time.monotonic() + within_s
    step = min(_STEP_S, within_s)
    while True:
        try:
            return consumer.list_topics(topic, timeout=step).topics.get(topic)
        except kafka.KafkaException:
            consumer.poll(0)  # serves the callback
            left = end - time.monotonic()
            if denied() or left <= 0:
                raise
            step = min(2 * step, left)  # longer each time: a broker may be slow

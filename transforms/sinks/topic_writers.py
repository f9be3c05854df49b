"""Opens and checks topics to write to. No Beam here."""

from __future__ import annotations

from collections.abc import Mapping

from beam_lateness.transforms.sinks.kafka_writer import KafkaWriter, check_kafka
from beam_lateness.transforms.sinks.pubsub_writer import PubSubWriter, check_pubsub
from beam_lateness.transforms.sinks.topic_messages import TopicWriter
from beam_lateness.transforms.sinks.topic_urls import KafkaTopic, Topic, parse_topic


def open_writer(url: str, kafka_options: Mapping[str, str]) -> TopicWriter:
    """Opens a topic to write to.

    Args:
        url: The topic.
        kafka_options: Settings of librdkafka, such as those of SASL and TLS; for Kafka only.

    Raises:
        ValueError: If the URL, an option or the library is wrong, or there are no credentials. The
            topic itself is not looked at.
    """
    topic = parse_topic(url)
    if isinstance(topic, KafkaTopic):
        return KafkaWriter(url, topic, kafka_options)
    return PubSubWriter(url, topic)


def check_topic(url: str, kafka_options: Mapping[str, str], name: str = "url") -> Topic:
    """Checks that a topic is there and can be reached, within 10 s; creates nothing.

    Args:
        url: The topic.
        kafka_options: Settings of librdkafka; for Kafka only.
        name: The parameter or flag, for the error message.

    Raises:
        ValueError: If not, or the URL, an option, the library or the credentials are wrong.
    """
    topic = parse_topic(url, name)
    try:
        if isinstance(topic, KafkaTopic):
            check_kafka(url, topic, kafka_options)
        elif kafka_options:
            msg = f"Kafka options have no meaning for {url!r}; leave them out"
            raise ValueError(msg)
        else:
            check_pubsub(url, topic)
    except ValueError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from error
    return topic

"""What reading a topic costs: our connectors beside a bare loop of the client library.

Both read the same messages from the same server, one after the other, several times in turn; the
best time of each counts, and the ratio of the two. The servers are those of `services/`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from beam_lateness import JsonLines, WatermarkStrategy
from beam_lateness.transforms.sources.connector import Connector
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.kafka import Kafka
from beam_lateness.transforms.sources.pubsub import PubSub
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from benchmarks.payments import write_payments
from services.kafka_broker import KafkaBroker
from services.pubsub_server import PubsubServer

LINE_FORMAT = JsonLines("account", "amount_cents", "event_id")
PARTITIONS = 4
ROUNDS = 3


def payloads(count: int) -> list[bytes]:
    """The benchmark's payments, a JSON object each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "payments.jsonl"
        write_payments(path, count)
        return path.read_bytes().splitlines()


def read_blocks(connector: Connector, count: int) -> float:
    """Seconds to read messages as blocks: what the connector alone costs."""
    splits = connector.initial_positions()
    began = time.perf_counter()
    readers: list[Any] = [connector.open(name, position) for name, position in splits.items()]
    left = count
    while left > 0:
        for reader in readers:
            block = reader.read(8 << 20)
            if block.messages is not None:
                left -= len(block.messages)
                reader.acknowledge(block.messages.positions, block.messages.stop)
    seconds = time.perf_counter() - began
    for reader in readers:
        reader.close()
    return seconds


def read_stamped(connector: Connector, count: int) -> float:
    """Seconds to read messages as stamped columns: parsed, checked, with watermarks."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10s").with_timestamp_assigner(
        FieldTime("event_time", "ms")
    )
    group = Group.bind(connector, strategy)
    began = time.perf_counter()
    reader = group.open()
    left = count
    while left > 0:
        poll = reader.poll()
        left -= sum(map(len, poll.batches)) + len(poll.invalid)
        for batch in poll.batches:
            positions = batch.columns.column("position").to_pylist()
            own: Any = reader.readers()[batch.split]
            own.acknowledge(positions, poll.positions[batch.split].offset)
    seconds = time.perf_counter() - began
    reader.close()
    return seconds


def kafka_loop(bootstrap: str, topic: str, count: int, parse: Callable[[bytes], Any]) -> float:
    """Seconds of the loop that a user would write."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    began = time.perf_counter()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "loop"})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    left = count
    values: list[Any]
    while left > 0:
        messages = consumer.consume(10_000, 0.05)
        values = [parse(message.value() or b"") for message in messages if message.error() is None]
        left -= len(values)
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


def pubsub_loop(subscription: str, count: int, parse: Callable[[bytes], Any]) -> float:
    """Seconds of the loop that a user would write: pull, take, acknowledge."""
    from google.cloud import pubsub_v1

    began = time.perf_counter()
    with pubsub_v1.SubscriberClient() as client:
        left = count
        while left > 0:
            response = client.pull(subscription=subscription, max_messages=1000, timeout=30)
            for received in response.received_messages:
                parse(received.message.data)
            ids = [received.ack_id for received in response.received_messages]
            if ids:
                client.acknowledge(subscription=subscription, ack_ids=ids)
            left -= len(ids)
    return time.perf_counter() - began


def show(name: str, count: int, ours: Iterable[float], bare: Iterable[float]) -> None:
    """Prints a line of the table."""
    own, other = min(ours), min(bare)
    print(
        f"| {name} | {count / own:,.0f} | {count / other:,.0f} | {other / own:.2f} |",
        flush=True,
    )


def measure_kafka(count: int) -> None:
    """Measures Kafka."""
    from confluent_kafka import Producer

    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "broker") as broker:
        broker.create_topic("bench", partitions=PARTITIONS)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 2_000_000}
        )
        for number, payload in enumerate(payloads(count)):
            producer.produce("bench", payload, partition=number % PARTITIONS)
        producer.flush()
        source = Kafka(broker.bootstrap, "bench", LINE_FORMAT)
        taken, parsed, blocks, stamped = [], [], [], []
        for _ in range(ROUNDS):
            taken.append(kafka_loop(broker.bootstrap, "bench", count, bytes))
            blocks.append(read_blocks(source, count))
            parsed.append(kafka_loop(broker.bootstrap, "bench", count, orjson.loads))
            stamped.append(read_stamped(source, count))
        show("Kafka, payloads", count, blocks, taken)
        show("Kafka, parsed and stamped / orjson.loads", count, stamped, parsed)


def measure_pubsub(count: int) -> None:
    """Measures Pub/Sub: each reading has a subscription of its own."""
    from google.cloud import pubsub_v1

    with PubsubServer() as server:
        os.environ.update(server.environment)
        topic = "projects/bench/topics/payments"
        server.create_topic(topic)
        names = [f"projects/bench/subscriptions/s{number}" for number in range(4 * ROUNDS)]
        publisher = pubsub_v1.PublisherClient(
            pubsub_v1.types.BatchSettings(max_messages=1000, max_latency=0.05)
        )
        found = payloads(count)
        taken, parsed, blocks, stamped = [], [], [], []
        for number in range(0, len(names), 4):
            for name in names[number : number + 4]:
                server.create_subscription(name, topic, ack_deadline_s=600)
                for future in [publisher.publish(topic, payload) for payload in found]:
                    future.result()
                source = PubSub([name], LINE_FORMAT)
                if name is names[number]:
                    taken.append(pubsub_loop(name, count, bytes))
                elif name is names[number + 1]:
                    blocks.append(read_blocks(source, count))
                elif name is names[number + 2]:
                    parsed.append(pubsub_loop(name, count, orjson.loads))
                else:
                    stamped.append(read_stamped(source, count))
                with pubsub_v1.SubscriberClient() as client:
                    client.delete_subscription(subscription=name)
        show("Pub/Sub, payloads", count, blocks, taken)
        show("Pub/Sub, parsed and stamped / orjson.loads", count, stamped, parsed)


def main() -> None:
    """Measures both, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", type=int, default=1_000_000, help="messages")
    parser.add_argument("--pubsub", type=int, default=20_000, help="messages")
    arguments = parser.parse_args()
    print("| messages a second | ours | bare loop | ours / loop |\n| --- | --- | --- | --- |")
    measure_kafka(arguments.kafka)
    measure_pubsub(arguments.pubsub)


if __name__ == "__main__":
    main()

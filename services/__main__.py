"""Starts the local servers, says how to reach them, and runs until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NoReturn

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.ERROR)

# After the line above: importing Beam without its gcp extra warns of it, on the root logger.
from beam_lateness.pipelines.errors import EngineError  # noqa: E402
from beam_lateness.pipelines.ports import LOOPBACK, is_free  # noqa: E402

PUBSUB: Final = "pubsub"
KAFKA: Final = "kafka"
POSTGRES: Final = "postgres"
NAMES: Final = (PUBSUB, KAFKA, POSTGRES)
PROJECT: Final = "demo"
TOPIC: Final = "payments"
ACK_DEADLINE_S: Final = 60
PARTITIONS: Final = 4
_LOOK_S: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the servers named, or all."""
    options = _parse(arguments)
    names: list[str] = options.services or list(NAMES)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            for name in names:
                _require_free(name, getattr(options, f"{name}_port"))
            if PUBSUB in names:
                _start_pubsub(stack, options.pubsub_port)
            if KAFKA in names:
                _start_kafka(stack, options.kafka_port)
            if POSTGRES in names:
                _start_postgres(stack, options.postgres_port)
            print("Ctrl-C ends them, and what they hold is gone then.", flush=True)
            while True:  # and no `signal.pause`, which a signal just before it does not end
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        return 0
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services", description=__doc__)
    parser.add_argument(
        "services", nargs="*", metavar="SERVICE", help=f"{', '.join(NAMES)}; all if none"
    )
    parser.add_argument("--pubsub_port", type=int, default=8685, help="default: %(default)s")
    parser.add_argument("--kafka_port", type=int, default=9092, help="default: %(default)s")
    parser.add_argument("--postgres_port", type=int, default=5433, help="default: %(default)s")
    options = parser.parse_args(arguments)
    for name in options.services:
        if name not in NAMES:
            parser.error(f"SERVICE must be one of {', '.join(NAMES)}, got {name!r}")
    return options


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _require_free(name: str, port: int) -> None:
    if not is_free(port):
        msg = f"port {port} of {LOOPBACK} is taken; name another one with --{name}_port"
        raise EngineError(msg)


def _start_pubsub(stack: ExitStack, port: int) -> None:
    try:
        from services.pubsub_server import PubsubServer
    except ImportError as error:
        raise _missing(error, "google-cloud-pubsub") from error
    server = stack.enter_context(PubsubServer(port))
    topic = f"projects/{PROJECT}/topics/{TOPIC}"
    subscription = f"projects/{PROJECT}/subscriptions/{TOPIC}"
    server.create_topic(topic)
    server.create_subscription(subscription, topic, ACK_DEADLINE_S)
    print("Pub/Sub is there; for each program that uses it:")
    for variable, value in server.environment.items():
        print(f"  export {variable}={value}")
    print(f"  pubsub://{subscription}   (topic {topic})")
    print(f"  what became of each message: {server.admin}/messages", flush=True)


def _start_kafka(stack: ExitStack, port: int) -> None:
    try:
        from services.kafka_broker import KafkaBroker
    except ImportError as error:
        raise _missing(error, "confluent-kafka") from error
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-"))
    broker = stack.enter_context(KafkaBroker(Path(folder), port=port))
    broker.create_topic(TOPIC, PARTITIONS)
    print(f"Kafka is there, with the topic {TOPIC} of {PARTITIONS} partitions:")
    print(f"  kafka://{broker.bootstrap}/{TOPIC}?group={PROJECT}", flush=True)


def _start_postgres(stack: ExitStack, port: int) -> None:
    try:
        from services.postgres_server import PostgresServer
    except ImportError as error:
        raise _missing(error, "'psycopg[binary]'") from error
    server = stack.enter_context(PostgresServer(port))
    print("PostgreSQL is there:")
    print(f"  {server.url()}", flush=True)


def _missing(error: ImportError, package: str) -> EngineError:
    return EngineError(f"{error}; install it: pip install {package}")


if __name__ == "__main__":
    raise SystemExit(main())

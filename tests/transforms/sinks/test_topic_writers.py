"""Writers of topics: what a broker refuses is told, with the remedy, and never taken as written."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.auth.exceptions import DefaultCredentialsError

from beam_lateness.transforms.sinks import kafka_writer, pubsub_writer
from beam_lateness.transforms.sinks.topic_messages import Message, PublishError
from beam_lateness.transforms.sinks.topic_writers import check_topic, open_writer
from tests.topics import MockKafka, read_topic

PUBSUB_URL = "pubsub://projects/p/topics/t"
IAM = "google.iam.v1.IAMPolicy"
PUBLISHER = "google.pubsub.v1.Publisher"


@pytest.fixture
def nobody() -> Iterator[str]:
    """Host and port where nobody listens, and nobody will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def message(text: str = "x", **more: Any) -> Message:
    """Makes a message."""
    return Message(text.encode(), text.encode(), {}, **more)


def write(url: str, *messages: Message, **options: str) -> None:
    """Writes messages, and waits for the broker."""
    writer = open_writer(url, options)
    try:
        for each in messages:
            writer.send(each)
        writer.flush()
    finally:
        writer.close()


def test_a_broker_that_does_not_answer_is_told_with_the_cause(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time that a check may take."""
    monkeypatch.setattr(kafka_writer, "CHECK_WITHIN_S", 0.1)
    with pytest.raises(ValueError, match=r"--to: kafka://.*cannot be reached: .*refused"):
        check_topic(f"kafka://{nobody}/panes", {}, "--to")


def test_a_broker_that_is_gone_fails_the_flush_with_the_cause(nobody: str) -> None:
    """Once the client's time for a message is over."""
    with pytest.raises(PublishError, match=r"not confirmed: .*timed out; last heard: .*refused"):
        write(f"kafka://{nobody}/panes", message(), **{"message.timeout.ms": "100"})


def test_a_kafka_message_has_its_timestamp(cluster: MockKafka) -> None:
    """Where Kafka takes one: before 1970 it has none, and takes that of sending."""
    url = cluster.create_topic("panes")
    write(url, message("a", timestamp_ms=1_000), message("b", timestamp_ms=-1_000))
    stamps = {each.data: each.timestamp_ms for each in read_topic(url)}
    assert stamps[b"a"] == 1_000
    assert stamps[b"b"] > 1_000


def test_messages_of_a_key_keep_their_order(cluster: MockKafka) -> None:
    """In one partition."""
    url = cluster.create_topic("panes")
    data = [str(i).encode() for i in range(100)]
    write(url, *(Message(each, b"key", {}) for each in data))
    assert [each.data for each in read_topic(url)] == data


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "bootstrap.servers"])
def test_an_option_that_would_weaken_the_writer_is_refused(name: str) -> None:
    """The URL and the sink decide these."""
    with pytest.raises(ValueError, match=f"must not hold '{name}'"):
        check_topic("kafka://a:9092/panes", {name: "1"})


@pytest.mark.parametrize("options", [{"no.such": "1"}, {"security.protocol": "none"}])
def test_an_option_that_the_client_does_not_take_is_told(options: dict[str, str]) -> None:
    """Before anything is asked."""
    with pytest.raises(ValueError, match=f"options are wrong: .*{next(iter(options))}"):
        check_topic("kafka://a:9092/panes", options)


def test_kafka_options_have_no_meaning_for_pubsub() -> None:
    """And are not ignored in silence."""
    with pytest.raises(ValueError, match="no meaning"):
        check_topic(PUBSUB_URL, {"sasl.mechanism": "PLAIN"})


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("kafka://a:9092/t", "confluent_kafka", "kafka"),
        (PUBSUB_URL, "google.cloud.pubsub_v1", "pubsub"),
    ],
)
def test_a_library_that_is_missing_is_told_with_the_command_that_installs_it(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package works without either."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"pip install 'beam-lateness\[{extra}\]'"):
        check_topic(url, {})


def refuse(code: grpc.StatusCode) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    """Makes a method that fails."""

    def method(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "not you")
        raise AssertionError

    return method


@contextmanager
def pubsub_of(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> Iterator[None]:
    """Serves some methods of Pub/Sub, in bytes; the client finds them."""
    server = grpc.server(ThreadPoolExecutor(2))
    for service in (IAM, PUBLISHER):
        handlers = {n: grpc.unary_unary_rpc_method_handler(m) for n, m in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
    try:
        yield
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("permitted", [True, False])
def test_a_mere_publisher_passes_the_check_if_it_may_publish(
    permitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role Pub/Sub Publisher may publish to a topic, and not look at it."""
    from google.iam.v1 import iam_policy_pb2

    permissions = ["pubsub.topics.publish"] if permitted else []
    answer = iam_policy_pb2.TestIamPermissionsResponse(permissions=permissions)

    def test(request: bytes, context: grpc.ServicerContext) -> bytes:
        asked = iam_policy_pb2.TestIamPermissionsRequest.FromString(request)
        assert asked.resource == "projects/p/topics/t"
        return answer.SerializeToString()

    denied = refuse(grpc.StatusCode.PERMISSION_DENIED)
    with pubsub_of(monkeypatch, GetTopic=denied, TestIamPermissions=test):
        if permitted:
            check_topic(PUBSUB_URL, {})
        else:
            with pytest.raises(ValueError, match=r"access is denied: .*not you; .*Publisher"):
                check_topic(PUBSUB_URL, {})


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (grpc.StatusCode.NOT_FOUND, "the topic does not exist; create it"),
        (grpc.StatusCode.PERMISSION_DENIED, "access is denied: .*the role Pub/Sub Publisher"),
        (grpc.StatusCode.UNAUTHENTICATED, "access is denied"),
        (grpc.StatusCode.INVALID_ARGUMENT, "a message was not confirmed: .*not you"),
    ],
)
def test_what_pubsub_refuses_fails_the_flush_with_the_cause(
    code: grpc.StatusCode, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the topic's URL."""
    with (
        pubsub_of(monkeypatch, Publish=refuse(code)),
        pytest.raises(PublishError, match=f"^{PUBSUB_URL}: {told}"),
    ):
        write(PUBSUB_URL, message())


def test_pubsub_that_cannot_be_reached_is_told(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the cause."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", nobody)
    with pytest.raises(ValueError, match=r"cannot be reached: .*refused"):
        check_topic(PUBSUB_URL, {})


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked."""

    def none(**_: Any) -> None:
        msg = "no default"
        raise DefaultCredentialsError(msg)  # type: ignore[no-untyped-call]

    with pytest.raises(ValueError, match=f"^{PUBSUB_URL}: no credentials: no default"):
        pubsub_writer._with_credentials(none, PUBSUB_URL)

"""`beam-lateness publish`: a file becomes a live stream, and all of it is confirmed or told."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from beam_lateness.pipelines import cli, publish
from beam_lateness.pipelines.feed import FUTURE, RECORD, Item
from beam_lateness.pipelines.publisher import Publisher, message_of
from beam_lateness.pipelines.running import FAILED, INTERRUPTED, MISUSED, OK
from beam_lateness.transforms.sinks.topic_messages import MESSAGES_AT_ONCE, Message, PublishError
from beam_lateness.transforms.sinks.topic_urls import parse_topic
from tests.topics import FakeWriter, MockKafka, read_topic

if TYPE_CHECKING:
    from services.pubsub_server import PubsubServer

T0 = 1_767_225_600_000  # 2026-01-01T00:00:00Z
YEAR = 365 * 86_400_000
KAFKA = "kafka://127.0.0.1:9/none"
PUBSUB = "pubsub://projects/p/topics/t"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of records of three keys, one a second, and a line that is none."""
    path = tmp_path / "events.jsonl"
    records = [{"id": f"r{i}", "key": "abc"[i % 3], "event_time": T0 + 1000 * i} for i in range(60)]
    path.write_text("\n".join([*map(json.dumps, records), "no json", ""]))
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWriter:
    """The writer that the command gets, whatever the topic."""
    writer = FakeWriter()

    def check(url: str, *_: Any) -> Any:
        return parse_topic(url)

    def opened(*_: Any) -> FakeWriter:
        writer.closed = False
        return writer

    monkeypatch.setattr(publish, "check_topic", check)
    monkeypatch.setattr(publish, "open_writer", opened)
    return writer


def run(source: Path, url: str, *flags: str) -> int:
    """Runs the command."""
    return cli.main(["publish", f"--input={source}", f"--to={url}", *flags])


def last_line(text: str) -> dict[str, int]:
    """The counts that the command ends with."""
    return json.loads(text.splitlines()[-1])


def test_a_file_is_on_the_topic_in_its_order(
    source: Path, cluster: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line as it is; keyed by the key field, with the event time as timestamp and header."""
    url = cluster.create_topic("events")
    assert run(source, url, "--speed=max", "--key_field=key") == OK
    got, sent = read_topic(url), source.read_bytes().splitlines()
    assert sorted(each.data for each in got) == sorted(sent)
    records = [each for each in got if each.data != b"no json"]
    for each in records:
        assert each.key == each.json["key"].encode()
        assert each.timestamp_ms == each.json["event_time"]
        assert each.headers == {"event_time_ms": str(each.json["event_time"])}
    for key in {each.key for each in records}:
        of_key = [each.data for each in records if each.key == key]
        assert of_key == sorted(of_key, key=sent.index)
    counts = last_line(capsys.readouterr().out)
    assert counts == {"record": len(records), "unreadable": len(got) - len(records)}


def test_the_counts_are_those_of_the_topic_kind_by_kind(
    source: Path, cluster: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """With faults too."""
    url = cluster.create_topic("events")
    flags = ("--id_field=id", "--inject=late:0.5,invalid:0,duplicate:0.5,future:0.5")
    assert run(source, url, "--speed=max", *flags) == OK
    counts = last_line(capsys.readouterr().out)
    got = read_topic(url)
    assert sum(counts.values()) == len(got)
    ids = Counter(each.json["id"] for each in got if each.data != b"no json")
    assert counts["late"] == sum(name.endswith("-late") for name in ids) > 0
    assert counts["future"] == sum(name.endswith("-future") for name in ids) > 0
    assert counts["duplicate"] == ids.total() - len(ids) > 0
    assert counts["invalid"] == 0


def test_the_same_seed_sends_the_same_messages(source: Path, fake: FakeWriter) -> None:
    """Run by run; without one, too."""
    sent = []
    for flags in ([], [], ["--seed=5"], ["--seed=5"]):
        fake.sent.clear()
        assert run(source, KAFKA, "--speed=max", "--inject=late:0.3,invalid:0.3", *flags) == OK
        sent.append(list(fake.sent))
    assert sent[0] == sent[1] != sent[2] == sent[3]


@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_no_more_than_the_limit_is_read(limit: int, source: Path, fake: FakeWriter) -> None:
    """Lines of the file; faults are beside them."""
    assert run(source, KAFKA, "--speed=max", f"--limit={limit}") == OK
    lines = source.read_bytes().splitlines()
    assert [each.data for each in fake.confirmed] == lines[:limit]


def test_a_compressed_file_is_read(source: Path, fake: FakeWriter, tmp_path: Path) -> None:
    """By its name."""
    packed = tmp_path / "events.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    assert run(packed, KAFKA, "--speed=max") == OK
    assert [each.data for each in fake.confirmed] == source.read_bytes().splitlines()


def test_a_byte_order_mark_is_no_part_of_a_line(
    source: Path, fake: FakeWriter, tmp_path: Path
) -> None:
    """As for the job itself."""
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    assert run(marked, KAFKA, "--speed=max") == OK
    assert [each.data for each in fake.confirmed] == source.read_bytes().splitlines()


def test_a_file_that_breaks_off_fails_the_command(
    source: Path, fake: FakeWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After its head was fine."""
    packed = tmp_path / "events.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes() * 100, mtime=0)[:-4])
    assert run(packed, KAFKA, "--speed=max") == FAILED
    assert "failed:" in capsys.readouterr().err
    assert fake.closed


def test_a_stream_from_now_begins_now(
    source: Path, fake: FakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the file's day is."""
    now = T0 / 1000 + 1_000_000.5
    monkeypatch.setattr("time.time", lambda: now)
    assert run(source, KAFKA, "--speed=max", "--now") == OK
    times = [json.loads(each.data)["event_time"] for each in fake.confirmed[:-1]]
    assert 0 <= now * 1000 - times[0] < 1000
    assert times == [times[0] + 1000 * i for i in range(len(times))]


def test_a_signal_ends_the_stream_in_good_order(
    source: Path, fake: FakeWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent is confirmed and counted; the exit code says that it is not all."""
    send = fake._send

    def send_and_interrupt(message: Message) -> None:
        send(message)
        if len(fake.sent) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    fake._send = send_and_interrupt  # type: ignore[method-assign]
    before = signal.getsignal(signal.SIGTERM)
    assert run(source, KAFKA, "--speed=max") == INTERRUPTED
    assert len(fake.confirmed) == len(fake.sent) < 60
    assert last_line(capsys.readouterr().out)["record"] == len(fake.confirmed)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_does_not_wait_for_the_broker(
    source: Path, fake: FakeWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which may never answer."""

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(10)

    fake._flush = interrupt  # type: ignore[method-assign]
    assert run(source, KAFKA, "--speed=max") == INTERRUPTED
    assert "not all was confirmed" in capsys.readouterr().err


def test_a_broker_that_refuses_fails_the_command(
    source: Path, cluster: MockKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what had been confirmed before."""
    properties = tmp_path / "kafka.properties"
    properties.write_text("# small\nmessage.max.bytes = 1000\n")
    large = tmp_path / "large.jsonl"
    large.write_text(source.read_text() + json.dumps({"event_time": T0, "text": "x" * 2000}))
    url = cluster.create_topic("events")
    assert run(large, url, "--speed=max", f"--kafka_properties={properties}") == FAILED
    told = capsys.readouterr().err
    assert "bytes is too large; raise message.max.bytes" in told
    assert "0 messages had been confirmed" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--to=sqlite:///x"], "--to must be a topic"),
        (["--to=pubsub://projects/p/subscriptions/s"], "--to .*names a subscription"),
        (["--to="], "--to is required: pubsub://"),
        (["--input="], "--input is required"),
        (["--input=/no/such"], "--input '/no/such' cannot be read: .*give one local file"),
        (["--speed=0"], "--speed must be a number above 0 or max, got '0'"),
        (["--speed=inf"], "--speed must be"),
        (["--speed=fast"], "--speed must be"),
        (["--limit=0"], "--limit must be a whole number of at least 1, got '0'"),
        (["--seed=x"], "--seed must be a whole number of at least 0, got 'x'"),
        (["--inject=lost"], "--inject must be of late"),
        (["--time_field=at"], "--time_field"),
        (["--time_unit=h"], "--time_unit"),
        (["--time_unit=s"], "--time_unit"),
        (["--kafka_properties=x"], "--kafka_properties 'x' cannot be read"),
        ([f"--to={PUBSUB}", "--kafka_properties=x"], "--kafka_properties has no meaning"),
        (["--sped=1"], "unknown flag '--sped=1'; did you mean --speed"),
        (["--runner=PrismRunner"], "unknown flag"),
        (["--speed"], "expected one argument"),
    ],
)
def test_a_wrong_flag_is_told_and_nothing_is_sent(
    flags: list[str],
    told: str,
    source: Path,
    fake: FakeWriter,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The flag, the value, the rule and the remedy."""
    assert run(source, KAFKA, *flags) == MISUSED
    printed = capsys.readouterr().err
    assert re.match(f"beam-lateness publish: error: .*{told}", printed)
    assert fake.sent == []


def test_a_topic_that_does_not_exist_is_told_and_not_made(
    source: Path, cluster: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent."""
    assert run(source, f"kafka://{cluster.bootstrap}/none") == MISUSED
    assert "--to: kafka://" in (told := capsys.readouterr().err)
    assert "the topic does not exist" in told
    assert cluster.topics() == set()


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """And the usage lists the command."""
    assert cli.main(["publish", "--help"]) == OK
    printed = capsys.readouterr().out
    flags = set(publish.PublishOptions()._option_string_actions)
    assert flags <= set(re.findall(r"--?\w+", printed))
    assert cli.main([]) == OK
    assert "publish" in capsys.readouterr().out


class Clock:
    """A clock that goes on only when it is waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds


class Stamped(FakeWriter):
    """Notes when each message was sent."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.at: list[float] = []
        self._clock = clock

    def _send(self, message: Message) -> None:
        super()._send(message)
        self.at.append(self._clock.now)


def item(clock_ms: int | None, event_time_ms: int | None = None, kind: str = RECORD) -> Item:
    """Makes an item."""
    return Item(kind, b"{}", None, event_time_ms, clock_ms)


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_a_stream_is_paced_by_its_largest_event_time(speed: float) -> None:
    """What is behind it goes out at once."""
    clock = Clock()
    writer = Stamped(clock)
    offsets_s = [0, 0, 10, 10, 3600, 3600]
    publisher = Publisher(
        writer, speed, threading.Event(), keyed=True, clock=clock, wait=clock.wait
    )
    publisher.run(item(T0 + 1000 * s) for s in offsets_s)
    assert writer.at == pytest.approx([s / speed for s in offsets_s])


def test_what_was_sent_is_confirmed_before_a_long_wait() -> None:
    """So that a broker's refusal is told then, and not an hour later."""
    clock = Clock()
    writer = FakeWriter(fail_at=1)
    publisher = Publisher(writer, 1.0, threading.Event(), keyed=True, clock=clock, wait=clock.wait)
    with pytest.raises(PublishError):
        publisher.run([item(T0), item(T0 + 3_600_000)])
    assert clock.now == 0


def test_a_long_stream_is_confirmed_in_parts() -> None:
    """It does not pile up in memory."""
    writer = FakeWriter(fail_at=2)
    publisher = Publisher(writer, None, threading.Event(), keyed=True)
    with pytest.raises(PublishError):
        publisher.run(item(T0) for _ in range(3 * MESSAGES_AT_ONCE))
    assert publisher.confirmed == len(writer.confirmed) == MESSAGES_AT_ONCE


def test_a_stream_that_is_told_to_stop_while_it_waits_stops() -> None:
    """Without what was not due."""
    stop, writer, clock = threading.Event(), FakeWriter(), Clock()

    def wait(_: float) -> None:
        stop.set()

    Publisher(writer, 1.0, stop, keyed=True, clock=clock, wait=wait).run([item(T0), item(T0 + 500)])
    assert len(writer.confirmed) == len(writer.sent) == 1


def test_a_kafka_timestamp_is_the_event_time_or_the_time_of_sending() -> None:
    """The latter for lines without one, and for those a year ahead, which brokers refuse."""
    stamps = [
        message_of(each, keyed=True).timestamp_ms
        for each in (item(T0, T0 - 5), item(T0), item(None), item(T0, T0 + YEAR, FUTURE))
    ]
    assert stamps == [T0 - 5, T0, None, T0]


@pytest.mark.live
def test_a_pubsub_message_has_its_event_time_as_an_attribute(
    source: Path,
    pubsub_server: PubsubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And no ordering key; what has no event time has none."""
    for name, value in pubsub_server.environment.items():
        monkeypatch.setenv(name, value)
    topic = f"projects/p/topics/t-{uuid.uuid4().hex}"
    pubsub_server.create_topic(topic)
    assert run(source, f"pubsub://{topic}", "--speed=max", "--key_field=key") == OK
    got = [each for each in pubsub_server.messages() if each["topic"] == topic]
    assert len(got) == sum(last_line(capsys.readouterr().out).values())
    assert {each["data"] for each in got} == set(source.read_bytes().splitlines())
    for each in got:
        known = each["data"] != b"no json"
        wanted = {"event_time_ms": str(json.loads(each["data"])["event_time"])} if known else {}
        assert each["attributes"] == wanted
        assert each["ordering_key"] == ""

"""`PublishPanes` and `PublishDeadLetters`: each element is a message, confirmed or told."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from beam_lateness import InvalidRecord, Pane, TooLateRecord
from beam_lateness.transforms.sinks import topics
from beam_lateness.transforms.sinks.dead_letters import dead_letter
from beam_lateness.transforms.sinks.topic_messages import (
    MESSAGES_AT_ONCE,
    Message,
    PublishError,
)
from beam_lateness.transforms.sinks.topics import (
    PublishDeadLetters,
    PublishPanes,
    _Publish,
    letter_message,
    pane_message,
)
from tests.cases.engine import direct_pipeline
from tests.topics import FakeWriter, MockKafka, read_topic

RUN = "run-1"
TOO_LATE = TooLateRecord("a", 5, 30_000, 0, 60_000, 200_000, 20_000, "f", 120, "f:120", b"{}")
INVALID = InvalidRecord("malformed_json", "no object", "f", 240, "f:240", b"\xff{")


def pane(key: Any = "a", start: int = 0, value: Any = 1, index: int = 0) -> Pane:
    """Makes a pane of a minute."""
    return Pane(key, start, start + 60_000, value, index + 1, index, "LATE" if index else "ON_TIME")


class Keep:
    """A `written` hook that appends what it is told to a file, a call a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, elements: Sequence[Any]) -> None:
        with self._path.open("a") as file:
            file.write(pickle.dumps(list(elements)).hex() + "\n")

    def calls(self) -> list[list[Any]]:
        """What it was told."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [pickle.loads(bytes.fromhex(line)) for line in lines]


def test_the_payload_of_a_pane_holds_all_of_it_and_the_run() -> None:
    """Field by field."""
    each = Pane("a", -60_000, 0, 7, 3, 2, "LATE")
    assert json.loads(pane_message(each, RUN).data) == {
        "key": each.key,
        "window_start_ms": each.window_start,
        "window_end_ms": each.window_end,
        "value": each.value,
        "count": each.count,
        "pane_index": each.index,
        "timing": each.timing,
        "run": RUN,
    }


@pytest.mark.parametrize("key", ["a", 7, ("a", 7)], ids=repr)
def test_the_attributes_of_a_pane_repeat_its_payload_as_text(key: Any) -> None:
    """All but value and count; text stays as it is, and all else is its JSON."""
    message = pane_message(pane(key), RUN)
    payload = json.loads(message.data)
    assert dict(message.attributes) == {
        name: each if isinstance(each, str) else json.dumps(each, separators=(",", ":"))
        for name, each in payload.items()
        if name not in ("value", "count")
    }


def test_panes_of_a_key_and_window_share_a_kafka_key_and_no_others_do() -> None:
    """Compaction keeps the last one of each; 1 and "1" are different keys."""
    cells = [(key, start) for key in ("1", 1, ("1", 1)) for start in (0, 60_000)]
    keys = {
        cell: {pane_message(pane(*cell, index=i), RUN, kafka=True).key for i in range(3)}
        for cell in cells
    }
    assert all(len(each) == 1 for each in keys.values())
    assert len(set[bytes | None]().union(*keys.values())) == len(cells)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("beyond", [False, True])
def test_a_number_that_json_has_not_is_text(value: float, beyond: bool) -> None:
    """Beside an integer that only one of the encoders takes, too."""
    message = pane_message(pane(value={"x": value, "n": 2**80 if beyond else 1}), RUN)
    assert json.loads(message.data)["value"]["x"] == str(value)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (2**70, 2**70),
        ({"sum": 2, "mean": 0.5}, {"sum": 2, "mean": 0.5}),
        ({("a", 1): 2}, {'["a",1]': 2}),
        ([3, (1, 2)], [3, [1, 2]]),
        (np.int64(7), 7),
        (np.float64(0.5), 0.5),
        (True, True),
        (None, None),
    ],
    ids=repr,
)
def test_a_value_comes_through_json_whole(value: Any, wanted: Any) -> None:
    """Several aggregates, and what a function of the user's may give."""
    read = json.loads(pane_message(pane(value=value), RUN).data)["value"]
    assert (read, type(read)) == (wanted, type(wanted))


def test_a_key_with_a_lone_surrogate_is_still_utf_8() -> None:
    """As its escape: no broker takes it otherwise."""
    message = pane_message(pane("\ud800"), RUN)
    assert message.attributes["key"] == "\\ud800"
    assert json.loads(message.data)["key"] == "\ud800"


@pytest.mark.parametrize("record", [TOO_LATE, INVALID])
def test_the_payload_of_a_dead_letter_is_its_json(record: Any) -> None:
    """Every field that the file of dead letters has."""
    assert json.loads(letter_message(record, RUN).data) == dead_letter(record)


@pytest.mark.parametrize(
    "record", [TOO_LATE, INVALID, INVALID._replace(record_id=None), TOO_LATE._replace(key=None)]
)
def test_the_attributes_of_a_dead_letter_are_what_is_known(record: Any) -> None:
    """Its id is the Kafka key, where it has one."""
    letter = dead_letter(record)
    names = ("reason", "record_id", "key", "window_start_ms")
    known = {name: str(letter[name]) for name in names if letter[name] is not None}
    message = letter_message(record, RUN)
    assert dict(message.attributes) == {"run": RUN, **known}
    assert message.key == (record.record_id.encode() if record.record_id else None)


def test_every_pane_is_a_message_that_the_broker_has(cluster: MockKafka, tmp_path: Path) -> None:
    """With key, headers and payload; `written` is told of just these."""
    url, panes = cluster.create_topic("panes"), [pane(value=i, index=i) for i in range(3)]
    keep = Keep(tmp_path / "written")
    with direct_pipeline() as pipeline:
        _ = pipeline | beam.Create(panes) | PublishPanes(url, RUN, written=keep)
    got = read_topic(url)
    wanted = [pane_message(each, RUN, kafka=True) for each in panes]
    assert sorted(each.data for each in got) == sorted(each.data for each in wanted)
    assert {each.key for each in got} == {each.key for each in wanted}
    assert len({each.partition for each in got}) == 1
    for each in got:
        same = [message for message in wanted if message.data == each.data]
        assert each.headers == dict(same[0].attributes)
        assert "key" not in each.headers
    assert sorted(each for call in keep.calls() for each in call) == panes


def test_every_dead_letter_is_a_message_that_the_broker_has(
    cluster: MockKafka, tmp_path: Path
) -> None:
    """Of both kinds."""
    url, keep = cluster.create_topic("letters"), Keep(tmp_path / "written")
    with direct_pipeline() as pipeline:
        records = pipeline | beam.Create([TOO_LATE, INVALID])
        _ = records | PublishDeadLetters(url, RUN, written=keep)
    wanted = {each.record_id: dead_letter(each) for each in (TOO_LATE, INVALID)}
    assert {str(each.json["record_id"]): each.json for each in read_topic(url)} == wanted
    assert {each.record_id for call in keep.calls() for each in call} == set(wanted)


def test_a_pane_that_is_too_large_fails_its_bundle(cluster: MockKafka, tmp_path: Path) -> None:
    """With its size and the remedy, and nothing is told as written."""
    url, keep = cluster.create_topic("panes"), Keep(tmp_path / "written")
    large = pane(value="x" * 2_000_000)
    told = r"2,000,\d+ bytes is too large; raise message.max.bytes"
    with pytest.raises(Exception, match=told), direct_pipeline() as pipeline:
        _ = pipeline | beam.Create([large]) | PublishPanes(url, RUN, written=keep)
    assert keep.calls() == []


@pytest.mark.parametrize("sink", [PublishPanes, PublishDeadLetters])
def test_a_topic_that_does_not_exist_is_told_at_construction(sink: Any, cluster: MockKafka) -> None:
    """And not made by asking."""
    with pytest.raises(ValueError, match=r"\(--\w+\): kafka://.*/none: the topic does not exist"):
        sink(f"kafka://{cluster.bootstrap}/none", RUN)
    assert cluster.topics() == set()


def test_a_password_is_not_shown(cluster: MockKafka) -> None:
    """By the transform's own text."""
    url = cluster.create_topic("panes")
    assert "secret" not in repr(PublishPanes(url, RUN, {"sasl.password": "secret"}))


class Bundles:
    """Runs bundles through the DoFn of the sinks, with fake writers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *writers: FakeWriter) -> None:
        self.writers = list(writers)
        self.opened: list[FakeWriter] = []
        self.told: list[list[Any]] = []
        monkeypatch.setattr(topics, "open_writer", self._open)
        self._dofn = _Publish("fake", {}, self._encode, self._tell)

    def _open(self, *_: Any) -> FakeWriter:
        self.opened.append(self.writers.pop(0))
        return self.opened[-1]

    def _tell(self, elements: Sequence[Any]) -> None:
        self.told.append(list(elements))

    @staticmethod
    def _encode(element: int) -> Message:
        return Message(str(element).encode(), None, {})

    def run(self, elements: Sequence[int], finish: bool = True) -> None:
        """Runs a bundle; `finish` is false for one that another step fails."""
        self._dofn.start_bundle()
        for element in elements:
            self._dofn.process(element)
        if finish:
            self._dofn.finish_bundle()

    def end(self) -> None:
        """Ends the worker."""
        self._dofn.teardown()


def test_written_is_called_after_the_broker_and_with_what_it_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call each 5,000 elements, and one at the bundle's end; none without elements."""
    bundles = Bundles(monkeypatch, writer := FakeWriter())
    elements = list(range(2 * MESSAGES_AT_ONCE + 1))
    bundles.run(elements)
    bundles.run([])
    assert [len(each) for each in bundles.told] == [MESSAGES_AT_ONCE, MESSAGES_AT_ONCE, 1]
    assert [each for call in bundles.told for each in call] == elements
    assert writer.confirmed == writer.sent
    assert writer.flushes == len(bundles.told)


def test_a_bundle_without_elements_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most bundles of dead letters are such."""
    bundles = Bundles(monkeypatch, FakeWriter())
    bundles.run([])
    assert bundles.opened == []


def test_after_a_failure_nothing_is_told_and_the_next_bundle_has_a_new_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine repeats the bundle, whole."""
    bundles = Bundles(monkeypatch, broken := FakeWriter(fail_at=1), fresh := FakeWriter())
    with pytest.raises(PublishError):
        bundles.run([1, 2])
    assert bundles.told == []
    assert broken.closed
    bundles.run([1, 2])
    assert bundles.told == [[1, 2]]
    assert len(fresh.confirmed) == len(bundles.told[0])


def test_what_another_step_failed_is_never_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages may arrive: a repeated bundle writes again."""
    bundles = Bundles(monkeypatch, first := FakeWriter(), FakeWriter())
    bundles.run([1], finish=False)
    bundles.run([2])
    assert bundles.told == [[2]]
    assert first.closed


def test_the_writer_is_closed_with_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it was opened."""
    bundles = Bundles(monkeypatch, writer := FakeWriter())
    bundles.run([1])
    bundles.end()
    assert writer.closed

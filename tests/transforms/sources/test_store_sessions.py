"""`StoreSession`: acknowledges what the store has, and holds the watermark while a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_lateness import Pane, Windows
from beam_lateness.transforms.commits.checkpoints import Checkpoints
from beam_lateness.transforms.commits.in_flight import InFlight
from beam_lateness.transforms.sources.sessions import StoreSession
from beam_lateness.transforms.watermarks.estimator import GroupState, exclusive
from tests.model import Event
from tests.transforms.sources.broker import ZERO, Broker
from tests.transforms.sources.memory import Stamped, stamped, watermark_of

WINDOWS = Windows("10ms")


class Job:
    """A run of a job on a broker: a session, and what is in flight of it."""

    def __init__(self, broker: Broker, path: Path, run: str = "run-1") -> None:
        self.checkpoints = Checkpoints(f"sqlite:///{path}")
        self.in_flight = InFlight(
            broker.source_id, run, WINDOWS, self.checkpoints, True, True, clock=broker.clock
        )
        positions = broker.initial_positions()
        before = self.in_flight.restored
        state = GroupState()
        if before is not None:
            for name, split in before.splits.items():
                positions[name] = positions[name]._replace(offset=split.resume)
            state = GroupState(self.in_flight.watermark_ms - exclusive(0))
        self.in_flight.begin({name: position.offset for name, position in positions.items()})
        reader = broker.group(ZERO).open(positions, state, hold=before is not None)
        self.session = StoreSession(reader, self.in_flight)

    def store(self, end: int, count: int) -> None:
        """Tells of a pane in the store."""
        self.in_flight.panes_stored([Pane("k", end - 10, end, 0, count, 0, "ON_TIME")])


def record(ts: int) -> Event:
    """A record named by its time."""
    return Event("k", 1, ts, str(ts))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the checkpoint is."""
    return tmp_path / "db"


def test_a_record_is_acknowledged_by_the_poll_after_its_window_was_stored(path: Path) -> None:
    """Neither when it is read, nor when its window is closed."""
    broker = Broker("a", ids=True)
    job = Job(broker, path)
    broker.publish("a", record(3), record(15))
    assert len(stamped([job.session.poll()])) == 2
    job.session.poll()
    assert broker.acknowledged() == {}
    job.store(10, 1)
    assert broker.acknowledged() == {}
    job.session.poll()
    assert broker.acknowledged() == {"a": ["a0"]}


def test_what_could_not_be_acknowledged_is_tried_again(path: Path) -> None:
    """At the next poll, once."""
    broker = Broker("a", ids=True)
    job = Job(broker, path)
    broker.publish("a", record(3), record(15))
    job.session.poll()
    job.store(10, 1)
    broker.deaf = True
    job.session.poll()
    broker.deaf = False
    job.session.poll()
    job.session.poll()
    assert broker.acknowledged() == {"a": ["a0"]}


def test_a_session_that_ends_settles_what_is_stored_and_is_clean(path: Path) -> None:
    """The readers are closed after that."""
    broker = Broker("a", ids=True)
    job = Job(broker, path)
    broker.publish("a", record(3), record(15))
    job.session.poll()
    job.store(10, 1)
    job.session.close()
    assert broker.acknowledged() == {"a": ["a0"]}
    assert broker.open_readers == []
    kept = job.checkpoints.load(broker.source_id)
    assert kept is not None
    assert (kept.clean, kept.watermark_ms) == (True, 15)


def crashed(broker: Broker, path: Path) -> None:
    """A run that has settled the first window, read more, and died."""
    job = Job(broker, path)
    broker.publish("a", record(3), record(15), record(32), record(21))
    broker.publish("b", record(30))
    job.session.poll()
    job.store(10, 1)
    broker.clock.now_s += 2
    job.in_flight.commit()
    assert job.in_flight.watermark_ms == 19  # the window [10, 20) is not in the store


def test_the_watermark_stands_until_all_has_been_read_again(path: Path) -> None:
    """Nothing that was in flight is late for that; then the watermark is as it was."""
    broker = Broker("a", "b")
    crashed(broker, path)
    job = Job(broker, path, "run-2")
    assert job.session.reader.holds
    poll = job.session.poll()
    assert watermark_of(poll) == 19
    assert {record.name: record.stamp for record in stamped([poll])} == dict.fromkeys(
        ("15", "32", "21", "30"), 19
    )
    assert not job.session.reader.holds
    assert watermark_of(job.session.poll()) == 30


def test_one_split_that_is_behind_holds_the_watermark(path: Path) -> None:
    """Whatever the others have read, and whatever comes new."""
    broker = Broker("a", "b")
    crashed(broker, path)
    lost = broker.payloads.pop("b")
    broker.payloads["b"] = []
    job = Job(broker, path, "run-2")
    broker.publish("a", record(99))
    assert watermark_of(job.session.poll()) == 19
    assert job.session.reader.holds
    broker.payloads["b"] = lost
    job.session.poll()
    assert not job.session.reader.holds


def test_settled_records_that_come_again_are_left_out_and_acknowledged(path: Path) -> None:
    """They count nowhere; the first run died before it could acknowledge them."""
    broker = Broker("a", "b", ids=True)
    crashed(broker, path)
    job = Job(broker, path, "run-2")
    poll = job.session.poll()
    assert {record.name for record in stamped([poll])} == {"15", "32", "21", "30"}
    job.session.poll()
    assert broker.acknowledged() == {"a": ["a0"]}


def test_a_first_run_holds_nothing(path: Path) -> None:
    """There is nothing to come again."""
    broker = Broker("a")
    job = Job(broker, path)
    broker.publish("a", record(3))
    job.session.poll()
    assert watermark_of(job.session.poll()) == 3


def test_a_run_that_ends_before_all_has_come_again_is_not_clean(path: Path) -> None:
    """What the run before it held is not given back yet: the next one must wait for that too."""
    broker = Broker("a", "b")
    crashed(broker, path)
    broker.payloads["b"] = []
    job = Job(broker, path, "run-2")
    job.session.poll()
    job.session.close()
    kept = job.checkpoints.load(broker.source_id)
    assert kept is not None
    assert not kept.clean


def test_a_reader_that_holds_stamps_every_record_with_where_it_stands() -> None:
    """And goes on from what it has read when the hold ends."""
    broker = Broker("a")
    reader = broker.group().open(None, GroupState(9), hold=True)
    broker.publish("a", record(50), record(60))
    poll = reader.poll()
    assert stamped([poll]) == [Stamped("a", "50", 50, 10), Stamped("a", "60", 60, 10)]
    assert poll.state.watermark_ms == 9
    reader.end_hold()
    broker.publish("a", record(61))
    assert stamped([reader.poll()]) == [Stamped("a", "61", 61, 60)]


def test_a_hold_does_not_outlast_its_end() -> None:
    """It is no part of the state that is kept."""
    broker = Broker("a")
    reader = broker.group().open(None, GroupState(9), hold=True)
    broker.publish("a", record(50))
    state = reader.poll().state
    assert not broker.group().open(reader.positions, state).holds

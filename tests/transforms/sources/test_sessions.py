"""Sessions: when a live input is told that its records are done with, and who may open it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.batch import POSITION, EventBatch
from beam_lateness.transforms.sources.connector import AcknowledgingConnector, SplitPosition
from beam_lateness.transforms.sources.restriction import Restriction
from beam_lateness.transforms.sources.sessions import (
    EngineSession,
    Session,
    close_sessions,
    open_sessions,
    session_of,
)
from tests.model import Event, Marker
from tests.transforms.sources.broker import MARKED, Broker
from tests.transforms.sources.memory import at


@pytest.fixture(autouse=True)
def sessions() -> Iterator[None]:
    """No session of another test."""
    close_sessions()
    open_sessions()
    yield
    close_sessions()
    open_sessions()


def engine_session(broker: Broker) -> EngineSession:
    """A session for an engine that keeps what it has finalized."""
    return EngineSession(broker.group().open())


def test_the_broker_in_memory_is_a_connector_of_the_kind() -> None:
    """The tests below are of the protocol."""
    assert isinstance(Broker("a"), AcknowledgingConnector)


def test_a_poll_is_acknowledged_one_finalization_later() -> None:
    """When a poll that began after its finalization is finalized too."""
    broker = Broker("a", ids=True)
    session = engine_session(broker)
    finalizers = []
    for number in range(3):
        broker.publish("a", at("a", number))
        session.poll()
        finalizers.append(session.finalizer())
    finalizers[0]()
    finalizers[1]()
    finalizers[2]()
    assert broker.acknowledged() == {}  # all three began before any was finalized
    broker.publish("a", at("a", 3))
    session.poll()
    assert broker.acknowledged() == {}
    session.finalizer()()
    assert broker.acknowledged() == {"a": ["a0", "a1", "a2"]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.just(0), st.integers(1, 12)), max_size=30))
def test_an_engine_may_finalize_in_any_order_and_twice(steps: list[int]) -> None:
    """Against the rule told poll by poll; 0 is a poll, other numbers finalize that one."""
    broker = Broker("a", ids=True)
    session = engine_session(broker)
    finalizers: dict[int, Callable[[], None]] = {}
    began_after: dict[int, int] = {}
    finalized = kept = 0
    for step in steps:
        if step == 0:
            number = len(finalizers) + 1
            broker.publish("a", at("a", number))
            began_after[number] = finalized
            session.poll()
            finalizers[number] = session.finalizer()
        elif step in finalizers:
            finalizers[step]()
            finalized = max(finalized, step)
            kept = max(kept, began_after[step])
        wanted = [f"a{number}" for number in range(kept)]
        assert broker.acknowledged().get("a", []) == wanted


def finalized(session: EngineSession, polls: int = 1) -> None:
    """Polls and finalizes, one after the other."""
    for _ in range(polls):
        session.poll()
        session.finalizer()()


def test_markers_and_what_is_no_record_are_acknowledged_too() -> None:
    """They have been read like the others."""
    broker = Broker("a", ids=True)
    session = EngineSession(broker.group(MARKED).open())
    broker.publish("a", Event("k", 1, 5, "x"), b"{", Marker(9))
    finalized(session, 2)
    assert {split: set(ids) for split, ids in broker.acknowledged().items()} == {
        "a": {"a0", "a1", "a2"}
    }


def test_offsets_are_acknowledged_up_to_where_the_poll_ended() -> None:
    """Of every split."""
    broker = Broker("a", "b")
    session = engine_session(broker)
    broker.publish("a", at("a", 0), at("a", 1))
    broker.publish("b", at("b", 0))
    session.poll()
    session.finalizer()()
    broker.publish("a", at("a", 2))
    finalized(session)
    assert {told.split: told.resume for told in broker.told} == {"a": 2, "b": 1}


def test_a_split_that_appears_later_does_not_hinder_the_acknowledgement() -> None:
    """A new partition: the poll before it knew nothing of it."""
    broker = Broker("a", ids=True)
    session = engine_session(broker)
    broker.publish("a", at("a", 0))
    finalized(session)
    broker.publish("b", at("b", 0))
    finalized(session)
    assert broker.acknowledged() == {"a": ["a0"]}
    finalized(session)
    assert broker.acknowledged() == {"a": ["a0"], "b": ["b0"]}


def test_what_an_engine_session_could_not_acknowledge_is_tried_again() -> None:
    """Else the message is held for as long as the job lives, and comes again after that."""
    broker = Broker("a", ids=True)
    session = engine_session(broker)
    broker.publish("a", at("a", 0))
    broker.deaf = True
    finalized(session, 2)
    broker.deaf = False
    finalized(session, 2)
    assert broker.acknowledged() == {"a": ["a0"]}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=12)
)
def test_what_comes_again_after_a_checkpoint_is_given_once(
    steps: list[tuple[int, bool, bool]],
) -> None:
    """The engine goes back to its last checkpoint; the broker sends what is not acknowledged.

    A step publishes messages and reads them; then the engine keeps that or not, and dies or not.
    """
    broker = Broker("a", ids=True)
    session = engine_session(broker)
    kept: tuple[list[str], dict[str, SplitPosition], dict[str, list[str]]] = ([], {}, {})
    given_ids: list[str] = []
    published = 0
    for count, keeps, dies in steps:
        for _ in range(count):
            broker.publish("a", at("a", published))
            published += 1
        given_ids += ids_of(session.poll().batches)
        if keeps:
            kept = (list(given_ids), session.positions, session.unacknowledged())  # type: ignore[assignment]
            session.finalizer()()
        if dies:
            session.close()
            given_ids = list(kept[0])
            positions = kept[1] or None
            session = EngineSession(broker.group().open(positions), kept[2])
    for _ in range(3):
        given_ids += ids_of(session.poll().batches)
        session.finalizer()()
    assert sorted(given_ids) == sorted(f"a{number}" for number in range(published))
    assert sorted(broker.acknowledged()["a"]) == sorted(f"a{n}" for n in range(published))


def ids_of(batches: Sequence[EventBatch]) -> list[str]:
    """The positions of records, which are the broker's ids."""
    return [each for batch in batches for each in batch.columns.column(POSITION).to_pylist()]


def opened(broker: Broker) -> Callable[[], Session]:
    """Opens a session at the start."""
    return lambda: engine_session(broker)


def test_a_session_that_stands_where_the_engine_wants_is_gone_on_with() -> None:
    """By whichever copy of the DoFn asks."""
    broker = Broker("a")
    session = session_of("one", Restriction(broker.initial_positions()), opened(broker))
    broker.publish("a", at("a", 0))
    positions = session.poll().positions
    assert session_of("one", Restriction(positions), opened(broker)) is session
    assert session.positions == positions


def test_a_session_that_stands_elsewhere_is_closed_and_opened_again() -> None:
    """The engine has gone back to a checkpoint of its own."""
    broker = Broker("a")
    start = Restriction(broker.initial_positions())
    session = session_of("one", start, opened(broker))
    broker.publish("a", at("a", 0))
    session.poll()
    other = session_of("one", start, opened(broker))
    assert other is not session
    assert broker.open_readers == []
    assert len(other.poll().batches) == 1
    assert broker.open_readers == ["a"]


def test_each_input_has_its_own_session() -> None:
    """By its name."""
    one, two = Broker("a"), Broker("a")
    first = session_of("one", Restriction(one.initial_positions()), opened(one))
    assert session_of("two", Restriction(two.initial_positions()), opened(two)) is not first


def test_sessions_that_were_closed_give_back_what_they_hold_and_stay_closed() -> None:
    """The job is over: an engine that asks once more is refused, until the next job."""
    broker = Broker("a")
    start = Restriction({"a": SplitPosition()})
    session_of("one", start, opened(broker)).poll()
    close_sessions()
    assert broker.open_readers == []
    with pytest.raises(RuntimeError, match="job is over"):
        session_of("one", start, opened(broker))
    close_sessions()
    open_sessions()
    session_of("one", start, opened(broker)).poll()
    assert broker.open_readers == ["a"]

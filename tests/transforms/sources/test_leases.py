"""Leases: a message that comes again is no new one, and its latest lease is the one that counts."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.leases import Leases


class Message(NamedTuple):
    """A message of Pub/Sub, as far as leases look."""

    message_id: str


class Received(NamedTuple):
    """A delivery of it."""

    message: Message
    ack_id: str


def received(*deliveries: tuple[str, str]) -> list[Received]:
    """Deliveries of (message id, ack id)."""
    return [Received(Message(name), ack_id) for name, ack_id in deliveries]


def take(leases: Leases, *deliveries: tuple[str, str]) -> list[str]:
    """Takes deliveries; gives the ids of the new messages."""
    return [message.message_id for message in leases.take(received(*deliveries))]


def test_a_message_is_new_once_while_it_is_held() -> None:
    """However often it comes, in one answer or in several."""
    leases = Leases(10)
    assert take(leases, ("m", "1"), ("n", "2"), ("m", "3")) == ["m", "n"]
    assert take(leases, ("n", "4")) == []
    assert len(leases) == 2


def test_the_latest_lease_is_extended_and_acknowledged() -> None:
    """An older one may not count any more."""
    leases = Leases(10)
    take(leases, ("m", "1"), ("n", "2"), ("m", "3"))
    assert set(leases.ack_ids()) == {"2", "3"}
    assert leases.ack_ids_of(["m"]) == ["3"]


def test_an_acknowledged_message_is_held_no_more() -> None:
    """Its lease is not extended."""
    leases = Leases(10)
    take(leases, ("m", "1"), ("n", "2"))
    leases.end(["m"])
    assert (len(leases), leases.ack_ids()) == (1, ["2"])


def test_an_acknowledged_message_that_comes_again_is_acknowledged_again() -> None:
    """With whatever is acknowledged next, once, and not read."""
    leases = Leases(10)
    take(leases, ("m", "1"))
    leases.end(["m"])
    assert take(leases, ("m", "2")) == []
    assert leases.ack_ids() == []
    assert leases.ack_ids_of([]) == ["2"]
    leases.end([])
    assert leases.ack_ids_of([]) == []


def test_until_the_service_was_told_what_came_again_is_kept() -> None:
    """Asking for the ack ids is not telling it."""
    leases = Leases(10)
    take(leases, ("m", "1"))
    leases.end(["m"])
    take(leases, ("m", "2"))
    assert leases.ack_ids_of([]) == leases.ack_ids_of([]) == ["2"]


def test_only_the_latest_acknowledged_messages_are_remembered() -> None:
    """The one that was acknowledged first is forgotten first."""
    leases = Leases(2)
    take(leases, ("a", "1"), ("b", "2"), ("c", "3"))
    leases.end(["b", "a", "c"])
    assert take(leases, ("a", "4"), ("c", "5"), ("b", "6")) == ["b"]


def test_a_message_that_is_not_held_is_not_acknowledged() -> None:
    """It was of an earlier run: there is no lease to acknowledge it by, and none to remember."""
    leases = Leases(10)
    assert leases.ack_ids_of(["m"]) == []
    leases.end(["m"])
    assert take(leases, ("m", "1")) == ["m"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "end"]), st.lists(st.sampled_from("abcdef"), max_size=4)),
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 3))
def test_leases_are_those_of_a_list(steps: list[tuple[str, list[str]]], remembered: int) -> None:
    """Held and remembered messages as plain lists."""
    leases = Leases(remembered)
    held: dict[str, str] = {}
    ended: list[str] = []
    for number, (step, names) in enumerate(steps):
        if step == "take":
            deliveries = [(name, f"{number}-{i}") for i, name in enumerate(names)]
            new = [name for name in dict.fromkeys(names) if name not in (*held, *ended)]
            assert take(leases, *deliveries) == new
            held |= {name: ack for name, ack in deliveries if name not in ended}
        else:
            own = [held[name] for name in names if name in held]
            assert leases.ack_ids_of(names)[: len(own)] == own
            leases.end(names)
            ended += [name for name in dict.fromkeys(names) if name in held]
            ended = ended[len(ended) - remembered :] if len(ended) > remembered else ended
            for name in names:
                held.pop(name, None)
        assert set(leases.ack_ids()) == set(held.values())

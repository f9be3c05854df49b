"""The source on Flink, by hand: what its timer holds, and what its state keeps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.worker.bundle_processor import OutputTimer
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.beam_time import to_ms, to_timestamp
from beam_lateness.transforms.sources.deal import DealAndStay
from beam_lateness.transforms.sources.read_by_timer import KEPT_TAG, ReadByTimer, _set
from beam_lateness.transforms.sources.read_group import ReadGroup
from beam_lateness.transforms.sources.read_messages import ReadKept
from beam_lateness.transforms.sources.sessions import close_sessions, finalizer_of, open_sessions
from beam_lateness.transforms.sources.share import shares
from tests.transforms.sources.broker import Broker
from tests.transforms.sources.memory import at


class Cell:
    """A state cell."""

    def __init__(self) -> None:
        self.value: Any = None

    def read(self) -> Any:
        """Its value."""
        return self.value

    def write(self, value: bytes) -> None:
        """Takes bytes, as the engine does."""
        assert isinstance(value, bytes)
        self.value = value


class Bag:
    """A bag of state."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def read(self) -> list[bytes]:
        """What is in it."""
        return list(self.values)

    def add(self, value: bytes) -> None:
        """Takes bytes, as the engine does."""
        assert isinstance(value, bytes)
        self.values.append(value)

    def clear(self) -> None:
        """Empties it."""
        self.values.clear()


class Timer:
    """A timer, with the hold that Beam takes it with."""

    def __init__(self) -> None:
        self._input_timestamp: Timestamp | None = None
        self.at_s: float | None = None

    @property
    def hold_ms(self) -> int:
        """Its hold."""
        assert self._input_timestamp is not None
        return to_ms(self._input_timestamp)

    def set(self, at_s: float) -> None:
        """Sets it."""
        self.at_s = at_s


class Engine:
    """Runs a source, call by call, as a stateful step does, with what was kept."""

    def __init__(self, reading: ReadGroup) -> None:
        self.source = ReadByTimer(reading)
        self.cells = [Cell(), Cell(), Cell()]
        self.bag = Bag()
        self.timer = Timer()
        (dealt,) = shares(["a"], 1)
        process: Callable[..., None] = self.source.process
        process((0, dealt.encode()), *self.cells, self.timer)

    def fire(self) -> list[Any]:
        """Fires the timer."""
        read: Callable[..., Iterable[Any]] = self.source.read
        given = read(*self.cells, self.bag, self.timer)
        return list(given)

    def snapshot(self) -> tuple[Any, ...]:
        """What a checkpoint holds of it."""
        return [cell.value for cell in self.cells], self.bag.read(), self.timer.hold_ms

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Goes back to a checkpoint."""
        for cell, value in zip(self.cells, kept[0], strict=True):
            cell.value = value
        self.bag.values = list(kept[1])


def test_the_hold_is_the_watermark_of_the_group() -> None:
    """After each call; before the first it is the beginning of time."""
    broker = Broker("a")
    engine = Engine(ReadGroup(broker.group()))
    before = engine.timer.hold_ms
    broker.publish("a", at("a", 5), at("a", 9))
    engine.fire()
    assert before < engine.timer.hold_ms == 9000
    broker.publish("a", at("a", 7))
    engine.fire()
    assert engine.timer.hold_ms == 9000, "a watermark never goes back"


def test_a_call_that_found_nothing_is_followed_by_a_pause() -> None:
    """And others at once, or a backlog would be read at the pace of a silent topic."""
    broker = Broker("a")
    engine = Engine(ReadGroup(broker.group()))
    began = time.time()
    engine.fire()
    assert engine.timer.at_s is not None
    assert engine.timer.at_s > began


def test_what_is_kept_is_gone_on_with_by_another_process() -> None:
    """Positions and watermark are in the state, not in the step."""
    broker = Broker("a")
    engine = Engine(ReadGroup(broker.group()))
    broker.publish("a", at("a", 5))
    engine.fire()
    engine.source = ReadByTimer(ReadGroup(broker.group()))
    broker.publish("a", at("a", 3))
    (batch,) = engine.fire()
    assert batch.value.columns.column("position").to_pylist() == [1]
    assert engine.timer.hold_ms == 5000


def test_messages_are_acknowledged_by_what_the_step_behind_it_registers() -> None:
    """One finalization later."""
    close_sessions()
    open_sessions()
    broker = Broker("a", ids=True)
    engine = Engine(ReadKept(broker.group()))
    kept = []
    for number in range(2):
        broker.publish("a", at("a", number))
        outputs = engine.fire()
        (poll,) = [each.value for each in outputs if getattr(each, "tag", None) == KEPT_TAG]
        kept.append(poll)
        finalizer_of(*poll)()
    assert broker.acknowledged() == {"a": ["a0"]}
    assert all(isinstance(each, TaggedOutput) or each.value for each in outputs)
    close_sessions()
    open_sessions()


class Flink:
    """Checkpoints, and failures, of a source and of a step behind it.

    Args:
        broker: What is read.
    """

    def __init__(self, broker: Broker) -> None:
        self.engine = Engine(ReadKept(broker.group(), holds=True))
        self.given: list[str] = []  # the state of the step behind
        self.stamps: dict[str, set[int]] = {}  # all that it was ever given
        self._polls: list[tuple[str, int]] = []
        self._begun: tuple[Any, ...] | None = None
        self._kept = (self.engine.snapshot(), 0)

    def fire(self) -> None:
        """A call of the source."""
        for each in self.engine.fire():
            if isinstance(each, TaggedOutput):
                self._polls.append(each.value)
                continue
            for row in each.value.columns.to_pylist():
                self.given.append(row["position"])
                self.stamps.setdefault(row["position"], set()).add(row["watermark"])

    def begin_checkpoint(self) -> None:
        """Takes the state of both; one checkpoint at a time."""
        if self._begun is None:
            self._begun = self.engine.snapshot(), len(self.given)

    def complete_checkpoint(self) -> None:
        """Keeps it, and finalizes whatever bundles there were, those after it too."""
        if self._begun is not None:
            self._kept, self._begun = self._begun, None
            for poll in self._polls:
                finalizer_of(*poll)()
            self._polls.clear()

    def fail(self, *, dies: bool) -> None:
        """Goes back to the last checkpoint; the process dies with it or not."""
        if dies:
            close_sessions()
            open_sessions()
        self._polls.clear()
        self._begun = None
        self.engine.restore(self._kept[0])
        del self.given[self._kept[1] :]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["publish", "publish", "fire", "fire", "begin", "complete", "die", "fail"]),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_a_message_has_one_stamp_and_is_given_once_whatever_fails(
    steps: list[str], chance: random.Random
) -> None:
    """What comes again does so in any order; the step behind never has to take back a verdict."""
    close_sessions()
    open_sessions()
    broker = Broker("a", ids=True)
    broker.shuffle = chance
    flink, published = Flink(broker), 0
    for step in [*steps, *["fire", "begin", "complete"] * 4, "fire"]:
        if step == "publish":
            broker.publish("a", at("a", chance.randint(0, 9)))
            published += 1
        elif step == "fire":
            flink.fire()
        elif step == "begin":
            flink.begin_checkpoint()
        elif step == "complete":
            flink.complete_checkpoint()
        else:
            flink.fail(dies=step == "die")
    assert sorted(flink.given) == sorted(f"a{number}" for number in range(published))
    assert all(len(stamps) == 1 for stamps in flink.stamps.values())
    close_sessions()
    open_sessions()


def test_the_hold_waits_for_what_is_held() -> None:
    """A window must not close before the records that are on their way to it."""
    close_sessions()
    open_sessions()
    broker = Broker("a", ids=True)
    flink = Flink(broker)
    before = flink.engine.timer.hold_ms
    broker.publish("a", at("a", 5))
    flink.fire()
    assert flink.engine.timer.hold_ms == before
    for _ in range(2):
        flink.begin_checkpoint()
        flink.complete_checkpoint()
        flink.fire()
    assert flink.given == ["a0"]
    assert flink.engine.timer.hold_ms == 5000
    close_sessions()
    open_sessions()


def test_a_finalizer_of_another_process_is_of_no_consequence() -> None:
    """The engine may call back a process that has begun anew meanwhile."""
    finalizer_of("gone", 7)()


def test_the_step_that_deals_stays_short_of_the_end_of_time_and_after_any_record() -> None:
    """At the end of time the engine forgets the readers' state and their timers."""
    deal = DealAndStay(shares(["a", "b"], 2))
    restriction = deal.initial_restriction(b"")
    tracker = deal.create_tracker(restriction)
    estimator = deal.create_watermark_estimator(deal.initial_estimator_state(b"", restriction))
    assert [number for number, _ in deal.process(b"", _View(tracker), estimator)] == [0, 1]
    watermark = estimator.current_watermark()
    assert to_timestamp(253_402_300_799_999) < watermark < GlobalWindow().max_timestamp()
    _, rest = tracker.try_split(0) or (None, None)
    assert rest is not None
    assert list(deal.process(b"", _View(deal.create_tracker(rest)), estimator)) == []


class _View:
    """A tracker as a step sees it."""

    def __init__(self, tracker: Any) -> None:
        self.current_restriction, self.try_claim = tracker.current_restriction, tracker.try_claim

    def defer_remainder(self, delay: Any) -> None:
        """Takes note of nothing."""


def test_beams_timer_takes_its_hold_from_where_we_put_it() -> None:
    """An attribute that is private to Beam: another release may have another way."""
    written: list[Any] = []

    class Coder:
        def encode_to_stream(self, value: Any, out: Any, nested: bool) -> None:
            written.append(value)

    class Stream:
        def maybe_flush(self) -> None:
            pass

    make: Callable[..., Any] = OutputTimer
    window, domain = GlobalWindow(), TimeDomain.REAL_TIME
    timer = make(0, window, Timestamp(1), None, domain, "next", Coder(), Stream())
    _set(timer, 2.0, Timestamp(42))
    assert written[0].hold_timestamp == Timestamp(42)
    assert written[0].fire_timestamp > Timestamp(time.time())

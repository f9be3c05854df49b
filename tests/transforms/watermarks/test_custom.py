"""Generators of a user's own at work: callbacks, ticks, failures and the clock."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.custom import PerRecordGenerator
from beam_lateness.transforms.watermarks.generators import (
    HighestWatermark,
    WatermarkGenerator,
    WatermarkOutput,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.transforms.watermarks.policies import (
    Clock,
    Largest,
    LimitedDelay,
    ProcessingTime,
    Punctuated,
    see,
)

FEW = settings(max_examples=60, deadline=None)
TIMES = st.lists(st.integers(-50, 50), max_size=20)


class Bounded(WatermarkGenerator):
    """The built-in bounded strategy, written anew: periodic."""

    def __init__(self, bound_ms: int = 10) -> None:
        self.state = Largest()
        self._bound_ms = bound_ms

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers the largest event time."""
        self.state.event_time_ms = max(self.state.event_time_ms, event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits it less the bound, once there was one."""
        if self.state.event_time_ms > NO_WATERMARK_MS:
            output.emit_watermark(self.state.event_time_ms - self._bound_ms - 1)


class EndOfBatch(Punctuated):
    """Emits at records that say so: punctuated, by a field of its own."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Raises KeyError where the field is missing."""
        if record["kind"] == "end":
            output.emit_watermark(event_time_ms)


class Emits(Punctuated):
    """Emits what the record holds, whatever that is, and fails if it is told to."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits first, fails then."""
        output.emit_watermark(record["emit"])
        if record.get("fail"):
            msg = "no such account"
            raise LookupError(msg)


class FailsAfterItsState(Bounded):
    """Changes its state before it finds the record to be at fault."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers the event time, and then looks at the record."""
        super().on_event(record, event_time_ms, output)
        if record["kind"] == "bad":
            msg = "no such account"
            raise LookupError(msg)


@dataclass
class Count:
    """The state of `Ticks`."""

    ticks: int = 0


class Ticks(WatermarkGenerator):
    """Emits how often it was told to."""

    def __init__(self) -> None:
        self.state = Count()

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Does nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Counts."""
        self.state.ticks += 1
        output.emit_watermark(self.state.ticks)


def running(kind: type[WatermarkGenerator], *, emit_each: bool = True) -> PerRecordGenerator:
    """Makes what runs a custom generator."""
    return PerRecordGenerator(kind, Clock(), emit_each=emit_each)


@FEW
@given(TIMES)
def test_a_custom_generator_gives_what_the_same_built_in_one_gives(times: list[int]) -> None:
    """Where a tick follows each record, as in a replay."""
    built_in = WatermarkStrategy.for_bounded_out_of_orderness(0.01).create_generator()
    custom = WatermarkStrategy.for_generator(Bounded).create_generator()
    assert see(custom, times) == see(built_in, times)
    assert custom.watermark_ms == built_in.watermark_ms


def test_a_punctuated_generator_sees_the_records_own_fields() -> None:
    """It moves by the records that it chooses, and by nothing else."""
    generator = running(EndOfBatch)
    kinds = ["sale", "end", "sale", "end"]
    after = see(generator, [5, 3, 9, 8], [{"kind": kind} for kind in kinds])
    assert after == [NO_WATERMARK_MS, 3, 3, 8]
    assert generator.needs_records


def test_the_two_callbacks_are_handed_on() -> None:
    """One record at a time, it is driven as Flink drives it."""
    generator, output = running(Bounded), HighestWatermark()
    generator.on_event({}, 100, output)
    assert output.watermark_ms == NO_WATERMARK_MS
    generator.on_periodic_emit(output)
    assert output.watermark_ms == 100 - 10 - 1


def test_in_a_replay_a_tick_follows_each_record_and_no_clock_ticks() -> None:
    """Verdicts depend on the input alone."""
    generator = running(Ticks)
    assert see(generator, [7, 7, 7]) == [1, 2, 3]
    generator.on_tick()
    assert generator.watermark_ms == 3


def test_in_a_live_source_only_the_clock_ticks() -> None:
    """However many records there are between two ticks."""
    generator = running(Ticks, emit_each=False)
    assert see(generator, [7, 7, 7]) == [NO_WATERMARK_MS] * 3
    generator.on_tick()
    assert generator.watermark_ms == 1


def test_the_clock_is_the_sources() -> None:
    """A generator that goes by processing time can be tested without sleeping."""
    clock = Clock(12.5)
    generator = PerRecordGenerator(ProcessingTime, clock, emit_each=False)
    generator.on_tick()
    assert generator.watermark_ms == 12_499
    clock.seconds = 20
    generator.on_tick()
    assert generator.watermark_ms == 19_999
    clock.seconds = 3
    generator.on_tick()
    assert generator.watermark_ms == 19_999


@FEW
@given(TIMES, st.data())
def test_block_sizes_do_not_matter(times: list[int], data: st.DataObject) -> None:
    """Any cut of the stream into blocks gives the same watermarks."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=4)))
    generator, after = running(Bounded), list[int]()
    for low, high in pairwise([0, *cuts, len(times)]):
        after += see(generator, times[low:high])
    assert after == see(running(Bounded), times)


@FEW
@given(st.lists(st.integers(-9, 9), max_size=9))
def test_an_emitted_watermark_never_goes_back(emitted: list[int]) -> None:
    """A lower one has no effect."""
    after = see(running(Emits), [0] * len(emitted), [{"emit": each} for each in emitted])
    assert after == [max(emitted[: index + 1]) for index in range(len(emitted))]


@pytest.mark.parametrize("emitted", [MAX_EVENT_TIME_MS, MAX_EVENT_TIME_MS + 1, 2**63, 10**30])
def test_an_emitted_watermark_never_reaches_the_end_of_time(emitted: int) -> None:
    """Flink's Long.MAX_VALUE would close every window for good."""
    assert see(running(Emits), [0], [{"emit": emitted}]) == [MAX_EVENT_TIME_MS]


def test_a_watermark_may_be_a_number_of_numpys() -> None:
    """It is a plain integer from there on, so that a checkpoint can hold it."""
    generator = running(Emits)
    assert see(generator, [0], [{"emit": np.int64(5)}]) == [5]
    assert type(generator.state[0]) is int


@pytest.mark.parametrize("emitted", [True, 1.0, 1.5, float("nan"), "5", None, np.float64(5)])
def test_a_watermark_that_is_not_whole_milliseconds_fails_the_job(emitted: object) -> None:
    """The generator is at fault, not the record: all would go to `invalid`, quietly."""
    generator = running(Emits)
    told = rf"^generator Emits: emit_watermark takes whole ms .*, got {re.escape(repr(emitted))}$"
    with pytest.raises(TypeError, match=told):
        see(generator, [0, 0], [{"emit": 3}, {"emit": emitted}])


class Hides(WatermarkGenerator):
    """Remembers outside its state."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.count = 0

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Changes what it is told to."""
        if "grow" in record:
            self.seen.append(1)
        if "count" in record:
            self.count += 1
        if "new" in record:
            self.latest = event_time_ms

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Changes what it may not."""
        self.count += 1


@pytest.mark.parametrize(
    ("what", "name"), [("grow", "seen"), ("count", "count"), ("new", "latest")]
)
def test_what_is_remembered_outside_the_state_is_refused(what: str, name: str) -> None:
    """A checkpoint would lose it, and so would the next block: verdicts would depend on the cut."""
    generator = running(Hides, emit_each=False)
    see(generator, [1, 2], [{}, {}])
    told = rf"^generator Hides changed its attribute {name}; .*belongs into its state"
    with pytest.raises(TypeError, match=told):
        see(generator, [3], [{what: True}])


def test_what_a_tick_remembers_outside_the_state_is_refused() -> None:
    """As what a record leaves."""
    with pytest.raises(TypeError, match="changed its attribute count"):
        running(Hides, emit_each=False).on_tick()


class Raises(WatermarkGenerator):
    """Raises what it is told to."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Raises."""
        raise record["error"]

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Ends the program, or tries to."""
        raise SystemExit(0)


class Untold(Exception):  # noqa: N818
    """An error that cannot be told."""

    def __str__(self) -> str:
        """Raises."""
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (Untold(), "Untold: (its text cannot be made)"),
        (ValueError("two\nlines"), "ValueError: two lines"),
    ],
)
def test_whatever_on_event_raises_the_stream_goes_on(error: BaseException, told: str) -> None:
    """Even what would end the program with code 0 and no word."""
    generator = running(Raises, emit_each=False)
    see(generator, [1], [{"error": error}])
    assert generator.failures == {0: f"Raises.on_event raised {told}"}


def test_a_tick_that_ends_the_program_fails_the_job() -> None:
    """By name."""
    with pytest.raises(RuntimeError, match=r"Raises\.on_periodic_emit raised SystemExit: 0"):
        running(Raises, emit_each=False).on_tick()


def test_a_record_on_which_on_event_raises_moves_nothing_and_is_named() -> None:
    """The records around it are seen as if it had not been there."""
    generator = running(EndOfBatch)
    rows: list[dict[str, Any]] = [{"kind": "end"}, {}, {"kind": "sale"}, {"kind": "end"}]
    assert see(generator, [3, 99, 5, 6], rows) == [3, 3, 3, 6]
    assert generator.failures == {1: "EndOfBatch.on_event raised KeyError: 'kind'"}


def test_a_record_that_failed_after_it_had_emitted_moves_nothing() -> None:
    """It is no record, so what was emitted with it does not count."""
    generator = running(Emits)
    rows = [{"emit": 3}, {"emit": 99, "fail": True}, {"emit": 5}]
    assert see(generator, [0, 0, 0], rows) == [3, 3, 5]
    assert generator.failures == {1: "Emits.on_event raised LookupError: no such account"}


def test_a_record_that_failed_after_it_had_changed_the_state_moves_nothing() -> None:
    """It is no record, so the generator forgets it."""
    generator = running(FailsAfterItsState)
    kinds = ["good", "bad", "good"]
    after = see(generator, [100, 9_000, 200], [{"kind": kind} for kind in kinds])
    assert after == [100 - 11, 100 - 11, 200 - 11]
    assert list(generator.failures) == [1]


def test_no_tick_follows_a_record_that_failed() -> None:
    """It moves nothing, not even by the tick after it."""

    class FailsOnce(Ticks):
        def on_event(
            self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
        ) -> None:
            if event_time_ms < 0:
                msg = "before my time"
                raise ValueError(msg)

    assert see(running(FailsOnce), [1, -1, 2]) == [1, 1, 2]


def test_failures_are_those_of_the_last_block() -> None:
    """Rows count from its start."""
    generator = running(EndOfBatch)
    see(generator, [1, 2], [{"kind": "sale"}, {}])
    assert list(generator.failures) == [1]
    see(generator, [3, 4], [{}, {"kind": "end"}])
    assert list(generator.failures) == [0]
    see(generator, [5], [{"kind": "end"}])
    assert generator.failures == {}


def test_a_strategy_with_a_class_of_ones_own_survives_pickling() -> None:
    """It travels to the workers, its arguments with it."""
    strategy = WatermarkStrategy.for_generator(partial(LimitedDelay, 60_000), emit_interval="1s")
    copy: WatermarkStrategy = pickle.loads(pickle.dumps(strategy))
    assert copy.emit_interval_ms == 1_000
    generator = copy.create_generator(clock=Clock(1_000))
    assert see(generator, [500_000]) == [440_000 - 1]
    named = WatermarkStrategy.for_generator(EndOfBatch)
    assert pickle.loads(pickle.dumps(named)) == named

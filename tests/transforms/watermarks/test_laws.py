"""The laws of every strategy, over more than 100,000 random steps each.

A walk is a text of bytes: the first says where in time it starts and whether it is a replay, and
every two that follow are a step. Three generators of one strategy walk together: one sees whole
blocks, its twin is checkpointed and restored now and then, and the third sees records one by one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS, NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.generators import (
    BoundChange,
    HighestWatermark,
    WatermarkGenerator,
    WatermarkOutput,
)
from beam_lateness.transforms.watermarks.splits import SplitWatermarks
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy

WALKS: Final = 200
STEPS: Final = 512
AT_LEAST: Final = 100_000  # of 200 x 512 = 102,400 steps a strategy

MANY = settings(
    max_examples=WALKS,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
BYTES = st.binary(min_size=1 + 2 * STEPS, max_size=1 + 2 * STEPS)

MILLENNIUM_MS: Final = 946_684_800_000
ORIGINS_MS: Final = (
    *(MILLENNIUM_MS,) * 5,
    0,
    MIN_EVENT_TIME_MS + 1_000,
    MAX_EVENT_TIME_MS - 60_000,  # a walk from here comes to the end of time
)

RECORD, LATE, JUMP, MARKER, ODD, BLOCK, TICK, CHECKPOINT = range(8)
KINDS: Final = (*(RECORD,) * 6, LATE, JUMP, MARKER, ODD, *(BLOCK,) * 3, TICK, *(CHECKPOINT,) * 2)
ALL: Final = 15  # KINDS are 16

PLAIN: Final[dict[str, Any]] = {}
END: Final[dict[str, Any]] = {"end": True}
BROKEN: Final[dict[str, Any]] = {"broken": True}
FAR: Final[dict[str, Any]] = {"end": True, "far": True}
BEYOND_TIME: Final = 2**62

BOUND_MS: Final = 200
FLOOR_MS, CEILING_MS = 10, 2_000


@dataclass
class Newest:
    """The state of `Behind`."""

    event_time_ms: int = NO_WATERMARK_MS


class Behind(WatermarkGenerator):
    """A periodic one of a user: a tick emits the largest event time less the bound."""

    def __init__(self) -> None:
        self.state = Newest()

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Fails on broken records."""
        if "broken" in record:
            raise ValueError("broken")
        self.state.event_time_ms = max(self.state.event_time_ms, event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits."""
        output.emit_watermark(self.state.event_time_ms - BOUND_MS - 1)


@dataclass
class Waiting:
    """The state of `LastButOne`."""

    marker_ms: int | None = None


class LastButOne(WatermarkGenerator):
    """A punctuated one of a user: a marker emits the time of the marker before it."""

    def __init__(self) -> None:
        self.state = Waiting()

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Fails on broken records; one from afar emits a time beyond all time."""
        if "broken" in record:
            raise ValueError("broken")
        if "far" in record:
            output.emit_watermark(BEYOND_TIME)
        if "end" in record:
            if self.state.marker_ms is not None:
                output.emit_watermark(self.state.marker_ms)
            self.state.marker_ms = event_time_ms

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Leaves it to the markers."""


class Seen:
    """What a stream has given evidence of so far."""

    def __init__(self, replay: bool) -> None:
        self._replay = replay
        self._last_marker = NO_WATERMARK_MS
        self.largest = self.ticked = self.marker = self.but_last = NO_WATERMARK_MS

    def record(self, ts: int, record: Mapping[str, Any]) -> None:
        """Takes a record."""
        self.largest = max(self.largest, ts)
        if "end" in record:
            self.marker = max(self.marker, ts)
            self.but_last = max(self.but_last, self._last_marker)
            self._last_marker = ts
        if "far" in record:
            self.but_last = MAX_EVENT_TIME_MS
        if self._replay:
            self.tick()

    def tick(self) -> None:
        """Takes a tick."""
        self.ticked = self.largest


def less(ms: int, bound_ms: int) -> int:
    """Inclusive watermark a bound behind a time; none where there was no time yet."""
    return NO_WATERMARK_MS if ms == NO_WATERMARK_MS else ms - bound_ms - 1


@dataclass(frozen=True)
class Case:
    """A strategy, and between which watermarks it must stay by the evidence."""

    strategy: WatermarkStrategy
    highest: Callable[[Seen], int]
    lowest: Callable[[Seen], int] | None = None  # None: the same


def adjusting(quantile: float, period: str) -> Case:
    """A bound that adjusts itself."""
    return Case(
        WatermarkStrategy.for_self_adjusting_bound(
            FLOOR_MS / 1000, CEILING_MS / 1000, quantile, period
        ),
        lambda seen: less(seen.largest, FLOOR_MS),
        lambda seen: less(seen.largest, CEILING_MS),
    )


CASES: Final = {
    "bounded": Case(
        WatermarkStrategy.for_bounded_out_of_orderness(BOUND_MS / 1000),
        lambda seen: less(seen.largest, BOUND_MS),
    ),
    "monotonous": Case(
        WatermarkStrategy.for_monotonous_timestamps(), lambda seen: less(seen.largest, 0)
    ),
    "punctuated": Case(WatermarkStrategy.for_markers("end"), lambda seen: seen.marker),
    "adjusting in short periods": adjusting(0.8, "1s"),
    "adjusting in long periods": adjusting(0.95, "6m"),
    "none": Case(WatermarkStrategy.no_watermarks(), lambda seen: NO_WATERMARK_MS),
    "custom periodic": Case(
        WatermarkStrategy.for_generator(Behind), lambda seen: less(seen.ticked, BOUND_MS)
    ),
    "custom punctuated": Case(
        WatermarkStrategy.for_generator(LastButOne, "end"), lambda seen: seen.but_last
    ),
}


class Source:
    """Decodes the steps of a walk into records; zeros are the simplest."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._spread = 1

    def records(self, kind: int, more: int, arg: int) -> list[tuple[int, Mapping[str, Any]]]:
        """Gives the records of a step, with their event times in ms."""
        late_ms, record = arg * self._spread, PLAIN
        if kind == BLOCK:
            return [self._record(3, arg * (each + 1) % 61 * self._spread) for each in range(more)]
        if kind == LATE:
            late_ms = arg * 1_000
        elif kind == JUMP:
            self._now_ms += arg // 32 * 1_000
            self._spread, late_ms = arg % 8, 0  # of other lateness from here
        elif kind == MARKER:
            record = END
        elif kind == ODD:
            record = FAR if arg == 255 else BROKEN
        return [self._record(more * 4, late_ms, record)]

    def _record(
        self, step_ms: int, late_ms: int, record: Mapping[str, Any] = PLAIN
    ) -> tuple[int, Mapping[str, Any]]:
        self._now_ms = min(self._now_ms + step_ms, MAX_EVENT_TIME_MS)
        return max(self._now_ms - late_ms, MIN_EVENT_TIME_MS), record


class Walk:
    """The generators of a strategy that walk together, and the laws."""

    def __init__(self, case: Case, start: int) -> None:
        replay = start < 128
        self._custom = case.strategy.generator is not None
        self._highest, self._lowest = case.highest, case.lowest or case.highest
        self._seen = Seen(replay)
        self._make = functools.partial(
            case.strategy.create_generator, clock=lambda: 0.0, emit_each=replay
        )
        self._whole, self._twin, self._single = self._make(), self._make(), self._make()
        self._output = HighestWatermark()
        self._before = NO_WATERMARK_MS
        self.changes: list[BoundChange] = []

    def tick(self) -> None:
        """Ticks."""
        self._seen.tick()
        self._whole.on_tick()
        self._twin.on_tick()
        self._check(self._whole.watermark_ms)

    def checkpoint(self) -> None:
        """Lets the twin go on from a checkpoint of its own."""
        self._twin = self._make(json.loads(json.dumps(self._twin.state)))
        if not self._custom:
            assert self._single.state == self._whole.state, "record by record, it remembers more"

    def take(self, records: list[tuple[int, Mapping[str, Any]]]) -> None:
        """Takes a block of records."""
        times = np.array([ts for ts, _ in records], dtype=np.int64)
        flags = np.array(["end" in record for _, record in records], dtype=np.bool_)
        fields = [record for _, record in records]
        after = self._whole.on_events(times, flags, fields).tolist()
        again = self._twin.on_events(times, flags, fields).tolist()
        assert again == after, "after a checkpoint, records give other watermarks"
        for (ts, record), watermark_ms in zip(records, after, strict=True):
            if not (self._custom and "broken" in record):
                self._seen.record(ts, record)
            self._check(watermark_ms)
            if not self._custom:
                self._single.on_event(record, ts, self._output)
                self._single.on_periodic_emit(self._output)
                assert self._output.watermark_ms == watermark_ms, "a block is not its records"
        assert self._whole.watermark_ms == after[-1], "a block does not end at its last record"
        if self._custom:
            broken = [row for row, record in enumerate(fields) if "broken" in record]
            assert list(self._whole.failures) == broken, "a record was failed that is not broken"

    def same_future(self) -> None:
        """Compares the twins, which are one but for the checkpoints."""
        whole, twin, changes = self._whole, self._twin, self._whole.take_changes()
        assert twin.watermark_ms == whole.watermark_ms, "a checkpoint moves the watermark"
        assert twin.state == whole.state, "a checkpoint forgets what decides the future"
        assert twin.take_changes() == changes, "after a checkpoint, the bound changes otherwise"
        self.changes += changes

    def _check(self, watermark_ms: int) -> None:
        assert watermark_ms >= self._before, "the watermark goes back"
        assert watermark_ms <= MAX_EVENT_TIME_MS, "the watermark passes the end of time"
        assert watermark_ms <= self._highest(self._seen), "the watermark passes the evidence"
        assert watermark_ms >= self._lowest(self._seen), "the watermark stays behind the evidence"
        self._before = watermark_ms


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_strategy_breaks_a_law_in_100_000_steps(case: Case) -> None:
    """Records (late, far late, ahead), markers, blocks, ticks and checkpoints, in any order."""
    steps = 0
    changes: list[BoundChange] = []

    @MANY
    @given(BYTES)
    def walk(data: bytes) -> None:
        nonlocal steps
        source, together = Source(ORIGINS_MS[data[0] % len(ORIGINS_MS)]), Walk(case, data[0])
        for which, arg in zip(data[1::2], data[2::2], strict=True):
            kind = KINDS[which & ALL]
            if kind == CHECKPOINT:
                together.checkpoint()
            elif kind == TICK:
                together.tick()
            else:
                together.take(source.records(kind, 1 + which // 16, arg))
            together.same_future()
            steps += 1
        changes.extend(together.changes)

    walk()
    assert steps >= AT_LEAST, "fewer steps were walked than promised"
    wider = sum(change.after_ms > change.before_ms for change in changes)
    narrower = sum(change.after_ms < change.before_ms for change in changes)
    often = WALKS // 2 if case.strategy.adjusting is not None else 0
    assert min(wider, narrower) >= often, "a bound that hardly adjusts shows nothing"


class Plain:
    """What a group of splits must be, from a plain dictionary."""

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.idle: set[str] = set()
        self.combined = NO_WATERMARK_MS

    @property
    def active(self) -> dict[str, int]:
        """The splits that count."""
        return {name: ms for name, ms in self.own.items() if name not in self.idle}

    def combine(self) -> None:
        """The minimum of the active splits; where there are none, the highest of the idle ones."""
        if self.active:
            self.combined = max(self.combined, min(self.active.values()))
        elif self.own:
            self.combined = max(self.combined, max(self.own.values()))


UPDATE, IDLE, REMOVE, ADVANCE, RESTORE = range(5)
SPLIT_KINDS: Final = (*(UPDATE,) * 8, *(IDLE,) * 4, REMOVE, REMOVE, ADVANCE, RESTORE)


def restored(plain: Plain) -> SplitWatermarks:
    """A group from its checkpoint, as the source restores it."""
    group = SplitWatermarks(plain.combined)
    for name, ms in plain.own.items():
        group.update(name, ms)
        if name in plain.idle:
            group.mark_idle(name)
    return group


def test_no_group_of_splits_breaks_a_law_in_100_000_steps() -> None:
    """Updates (higher and lower), idle splits, ends, clocks and checkpoints, in any order."""
    steps = 0

    @MANY
    @given(BYTES)
    def walk(data: bytes) -> None:
        nonlocal steps
        group, plain = SplitWatermarks(), Plain()
        for number, (which, arg) in enumerate(zip(data[1::2], data[2::2], strict=True)):
            kind, name, before = SPLIT_KINDS[which & ALL], "abcd"[which // 64], group.combined_ms
            watermark_ms = number + arg
            if kind == UPDATE:
                group.update(name, watermark_ms)
                plain.own[name] = max(plain.own.get(name, watermark_ms), watermark_ms)
                plain.idle.discard(name)
            elif kind == IDLE:
                group.mark_idle(name)
                plain.own.setdefault(name, NO_WATERMARK_MS)
                plain.idle.add(name)
            elif kind == REMOVE:
                group.remove(name)
                plain.own.pop(name, None)
                plain.idle.discard(name)
                assert group.of(name) == NO_WATERMARK_MS, "a finished split holds something"
            elif kind == ADVANCE:
                group.advance(watermark_ms - 128)
                plain.combined = max(plain.combined, watermark_ms - 128)
            else:
                group = restored(plain)
            plain.combine()
            active = plain.active
            others = [ms for other, ms in active.items() if other != name]
            known = [ms for ms in active.values() if ms > NO_WATERMARK_MS]
            assert group.combined_ms >= before, "the group's watermark goes back"
            assert group.combined_ms == plain.combined, "it is not the lowest of the active ones"
            assert group.of(name) == plain.own.get(name, NO_WATERMARK_MS), "a split's own is lost"
            assert group.all_idle is (bool(plain.own) and not active), "all idle, or not"
            assert group.minimum_of_others(name) == min(others, default=None), "the others' lowest"
            assert group.minimum_known() == min(known, default=None), "the lowest known"
            steps += 1

    walk()
    assert steps >= AT_LEAST, "fewer steps were walked than promised"

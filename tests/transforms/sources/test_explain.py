"""`explain`: each of its sentences, by a small input that provokes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from beam_lateness.transforms.sources.connector import Block, SplitPosition
from beam_lateness.transforms.sources.explain import Explanation, explain
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.times import Duration
from beam_lateness.transforms.watermarks.generators import WatermarkGenerator, WatermarkOutput
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.model import Event
from tests.transforms.sources.memory import Clock, MemoryInput, MemorySplit, at, line_of

Seconds: TypeAlias = Mapping[str, list[float]]

ZERO = WatermarkStrategy.for_monotonous_timestamps()
MARKERS = WatermarkStrategy.for_markers("end")
SILENT = (
    "a split that falls silent holds the others for ever: --idle_timeout (with_idleness) lets "
    "them go on"
)


def bounded(bound: str) -> WatermarkStrategy:
    """A strategy with a bound."""
    return WatermarkStrategy.for_bounded_out_of_orderness(bound)


@dataclass
class Watched(MemoryInput):
    """An input that counts its open readers."""

    opened: list[WatchedSplit] = field(default_factory=list)

    def open(self, split: str, position: SplitPosition) -> MemorySplit:
        """Opens a split at a position."""
        self.opened.append(WatchedSplit(self, split, position.offset))
        return self.opened[-1]


class WatchedSplit(MemorySplit):
    """A reader that knows whether it was closed, and may break."""

    closed = False

    def read(self, size: int) -> Block:
        """Gives the next lines."""
        if self._split == "broken":
            raise OSError("the disk is gone")
        return super().read(size)

    def close(self) -> None:
        """Is called at the end."""
        self.closed = True


def source_of(seconds: Seconds, follows: bool = False) -> Watched:
    """An input of records with the given event times."""
    lines = {split: [line_of(at(split, s)) for s in times] for split, times in seconds.items()}
    return Watched({split: b"".join(each) for split, each in lines.items()}, follows)


def look(
    source: MemoryInput,
    strategy: WatermarkStrategy,
    watch: Duration | None = None,
    meanwhile: Callable[[float], None] | None = None,
    **how: Any,
) -> Explanation:
    """Explains by a clock that only sleeping moves; `meanwhile` happens at each sleep."""
    clock = Clock(1_000)

    def sleep(seconds: float) -> None:
        assert seconds > 0
        clock.sleep(seconds)
        if meanwhile is not None:
            meanwhile(clock.now_s - 1_000)

    timed = strategy.with_timestamp_assigner(FieldTime("t", "ms"))
    return explain(source, timed, ReadSettings(clock=clock, **how), watch, sleep)


def why(seconds: Seconds, strategy: WatermarkStrategy, **how: Any) -> list[str]:
    """The reasons why the watermark of a finite input stands where it does."""
    return look(source_of(seconds), strategy, **how).reasons


def live_why(seconds: Seconds, strategy: WatermarkStrategy, **how: Any) -> list[str]:
    """The same of a followed input."""
    return look(source_of(seconds, follows=True), strategy, **how).reasons


@pytest.mark.parametrize("follows", [False, True])
def test_without_splits_there_is_nothing_to_read(follows: bool) -> None:
    """A followed folder may be empty."""
    found = look(source_of({}, follows), ZERO)
    assert found == Explanation(None, (), None, None, 0, None, {}, ["there is nothing to read yet"])


def test_a_split_without_a_record_holds_the_watermark() -> None:
    """In a live input; a finite one is at its end, and says what would be."""
    seconds: Seconds = {"a": [10, 99], "b": []}
    none = "b holds it back: it has had no record yet"
    assert why(seconds, ZERO) == [
        "a alone moves the watermark",
        "no record: b; that holds nothing here, but a job that follows them waits for their first "
        "one (--idle_timeout)",
    ]
    assert live_why(seconds, ZERO) == [
        f"{none}, and without --idle_timeout (with_idleness) the others wait for its first "
        "one for ever"
    ]
    assert live_why(seconds, ZERO.with_idleness("30s"), watch="10s") == [
        f"{none}; the others wait until it has been silent for more than 30s (look on for longer: "
        "--watch)"
    ]


def test_a_split_that_is_alone_makes_nobody_wait_but_the_windows() -> None:
    """There are no others."""
    (reason,) = live_why({"a": []}, ZERO)
    assert reason.endswith("everything waits for its first one for ever")


def test_a_split_without_a_marker_holds_the_watermark() -> None:
    """It says how many records were read in vain, and which field was looked at."""
    assert why({"a": [float(second) for second in range(1_200)]}, MARKERS) == [
        "a holds it back: among 1,200 records there was no marker (field 'end' true)"
    ]
    assert why({"a": []}, MARKERS) == ["no record has been read"]


class Mute(WatermarkGenerator):
    """Emits nothing."""

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Emits nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits nothing."""


@pytest.mark.parametrize("marker_field", [None, "end"])
def test_a_generator_that_has_emitted_nothing_holds_the_watermark(marker_field: str | None) -> None:
    """Whatever it waits for."""
    strategy = WatermarkStrategy.for_generator(Mute, marker_field)
    reason = "a holds it back: its generator has emitted no watermark yet"
    assert why({"a": [10]}, strategy) == [reason]
    assert live_why({"a": [10]}, strategy) == [reason]


@pytest.mark.parametrize("seconds", [{"a": [10]}, {"a": [10], "b": [9]}, {"a": [], "b": [9]}])
def test_a_strategy_without_watermarks_is_named_as_the_reason(seconds: Seconds) -> None:
    """No split is to blame, not even an empty one."""
    assert why(seconds, WatermarkStrategy.no_watermarks()) == [
        "this strategy reports no watermark: windows fire when the input ends"
    ]


def test_a_lagging_split_is_named_with_how_far_it_is_behind() -> None:
    """And behind which: the one that is ahead of all."""
    seconds: Seconds = {"a": [10, 40], "b": [5, 6], "c": [10, 96]}
    found = look(source_of(seconds), ZERO)
    assert found.reasons == ["b holds it back: it is 1m30s behind c"]
    assert (found.held_by, found.behind_ms) == ("b", 90_000)
    assert found.watermark_ms == 6_000, "that of a job that followed the input, at its end"
    assert live_why(seconds, ZERO) == ["b holds it back: it is 1m30s behind c", SILENT]


def test_a_lagging_split_is_named_with_for_how_long_the_watermark_has_stood() -> None:
    """As far as it was watched."""
    source = source_of({"a": [10], "b": [5]}, follows=True)
    idling = ZERO.with_idleness("1h")

    def meanwhile(slept: float) -> None:
        source.write("b" if slept < 20 else "a", at("a", 5 + slept))

    found = look(source, idling, "50s", meanwhile)
    assert found.held_by == "b"
    (reason,) = found.reasons
    assert reason.endswith("behind a, and the watermark has stood for 30 s")
    assert found.standing_s == pytest.approx(30, abs=0.5)


def test_how_long_a_replay_took_is_no_reason() -> None:
    """Its watermark stands while it is read, and that says nothing."""
    source, clock = source_of({"a": [40] * 9, "b": [4, 5]}), Clock()
    timed = ZERO.with_timestamp_assigner(FieldTime("t", "ms"))

    def late() -> float:
        clock.sleep(60)
        return clock()

    found = explain(source, timed, ReadSettings(block_bytes=1, clock=late))
    assert found.standing_s > 60
    assert found.reasons == ["b holds it back: it is 35s behind a"]


def test_a_split_alone_or_none_behind_another_is_said_to_be_so() -> None:
    """Then nothing is wrong."""
    assert why({"a": [10, 30]}, ZERO) == ["a alone moves the watermark"]
    assert live_why({"a": [10, 30]}, ZERO) == ["a alone moves the watermark"]
    even: Seconds = {"a": [10, 30], "b": [30]}
    assert why(even, ZERO) == ["a is lowest; no split is ahead of it"]
    assert live_why(even, ZERO) == ["a is lowest; no split is ahead of it"]


@pytest.mark.parametrize(
    ("on_all_idle", "rest"),
    [
        ("hold", "it stands until one speaks; --on_all_idle=advance lets it follow the clock"),
        ("advance", "it follows the clock"),
    ],
)
def test_when_all_splits_are_idle_none_holds_the_watermark(on_all_idle: str, rest: str) -> None:
    """It says what the watermark does then."""
    strategy = bounded("5s").with_idleness("10s", on_all_idle)
    source = source_of({"a": [10, 30], "b": [7]}, follows=True)
    found = look(source, strategy, "11s")
    assert found.reasons == [f"all splits are idle, so none holds the watermark: {rest}"]
    assert (found.held_by, found.behind_ms) == (None, None)
    if on_all_idle == "advance":
        assert found.watermark_ms == pytest.approx((1_011 - 5) * 1_000, abs=500)
    else:
        assert found.watermark_ms == 25_000


def test_paused_splits_are_named() -> None:
    """They are not what holds the watermark, but they would be waited for."""
    strategy = ZERO.with_watermark_alignment("explain", "30s").with_idleness("1h")
    source = source_of({"a": [100], "b": [50], "c": [5, 10], "d": [200]}, follows=True)
    reasons = look(source, strategy, "1s").reasons
    assert reasons[1:] == ["paused, since they are too far ahead: a, b, d"]
    assert reasons[0].startswith("c holds it back: it is 3m10s behind d")


def test_merged_splits_are_said_to_move_one_watermark() -> None:
    """None of them holds it."""
    strategy = ZERO.with_merged_splits()
    found = look(source_of({"a": [10, 99], "b": [5]}), strategy)
    assert found.reasons == ["the splits are merged: all of them together move one watermark"]
    assert (found.held_by, found.watermark_ms) == (None, 99_000)


TOO_LONG = "is longer than all event times read so far span: no window that holds a record can have"


@pytest.mark.parametrize(
    ("seconds", "bound", "said"),
    [
        ({"a": [10, 70, 40]}, "1m1s", True),
        ({"a": [10, 70, 40]}, "59s", False),
        ({"a": [10, 70], "b": [30, 90]}, "90s", True),
        ({"a": [10]}, "1s", True),
        ({"a": [10]}, "0s", False),
        ({"a": [], "b": [10]}, "1m", True),
        ({"a": [0, 1_000], "b": [0]}, "5s", False),
    ],
    ids=["longer", "shorter", "two splits", "one record", "no bound", "empty", "one split lags"],
)
def test_a_bound_that_is_longer_than_the_data_is_said_to_be_so(
    seconds: Seconds, bound: str, said: bool
) -> None:
    """And only such a one: where a split lags behind, the bound is not to blame."""
    reasons = why(seconds, bounded(bound))
    assert any(TOO_LONG in reason for reason in reasons) == said
    if said:
        assert reasons[-1].startswith(f"the bound of {bound.replace('90s', '1m30s')} is longer")


def test_invalid_lines_are_counted_by_reason() -> None:
    """They may be why there is no record at all."""
    source = source_of({"a": [5, 10]})
    source.write("a", b"{oops", b'{"k":"a","v":1}', b"[]]")
    found = look(source, ZERO)
    assert found.invalid == {"malformed_json": 2, "missing_event_time": 1}
    counted = "invalid lines move no watermark: 2 malformed_json, 1 missing_event_time"
    assert found.reasons == ["a alone moves the watermark", counted]
    none = source_of({"a": []})
    none.write("a", *[b"{oops"] * 1_000)
    assert look(none, ZERO).reasons == [
        "no record has been read",
        "no line is a record: invalid lines move no watermark: 1,000 malformed_json",
    ]


def test_records_from_the_future_are_invalid_to_explain_too() -> None:
    """It reads as the job would: five minutes by default where the input is followed."""
    seconds: Seconds = {"a": [10, 1_000 + 301]}  # the clock is at 1,000
    assert look(source_of(seconds), ZERO).invalid == {}
    assert look(source_of(seconds, follows=True), ZERO).invalid == {"future_event_time": 1}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("watch", [None, "0s", "1h"])
def test_a_finite_input_is_read_to_its_end_without_waiting(size: int, watch: str | None) -> None:
    """At full speed, even if the job paces its replay, and however long is to be watched."""
    source = source_of({"a": [float(second) for second in range(50)], "b": [100]})
    clock = Clock()
    how = ReadSettings(block_bytes=size, replay_speed=1.0, clock=clock)
    timed = ZERO.with_timestamp_assigner(FieldTime("t", "ms"))
    found = explain(source, timed, how, watch, clock.sleep)
    assert [(split.state, split.records) for split in found.splits] == [
        ("finished", 50),
        ("finished", 1),
    ]
    assert clock.now_s == 0


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_live_input_is_read_until_nothing_more_is_there(size: int) -> None:
    """Once, if it is not to be watched: without a moment's sleep."""
    source, slept = source_of({"a": [10, 20, 30], "b": [15]}, follows=True), list[float]()
    found = look(source, ZERO, None, slept.append, block_bytes=size)
    assert [split.records for split in found.splits] == [3, 1]
    assert found.watermark_ms == 15_000
    assert slept == []


def test_a_live_input_is_watched_for_as_long_as_is_asked() -> None:
    """What comes meanwhile is read, new splits too."""
    source, slept = source_of({"a": [10]}, follows=True), list[float]()

    def meanwhile(now: float) -> None:
        slept.append(now)
        source.write(f"split {now // 3:.0f}", Event("k", 1, 20_000, str(now)))

    found = look(source, ZERO, "10s", meanwhile)
    assert 10 <= slept[-1] <= 10.5
    assert len(slept) > 10
    assert [split.split for split in found.splits] == [
        "a", "split 0", "split 1", "split 2", "split 3",
    ]  # fmt: skip
    assert sum(split.records for split in found.splits) == 1 + len(slept)


def test_a_busy_live_input_is_watched_no_longer_than_is_asked() -> None:
    """Also where every poll finds something, so that nobody sleeps."""
    clock = Clock()

    class Busy(Watched):
        def initial_positions(self) -> dict[str, SplitPosition]:
            clock.sleep(0.5)
            self.write("a", at("a", clock.now_s))
            return super().initial_positions()

    timed = ZERO.with_timestamp_assigner(FieldTime("t", "ms"))
    found = explain(Busy({}, follows=True), timed, ReadSettings(clock=clock), "10s", clock.sleep)
    assert 10 <= clock.now_s <= 11
    assert found.splits[0].records > 15


@pytest.mark.parametrize("follows", [False, True])
def test_what_was_opened_is_closed_again(follows: bool) -> None:
    """At the end, and if something goes wrong."""
    source = source_of({"a": [10], "b": [20]}, follows)
    look(source, ZERO)
    assert len(source.opened) == 2
    assert all(reader.closed for reader in source.opened)
    broken = source_of({"a": [10], "broken": [20]}, follows)
    with pytest.raises(OSError, match="the disk is gone"):
        look(broken, ZERO)
    assert len(broken.opened) == 2
    assert all(reader.closed for reader in broken.opened)


def test_a_watch_that_is_no_duration_is_refused() -> None:
    """By the name of the parameter and of the flag."""
    source = source_of({"a": [10]}, follows=True)
    with pytest.raises(ValueError, match=r"watch \(--watch\) must be a duration"):
        look(source, ZERO, "soon")
    assert source.opened == []


def test_an_explanation_holds_what_the_sentences_say() -> None:
    """For programs."""
    found = look(source_of({"a": [10, 100], "b": [7, 40, 30]}), bounded("5s"))
    assert [tuple(split) for split in found.splits] == [
        ("a", "finished", 2, 10_000, 100_000, 95_000),
        ("b", "finished", 3, 7_000, 40_000, 35_000),
    ]
    assert (found.watermark_ms, found.held_by, found.behind_ms) == (35_000, "b", 60_000)
    assert (found.bound_ms, found.invalid) == (5_000, {})

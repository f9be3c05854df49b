"""`LateRateAlert`: it tells of every period with too many too late records, and what helps."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness import EventBatch, ReadSettings, Windows
from beam_lateness.transforms import metrics
from beam_lateness.transforms.beam_time import to_timestamp
from beam_lateness.transforms.lateness.alerts import (
    Distances,
    LateAlert,
    LateRateAlert,
    LateRateRule,
    Summary,
    limit_rate,
    summarise,
)
from tests.cases.engine import direct_pipeline, keep, kept, read_steps, write_steps
from tests.cases.load import Advance, Step, windows_of
from tests.model import NO_WATERMARK, Event, bounded
from tests.transforms.lateness.batches import batch_of
from tests.transforms.lateness.streams import events, small_windows

MINUTE = 60_000
WINDOWS = Windows("10s", allowed_lateness="5s")
THRESHOLDS = st.sampled_from([0, 0.01, 0.1, 0.25, 0.5, 2 / 3])
CUTS = st.lists(st.integers(0, 60), max_size=8)


class Came(NamedTuple):
    """A record, its split, and the exclusive watermark just before it."""

    split: str
    event: Event
    stamp: int


def late_by(came: Came, windows: Windows) -> int:
    """How far a record is past the end of its window's time, in ms; negative if it is not."""
    start = (came.event.ts - windows.offset_ms) // windows.size_ms * windows.size_ms
    return came.stamp - start - windows.offset_ms - windows.size_ms - windows.allowed_lateness_ms


def periods_of(stream: Iterable[Came], per: int) -> dict[int, list[Came]]:
    """The records of each period, by its start."""
    periods: dict[int, list[Came]] = {}
    for came in stream:
        if came.stamp > NO_WATERMARK + 1:
            periods.setdefault(came.stamp // per * per, []).append(came)
    return periods


def share(stream: Iterable[Came], windows: Windows) -> float:
    """The share of records that are too late."""
    verdicts = [late_by(came, windows) >= 0 for came in stream]
    return sum(verdicts) / len(verdicts)


def cut(stream: Sequence[Came], cuts: Iterable[int] = ()) -> list[EventBatch]:
    """Makes batches of a stream, one a split from each cut to the next."""
    edges = [0, *sorted(c for c in cuts if 0 < c < len(stream)), len(stream)]
    batches = []
    for piece in (stream[low:high] for low, high in itertools.pairwise(edges)):
        for split in sorted({came.split for came in piece}):
            rows = [(came.event, came.stamp) for came in piece if came.split == split]
            batches.append(batch_of(rows, split))
    return batches


def judged(
    batches: Iterable[EventBatch], windows: Windows, per: int, **how: Any
) -> list[LateAlert]:
    """The alerts of all periods, without a runner and without a rate limit."""
    summaries: dict[int, list[Summary]] = {}
    for batch in batches:
        for stamp, summary in summarise(batch, windows, per):
            coded = Summary.decode(summary.encode())
            summaries.setdefault(stamp // per * per, []).append(coded)
    rule = LateRateRule(how["threshold"], windows.allowed_lateness_ms, how.get("bound_ms"))
    found = (rule.judge(start, start + per, each) for start, each in sorted(summaries.items()))
    return [alert for alert in found if alert is not None]


class Note(beam.DoFn):
    """Writes a line for each element: their order is that in which things happened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def process(self, element: EventBatch | LateAlert) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(element if isinstance(element, LateAlert) else "batch") + "\n")


def run(batches: Sequence[EventBatch], alerts: LateRateAlert) -> list[Any]:
    """Runs batches on the DirectRunner; gives alerts, and a word for each batch, as they happened.

    Before each batch the engine's watermark moves as far as the stamps that come allow.
    """
    stream = test_stream.TestStream()
    reached = NO_WATERMARK + 1
    for n, batch in enumerate(batches):
        stamp = min(int(each.watermarks.min()) for each in batches[n:])
        if stamp > reached:
            stream, reached = stream.advance_watermark_to(to_timestamp(stamp)), stamp
        at = to_timestamp(int(batch.event_times.min()))
        stream = stream.add_elements([TimestampedValue(batch, at)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes.jsonl"
        path.touch()
        with direct_pipeline() as pipeline:
            read = pipeline | stream.advance_watermark_to_infinity()
            read.element_type = EventBatch
            _ = read | "NoteBatches" >> beam.ParDo(Note(path))
            _ = read | alerts | "NoteAlerts" >> beam.ParDo(Note(path))
        notes = [json.loads(line) for line in path.read_text().splitlines()]
    return [LateAlert(*note) if isinstance(note, list) else note for note in notes]


def alerts_of(batches: Sequence[EventBatch], alerts: LateRateAlert) -> list[LateAlert]:
    """Runs batches; gives the alerts."""
    return [note for note in run(batches, alerts) if isinstance(note, LateAlert)]


def minute(number: int, too_late: int, records: int = 1000, by: int = 7_001) -> list[Came]:
    """A minute of watermark time: records of splits a and b in turn, the first of b too late."""
    stamps = [number * MINUTE + n * MINUTE // records for n in range(records)]
    late = set(range(1, 2 * too_late, 2))
    return [
        Came("ab"[n % 2], Event("k", 1, stamp - 15_000 - by if n in late else stamp), stamp)
        for n, stamp in enumerate(stamps)
    ]


@st.composite
def streams(draw: st.DrawFn, windows: Windows) -> list[Came]:
    """Draws splits, each in the order of its stamps, one after another in turns."""
    splits = {
        name: list(bounded(draw(events(windows, most=25)), draw(st.integers(0, 15))))
        for name in draw(st.sampled_from(["a", "ab", "abc"]))
    }
    stream = [Came(name, event, stamp) for name in splits for event, stamp in splits[name]]
    return sorted(stream, key=lambda came: came.stamp)


def test_two_percent_in_one_minute_bring_exactly_one_alert() -> None:
    """W15: with count, rate and split."""
    stream = [*minute(1, 0), *minute(2, 20), *minute(3, 0)]
    metrics.start_tally()
    (alert,) = alerts_of(cut(stream, range(0, 3000, 700)), LateRateAlert(WINDOWS, bound="2s"))
    assert alert[:5] == (2 * MINUTE, 3 * MINUTE, 1000, 20, 0.02)
    assert (alert.split, alert.split_records, alert.split_too_late) == ("b", 500, 20)
    assert metrics.tally() == {metrics.ALERTS: 1}
    distances = sorted(late_by(each, WINDOWS) for each in minute(2, 20))
    assert alert.late_by_max_ms == distances[-1]
    assert alert.late_by_p50_ms == distances[-11]
    assert alert.suggested_allowed_lateness_ms - 5_000 == math.ceil(distances[-11] / 1000) * 1000
    assert alert.suggested_bound_ms == alert.suggested_allowed_lateness_ms - 3_000


@pytest.mark.parametrize("too_late", [5, 10])
def test_half_the_threshold_and_the_threshold_itself_bring_none(too_late: int) -> None:
    """W15: an alert needs more."""
    stream = [*minute(1, 0), *minute(2, too_late), *minute(3, 0)]
    assert alerts_of(cut(stream), LateRateAlert(WINDOWS)) == []


def test_one_record_more_than_the_threshold_brings_one() -> None:
    """11 of 1000 at 1%."""
    assert [alert.too_late for alert in alerts_of(cut(minute(2, 11)), LateRateAlert(WINDOWS))] == [
        11
    ]


def test_an_alert_comes_within_one_period_of_a_step_in_lateness() -> None:
    """With the first record of the next period: neither at the end of the stream, nor later."""
    stream = [*minute(1, 0, 10), *minute(2, 4, 10), *minute(3, 0, 10), *minute(4, 0, 10)]
    notes = run(cut(stream, range(40)), LateRateAlert(WINDOWS))
    (place,) = [n for n, note in enumerate(notes) if isinstance(note, LateAlert)]
    assert place in (20, 21)  # the first of minute 3 is batch 20, and either may be noted first
    assert len(notes) == 41


def test_records_from_before_the_first_watermark_are_left_out() -> None:
    """None of them can be too late: they would only hide those that are."""
    unstamped = [Came("b", Event("k", 1, ts), NO_WATERMARK + 1) for ts in range(3000)]
    (alert,) = alerts_of(cut([*unstamped, *minute(2, 20)]), LateRateAlert(WINDOWS))
    assert (alert.records, alert.too_late) == (1000, 20)
    assert list(summarise(cut(unstamped)[0], WINDOWS, MINUTE)) == []


@given(data=st.data(), windows=small_windows(), per=st.integers(1, 40), threshold=THRESHOLDS)
def test_alerts_are_those_of_the_reference_model(
    data: st.DataObject, windows: Windows, per: int, threshold: float
) -> None:
    """Every period above the threshold and no other, whatever the batches."""
    stream = data.draw(streams(windows))
    batches = cut(stream, data.draw(CUTS))
    found = judged(batches, windows, per, threshold=threshold)
    periods = periods_of(stream, per)
    above = {start for start, each in periods.items() if share(each, windows) > threshold}
    assert {alert.period_start_ms for alert in found} == above
    for alert in found:
        came = periods[alert.period_start_ms]
        distances = sorted(d for d in (late_by(each, windows) for each in came) if d >= 0)
        splits = [each.split for each in came if late_by(each, windows) >= 0]
        most = max(sorted(set(splits)), key=splits.count)
        assert (alert.period_end_ms, alert.records) == (alert.period_start_ms + per, len(came))
        assert (alert.too_late, alert.rate) == (len(distances), share(came, windows))
        assert (alert.split, alert.split_too_late) == (most, splits.count(most))
        assert alert.split_records == sum(each.split == most for each in came)
        assert alert.late_by_max_ms == distances[-1]
        assert sum(d > alert.late_by_p50_ms for d in distances) <= len(distances) / 2


@given(data=st.data(), windows=small_windows(), per=st.integers(1, 40), threshold=THRESHOLDS)
def test_the_suggested_allowed_lateness_is_the_smallest_that_is_enough(
    data: st.DataObject, windows: Windows, per: int, threshold: float
) -> None:
    """The same period, judged with it, is within the threshold; with 1 ms less it is not."""
    stream = data.draw(streams(windows))
    for alert in judged(cut(stream), windows, per, threshold=threshold):
        came = periods_of(stream, per)[alert.period_start_ms]
        size, offset = windows.size_ms, windows.offset_ms
        enough = windows_of(size, alert.suggested_allowed_lateness_ms, offset)
        assert share(came, enough) <= threshold
        assert alert.suggested_allowed_lateness_ms < 1000
        less = windows_of(size, alert.suggested_allowed_lateness_ms - 1, offset)
        assert share(came, less) > threshold


@given(data=st.data(), windows=small_windows(), bound=st.integers(0, 15), threshold=THRESHOLDS)
def test_the_suggested_bound_is_enough_too(
    data: st.DataObject, windows: Windows, bound: int, threshold: float
) -> None:
    """The records of the period, read again with that bound, are within the threshold."""
    read = data.draw(events(windows, most=40))
    stream = [Came("a", *each) for each in bounded(read, bound)]
    for alert in judged(cut(stream), windows, 20, threshold=threshold, bound_ms=bound):
        assert alert.suggested_bound_ms is not None
        wider = [Came("a", *each) for each in bounded(read, alert.suggested_bound_ms)]
        came = [n for n, each in enumerate(stream) if each.stamp // 20 * 20 == alert[0]]
        assert share([wider[n] for n in came], windows) <= threshold


@pytest.mark.parametrize(("by", "suggested"), [(0, 501), (498, 999), (499, 1000), (500, 2000)])
def test_suggestions_from_a_second_on_are_whole_seconds(by: int, suggested: int) -> None:
    """As people would write them."""
    windows = Windows("1s", allowed_lateness="500ms")
    batch = batch_of([(Event("k", 1, 999), 1500 + by)])
    (alert,) = judged([batch], windows, MINUTE, threshold=0)
    assert alert.suggested_allowed_lateness_ms == suggested


@settings(max_examples=8)
@given(data=st.data(), windows=small_windows(), threshold=THRESHOLDS)
def test_on_an_engine_the_batches_do_not_matter_either(
    data: st.DataObject, windows: Windows, threshold: float
) -> None:
    """The alerts are those of the plain logic, in order, for any cut of the stream."""
    stream = data.draw(streams(windows))
    alerts = LateRateAlert(windows, threshold, per="15ms", at_most_every="40ms")
    expected, *_ = limit_rate(judged(cut(stream), windows, 15, threshold=threshold), 40, None, 0)
    assert alerts_of(cut(stream, data.draw(CUTS)), alerts) == expected


def test_alerts_are_limited_and_those_held_back_are_counted_in_the_next() -> None:
    """Ten minutes apart by default, however far the watermark jumps at once."""
    stream = [came for n in (*range(1, 24), 50) for came in minute(n, 4, 10)]
    found = alerts_of(cut(stream), LateRateAlert(WINDOWS))
    got = [(alert.period_start_ms // MINUTE, alert.suppressed) for alert in found]
    assert got == [(1, 0), (11, 9), (21, 9), (50, 2)]


@given(
    times=st.lists(st.integers(0, 200), unique=True).map(sorted),
    every=st.integers(0, 50),
    turns=st.lists(st.integers(0, 200)),
)
def test_a_rate_limit_holds_back_only_what_follows_an_alert_too_soon(
    times: list[int], every: int, turns: list[int]
) -> None:
    """One goes out if none did within `every`; how many are judged at once does not matter."""
    alerts = [LateAlert(t, t + 1, 1, 1, 1.0, "a", 1, 1, 0, 0, 0) for t in times]
    expected: list[tuple[int, int]] = []
    held = 0
    for t in times:
        if expected and t - expected[-1][0] < every:
            held += 1
        else:
            expected.append((t, held))
            held = 0
    edges = [0, *sorted(turns), 201]
    last: int | None = None
    suppressed, got = 0, list[LateAlert]()
    for low, high in itertools.pairwise(edges):
        turn = [alert for alert in reversed(alerts) if low <= alert.period_start_ms < high]
        admitted, last, suppressed = limit_rate(turn, every, last, suppressed)
        got += admitted
    assert [(alert.period_start_ms, alert.suppressed) for alert in got] == expected
    assert suppressed == held


@given(
    seed=st.integers(0, 2**32),
    magnitude=st.integers(1, 48),
    size=st.integers(1, 6_000),
    share_=st.floats(0, 0.999),
    cuts=st.lists(st.integers(0, 6_000), max_size=5),
)
def test_many_distances_are_rounded_up_a_little_and_merge_in_any_order(
    seed: int, magnitude: int, size: int, share_: float, cuts: list[int]
) -> None:
    """Never too small, 1/32 too large at most, exact if few, and the same from any parts."""
    random = np.random.default_rng(seed)
    values = np.exp2(random.uniform(0, magnitude, size)).astype(np.int64) - 1
    whole = Distances(values)
    parts = [Distances(part) for part in np.split(values, sorted(min(c, size) for c in cuts))]
    merged = Distances.merge(parts[::-1])
    assert Summary("a", 1, merged).encode() == Summary("a", 1, whole).encode()
    assert len(whole.values) <= 2048
    records = int(share_ * size)
    exact = int(np.sort(values)[size - 1 - records])
    assert exact <= whole.exceeded_by(records) <= exact * 33 / 32
    if len(np.unique(values)) <= 2048:
        assert whole.exceeded_by(records) == exact
    assert whole.largest == values.max()


@given(records=st.integers(1, 10**6), threshold=st.floats(0, 1, exclude_max=True))
def test_the_threshold_tolerates_the_most_records_within_it(records: int, threshold: float) -> None:
    """And never one more, whatever the binary fractions."""
    tolerated = LateRateRule(threshold, 0).tolerated(records)
    assert tolerated / records <= threshold < (tolerated + 1) / records


def test_a_splits_name_that_is_no_utf8_survives() -> None:
    """As a file's may be."""
    batch = batch_of([(Event("k", 1, 0), MINUTE)], "caf\udce9")
    (alert,) = alerts_of([batch], LateRateAlert(WINDOWS))
    assert alert.split == "caf\udce9"


@pytest.mark.parametrize("threshold", [-0.1, 1, 1.5, math.nan, 2])
def test_a_threshold_that_is_no_share_is_refused(threshold: float) -> None:
    """With what it was."""
    with pytest.raises(ValueError, match=rf"threshold .* must be a share .* got {threshold}"):
        LateRateAlert(WINDOWS, threshold)


@pytest.mark.parametrize("wrong", [{"per": 0}, {"bound": "-1s"}, {"at_most_every": "soon"}])
def test_a_duration_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    """By its name."""
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}( \(.*\))? must"):
        LateRateAlert(WINDOWS, **wrong)


def test_a_collection_without_stamps_is_refused() -> None:
    """At expansion: only `ReadEvents` knows the watermark at which a record came."""
    with pytest.raises(ValueError, match=r"LateRateAlert takes the events of ReadEvents"):
        _ = direct_pipeline() | beam.Create([("k", 1)]) | LateRateAlert(WINDOWS)


@pytest.mark.prism
def test_prism_and_the_direct_runner_give_the_same_alerts(prism: str, tmp_path: Path) -> None:
    """From the same file with markers, in blocks of another size."""
    steps: list[Step] = []
    for came in [each for n in (1, 2, 5, 13) for each in minute(n, 4 * (n != 2), 20)]:
        steps += [came.event, Advance(came.stamp)]
    write_steps(steps, tmp_path / "steps.jsonl")
    flags = ["--runner=PrismRunner", f"--prism_location={prism}", "--prism_log_level=warn"]
    options = PipelineOptions([*flags, "--streaming", "--experiments=prism_disable_sdf_split"])
    found = []
    for embedded in (True, False):
        folder = tmp_path / str(embedded)
        runner = beam.Pipeline(PrismRunner(), options=options)
        with direct_pipeline() if embedded else runner as pipeline:
            settings = ReadSettings(block_bytes=100 if embedded else 700)
            read = pipeline | read_steps(tmp_path / "steps.jsonl", embedded, settings)
            keep(read.events | LateRateAlert(WINDOWS, bound="2s"), folder, "alerts")
        found.append(sorted(kept(folder, "alerts")))
    assert found[0] == found[1]
    assert [alert.period_start_ms // MINUTE for alert in found[0]] == [1, 13]

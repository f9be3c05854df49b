"""`LateRateAlert`: says when too many records are too late, and what would have kept them.

A batch is counted where it is: one small summary per (period, split) travels on, with the stamp as
its timestamp. A stamp is never behind the engine's watermark, so no summary is late, and a period
is over when the watermark passes its end. What is counted depends on the stamps alone: not on the
engine, nor on how the stream is cut into batches.

How far too late records were is kept as a histogram. DataSketches' REQ draws random numbers and
its t-digest depends on the order of merges: suggestions could change, and be too small.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import PCollection
from apache_beam.transforms import userstate
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.typehints import typehints
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms import metrics
from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.beam_time import to_ms, to_timestamp
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.times import (
    MAX_DURATION_MS,
    NO_WATERMARK_MS,
    Duration,
    Flags,
    Millis,
    duration_ms,
)

_PERIODS_APART: Final = 10
_EXACT: Final = 63
_BITS: Final = (_EXACT, 12, 11, 10, 9, 8, 7, 6)
_MOST_DISTANCES: Final = 2048  # 6 bits always fit: 32 distances for each doubling, up to 2**53 ms
_ONE_KEY: Final = 0

_ALERTS = metrics.Count(metrics.ALERTS)


class LateAlert(NamedTuple):
    """A period in which more records were too late than the threshold allows.

    Args:
        period_start_ms: Start of the period of watermark time, ms, inclusive.
        period_end_ms: Its end, ms, exclusive.
        records: How many records came in it.
        too_late: How many of them were too late.
        rate: `too_late / records`.
        split: The split with the most too late records; of equals, the first by name.
        split_records: How many records of that split came.
        split_too_late: How many of those were too late.
        late_by_p50_ms: Half of the too late records were late by at most this, ms, counted from
            `window end + allowed lateness`.
        late_by_max_ms: The most that one was late by, ms.
        suggested_allowed_lateness_ms: With this allowed lateness the share of the period's records
            that are too late would have been within the threshold; whole seconds from 1 s on.
        suggested_bound_ms: The bound that does the same with the allowed lateness as it is; None
            where the bound is not known.
        suppressed: How many alerts were held back since the one before (`at_most_every`).
    """

    period_start_ms: int
    period_end_ms: int
    records: int
    too_late: int
    rate: float
    split: str
    split_records: int
    split_too_late: int
    late_by_p50_ms: int
    late_by_max_ms: int
    suggested_allowed_lateness_ms: int
    suggested_bound_ms: int | None = None
    suppressed: int = 0


class Distances:
    """How far records were too late, in ms: exact up to 2,048 different values.

    More are rounded up to so many significant bits (at most 12, at least 6: by 3% at the most) as
    fit, so that what is suggested from them is never too small. The result is the same in whatever
    order, and from whatever parts, it was merged.

    Args:
        values: The distances, ms, >= 0; any order.
        counts: How many records each stands for; None for one.
        largest: The largest before any rounding, ms.
        bits: The significant bits that `values` have been rounded to.
    """

    def __init__(
        self, values: Millis, counts: Millis | None = None, largest: int = 0, bits: int = _EXACT
    ) -> None:
        self.largest = max(largest, int(values.max(initial=0)) if bits == _EXACT else 0)
        counts = np.ones(len(values), np.int64) if counts is None else counts
        for self.bits in _BITS[_BITS.index(bits) :]:
            self.values, inverse = np.unique(_round_up(values, self.bits), return_inverse=True)
            if len(self.values) <= _MOST_DISTANCES:
                break
        self.counts: Millis = np.zeros(len(self.values), np.int64)
        np.add.at(self.counts, inverse, counts)

    @classmethod
    def merge(cls, parts: list[Distances]) -> Distances:
        """Merges parts, of which there is at least one."""
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.counts for part in parts]),
            max(part.largest for part in parts),
            min(part.bits for part in parts),
        )

    def exceeded_by(self, records: int) -> int:
        """Gives the smallest distance, in ms, that at most `records` (not all) of them exceed.

        Example:
            >>> Distances(np.array([10, 30, 20, 40])).exceeded_by(1)
            30
        """
        above = np.cumsum(self.counts[::-1])
        place = int(np.searchsorted(above, records, side="right"))
        return min(int(self.values[::-1][place]), self.largest)


def _round_up(values: Millis, bits: int) -> Millis:
    """Rounds up to a number of significant bits; fewer bits later give the same as at once."""
    if bits == _EXACT:
        return values
    shift = np.maximum(np.frexp(values)[1] - bits, 0)
    rounded: Millis = -(-values >> shift) << shift
    return rounded


class Summary(NamedTuple):
    """How many records of a split came in a period, and how far too late those were that were."""

    split: str
    records: int
    too_late: Distances

    def encode(self) -> bytes:
        """Writes it; a name that is no UTF-8 survives."""
        split, records, late = self
        histogram = [late.values.tolist(), late.counts.tolist(), late.largest, late.bits]
        return json.dumps([split, records, *histogram]).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> Summary:
        """Reads what `encode` wrote."""
        split, records, values, counts, largest, bits = json.loads(encoded)
        as_array = (np.array(values, np.int64), np.array(counts, np.int64))
        return cls(split, records, Distances(*as_array, largest, bits))


def summarise(batch: EventBatch, windows: Windows, per_ms: int) -> Iterator[tuple[int, Summary]]:
    """Gives a summary of each period that a batch's stamps lie in, with its smallest stamp, in ms.

    Records from before the first watermark are in no period: none of them can be too late.
    """
    stamps = batch.watermarks
    late_by = stamps - windows.closed_at(batch.event_times)
    started: Flags = stamps > NO_WATERMARK_MS + 1  # Beam's smallest timestamp is no watermark
    if not started.all():
        stamps, late_by = stamps[started], late_by[started]
    order = np.argsort(stamps, kind="stable")  # they are in order already, if all is well
    stamps, late_by = stamps[order], late_by[order]
    ends = np.flatnonzero(np.diff(stamps // per_ms)) + 1
    for low, high in itertools.pairwise([0, *ends.tolist(), len(stamps)] if len(stamps) else []):
        distances = late_by[low:high]
        summary = Summary(batch.split, high - low, Distances(distances[distances >= 0]))
        yield int(stamps[low]), summary


@dataclass(frozen=True)
class LateRateRule:
    """When a period is worth an alert.

    Args:
        threshold: The share of records that may be too late.
        allowed_lateness_ms: The allowed lateness as it is, in ms.
        bound_ms: The bound as it is, in ms; None where it is not known.
    """

    threshold: float
    allowed_lateness_ms: int
    bound_ms: int | None = None

    def judge(self, start_ms: int, end_ms: int, summaries: Iterable[Summary]) -> LateAlert | None:
        """Gives the alert of a period, if its rate is above the threshold."""
        by_split: dict[str, tuple[int, int]] = {}
        parts = []
        for split, more, distances in summaries:
            count = int(distances.counts.sum())
            before = by_split.get(split, (0, 0))
            by_split[split] = (before[0] + more, before[1] + count)
            if count:
                parts.append(distances)
        records, too_late = (sum(column) for column in zip(*by_split.values(), strict=True))
        tolerated = self.tolerated(records)
        if too_late <= tolerated:
            return None
        merged = Distances.merge(parts)
        more_ms = merged.exceeded_by(tolerated) + 1
        bound_ms = None if self.bound_ms is None else _suggestion(self.bound_ms + more_ms)
        _, split = min((-late, name) for name, (_, late) in by_split.items())
        return LateAlert(
            period_start_ms=start_ms,
            period_end_ms=end_ms,
            records=records,
            too_late=too_late,
            rate=too_late / records,
            split=split,
            split_records=by_split[split][0],
            split_too_late=by_split[split][1],
            late_by_p50_ms=merged.exceeded_by(too_late // 2),
            late_by_max_ms=merged.largest,
            suggested_allowed_lateness_ms=_suggestion(self.allowed_lateness_ms + more_ms),
            suggested_bound_ms=bound_ms,
        )

    def tolerated(self, records: int) -> int:
        """Gives how many of so many records may be too late: the most within the threshold."""
        most = min(int(self.threshold * records) + 1, records)  # the product may be a hair off
        while most / records > self.threshold:
            most -= 1
        return most


def _suggestion(ms: int) -> int:
    """Rounds a duration up to what people would write: whole seconds from 1 s on."""
    return min(ms if ms < 1000 else -(-ms // 1000) * 1000, MAX_DURATION_MS)


def limit_rate(
    alerts: Iterable[LateAlert], every_ms: int, last_ms: int | None, suppressed: int
) -> tuple[list[LateAlert], int | None, int]:
    """Lets alerts through that are `every_ms` apart at least, in order of time.

    Gives them, and what `last_ms` and `suppressed` are then: the end of the last one's period, ms
    (None before the first), and how many were held back since.
    """
    admitted = []
    for alert in sorted(alerts):
        if last_ms is not None and alert.period_end_ms - last_ms < every_ms:
            suppressed += 1
            continue
        admitted.append(alert._replace(suppressed=suppressed))
        last_ms, suppressed = alert.period_end_ms, 0
    return admitted, last_ms, suppressed


@dataclass(eq=False)
class LateRateAlert(beam.PTransform[PCollection[EventBatch], PCollection[LateAlert]]):
    """Gives an alert for a period in which more records were too late than `threshold` allows.

    Put it beside `RouteTooLate`, with the same windows, on the events of `ReadEvents`. It judges
    as `RouteTooLate` does by stamps: a record is too late if and only if
    `stamp >= window end + allowed lateness`. A record is of the period in which its stamp lies;
    records from before their source's first watermark are in none. It takes
    `PCollection[EventBatch]` and gives `PCollection[LateAlert]` in the global window.

    Watermark: an alert comes when the watermark passes its period's end.

    Args:
        windows: The windows and their allowed lateness.
        threshold: The share of a period's records that may be too late; 0 for none.
        per: Length of a period of watermark time. Periods start at multiples of it.
        bound: The bound of the watermark strategy, for a suggestion of another.
        at_most_every: How far apart alerts are at least, in watermark time: one that comes sooner
            is held back, and counted in the next. After that long without an alert, the first
            period above the threshold brings one at once. None for ten periods, 0 for no limit.

    Raises:
        ValueError: If `threshold` is not in [0, 1) or a duration is out of range; at expansion, if
            the input has no stamps: it is none of `ReadEvents`.

    Example:
        >>> LateRateAlert(Windows("1m", allowed_lateness="2m"), threshold=0.02).per
        '1m'
    """

    windows: Windows
    threshold: float = 0.01
    per: Duration = "1m"
    bound: Duration | None = None
    at_most_every: Duration | None = None

    def __post_init__(self) -> None:
        super().__init__()
        if not 0 <= self.threshold < 1:
            msg = (
                "threshold (--alert_threshold) must be a share of at least 0 and less than 1, got "
                f"{self.threshold!r}; 0.01 is one record in a hundred"
            )
            raise ValueError(msg)
        self._per_ms = duration_ms(self.per, name="per (--alert_per)", minimum_ms=1)
        bound_ms = None if self.bound is None else duration_ms(self.bound, name="bound")
        self._every_ms = _PERIODS_APART * self._per_ms
        if self.at_most_every is not None:
            self._every_ms = duration_ms(self.at_most_every, name="at_most_every")
        self._rule = LateRateRule(self.threshold, self.windows.allowed_lateness_ms, bound_ms)

    def expand(self, batches: PCollection[EventBatch]) -> PCollection[LateAlert]:
        """Counts batches, judges periods, and limits how often it tells."""
        if batches.element_type is not EventBatch:
            msg = (
                "LateRateAlert takes the events of ReadEvents, whose records are stamped with "
                f"their watermark, got a collection of {batches.element_type}"
            )
            raise ValueError(msg)
        summary = typehints.Tuple[int, bytes]  # all under one key
        summaries = batches | "Summarise" >> beam.ParDo(
            _Summarise(self.windows, self._per_ms)
        ).with_output_types(summary)
        size = BeamDuration(micros=self._per_ms * 1000)
        alerts: PCollection[LateAlert] = (
            summaries
            | "Periods" >> beam.WindowInto(FixedWindows(size))
            | "GroupPeriods" >> beam.GroupByKey()
            | "JudgePeriods" >> beam.ParDo(_JudgePeriods(self._rule)).with_output_types(summary)
            | "AlertsToGlobal" >> beam.WindowInto(GlobalWindows())
            | "LimitRate" >> beam.ParDo(_LimitRate(self._every_ms)).with_output_types(LateAlert)
        )
        return alerts


class _Summarise(beam.DoFn):
    """Summarises batches, each summary at its smallest stamp."""

    def __init__(self, windows: Windows, per_ms: int) -> None:
        self._windows = windows
        self._per_ms = per_ms

    def process(self, element: EventBatch) -> Iterator[Any]:
        for stamp, summary in summarise(element, self._windows, self._per_ms):
            yield TimestampedValue((_ONE_KEY, summary.encode()), to_timestamp(stamp))


class _JudgePeriods(beam.DoFn):
    """Judges a period by all its summaries."""

    def __init__(self, rule: LateRateRule) -> None:
        self._rule = rule

    def process(
        self, element: tuple[int, Iterable[bytes]], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[int, bytes]]:
        summaries = map(Summary.decode, element[1])
        alert = self._rule.judge(to_ms(window.start), to_ms(window.end), summaries)
        if alert is not None:
            yield _ONE_KEY, json.dumps(alert).encode()


class _LimitRate(beam.DoFn):
    """Limits how often alerts go out.

    Several periods may end at once, and come in any order: the timer at a period's end fires when
    the watermark is there, and so every earlier period has come.
    """

    WAITING = userstate.BagStateSpec("waiting", BytesCoder())
    LIMIT = userstate.ReadModifyWriteStateSpec("limit", BytesCoder())
    DUE = userstate.TimerSpec("due", TimeDomain.WATERMARK)
    _WAITING = beam.DoFn.StateParam(WAITING)
    _LIMIT = beam.DoFn.StateParam(LIMIT)
    _DUE = beam.DoFn.TimerParam(DUE)

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms

    def process(self, element: tuple[int, bytes], waiting: Any = _WAITING, due: Any = _DUE) -> None:
        waiting.add(element[1])
        due.set(to_timestamp(max(alert.period_end_ms for alert in _alerts(waiting))))

    @userstate.on_timer(DUE)
    def tell(self, waiting: Any = _WAITING, limit: Any = _LIMIT) -> Iterator[LateAlert]:
        before = json.loads(limit.read() or b"[null, 0]")
        admitted, *after = limit_rate(_alerts(waiting), self._every_ms, *before)
        waiting.clear()
        limit.write(json.dumps(after).encode())
        _ALERTS.inc(len(admitted))
        yield from admitted


def _alerts(waiting: Any) -> list[LateAlert]:
    return [LateAlert(*json.loads(alert)) for alert in waiting.read()]

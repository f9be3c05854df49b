"""The public API as users write it: checked by mypy (`make lint`), never run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.combiners import MeanCombineFn
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from typing_extensions import assert_type

from beam_lateness import (
    AggregateWindows,
    AppendPanes,
    AppendPanesToFiles,
    AuditResult,
    CommitAfterStore,
    Corrected,
    Csv,
    EventBatch,
    FieldTime,
    Files,
    InvalidRecord,
    JsonLines,
    Kafka,
    LateAlert,
    LateRateAlert,
    Left,
    MessageTime,
    Pane,
    PublishDeadLetters,
    PublishPanes,
    PubSub,
    ReadDeadLetters,
    ReadEvents,
    ReadEventsResult,
    ReadSettings,
    Reconcile,
    ReconcileResult,
    RefusedPane,
    RemoveStale,
    RouteTooLate,
    RouteTooLateResult,
    SendAlerts,
    TooLateRecord,
    UpsertPanes,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
    Windows,
    WindowWithLateness,
    WriteDeadLetters,
    verify_audit,
)


def strategies() -> list[WatermarkStrategy]:
    """Every way to make a strategy, every way to give a duration, every assigner."""

    def assign(record: Mapping[str, Any]) -> int:
        return int(record["at"])

    bounded = WatermarkStrategy.for_bounded_out_of_orderness("15m")
    assert_type(bounded, WatermarkStrategy)
    assert_type(bounded.with_timestamp_assigner("at"), WatermarkStrategy)
    return [
        bounded,
        WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5)),
        WatermarkStrategy.for_bounded_out_of_orderness(0.2),
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assign),
        WatermarkStrategy.for_markers("end").with_timestamp_assigner(FieldTime("at", unit="s")),
        WatermarkStrategy.no_watermarks(),
    ]


class Collector:
    """A `WatermarkOutput` of a user's own."""

    def emit_watermark(self, watermark_ms: int) -> None:
        """Takes a watermark."""


def drive(strategy: WatermarkStrategy) -> int:
    """Runs a generator by hand."""
    output: WatermarkOutput = Collector()
    generator: WatermarkGenerator = strategy.create_generator()
    generator.on_event({"k": 1}, 1_000, output)
    generator.on_periodic_emit(output)
    return strategy.create_generator().watermark_ms


@dataclass
class Newest:
    """The state of a generator of a user's own."""

    event_time_ms: int = 0


class Own(WatermarkGenerator):
    """A generator of a user's own, whose state has its type."""

    def __init__(self, bound_ms: int = 5) -> None:
        self.state: Newest = Newest()
        self.bound_ms = bound_ms

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers the newest."""
        self.state.event_time_ms = max(self.state.event_time_ms, event_time_ms)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emits."""
        output.emit_watermark(self.state.event_time_ms - self.bound_ms - 1)


def more_strategies() -> list[WatermarkStrategy]:
    """What a live source may add."""
    own = WatermarkStrategy.for_generator(Own, emit_interval=timedelta(seconds=1))
    return [
        own.with_idleness("1m"),
        WatermarkStrategy.for_generator(partial(Own, 7), marker_field="end").with_merged_splits(),
        WatermarkStrategy.for_self_adjusting_bound("1s", 60, quantile=0.95, period="5m")
        .with_idleness(30.0, on_all_idle="advance")
        .with_watermark_alignment("payments", "30s", update_interval=0.5),
    ]


def arithmetic(windows: Windows) -> int:
    """Windows as arithmetic."""
    assert_type(windows.start_of(90_000), int)
    assert_type(windows.closed_at(90_000), int)
    return windows.size_ms + windows.allowed_lateness_ms + windows.offset_ms


def stamped_job(pipeline: beam.Pipeline) -> None:
    """The main job, built by hand."""
    windows = Windows("1h", allowed_lateness="60m", offset=timedelta(minutes=15))
    files = Files(["flights.jsonl"], JsonLines("origin", "distance", id="event_id"))
    settings = ReadSettings(block_bytes=1 << 20)
    read: ReadEventsResult = pipeline | ReadEvents(files, strategies()[0], settings)
    assert_type(read.events, PCollection[EventBatch])
    assert_type(read.invalid, PCollection[InvalidRecord])
    routed: RouteTooLateResult = read.events | RouteTooLate(windows)
    assert_type(routed.too_late, PCollection[TooLateRecord])
    aggregate = AggregateWindows(windows, ("sum", "count"), num_shards=2)
    panes: PCollection[Pane] = routed.accepted | aggregate
    _ = panes | UpsertPanes("sqlite:///windows.db", run="r1")
    _ = read.invalid | "Invalid" >> WriteDeadLetters("dead", "r1")
    _ = routed.too_late | "TooLate" >> WriteDeadLetters("dead", "r1")


def labelled_job(pipeline: beam.Pipeline) -> None:
    """The same with labels of the user's own, on CSV."""
    windows = Windows(60)
    files = Files(("a.csv", "b.csv"), Csv("account"), follow=True)
    read = pipeline | "Read" >> ReadEvents(files, strategies()[1])
    routed = read.events | "Route" >> RouteTooLate(windows, verdict="engine")
    _ = routed.accepted | "Count" >> AggregateWindows(windows, "count")


def own_records(records: PCollection[tuple[str, int]]) -> None:
    """On any collection with event times, with a `CombineFn`, and with Beam's own windowing."""
    windows = Windows("1m", allowed_lateness="2m")
    routed = records | RouteTooLate(windows)
    _ = routed.accepted | AggregateWindows(
        windows,
        MeanCombineFn(),
        accumulation_mode=AccumulationMode.DISCARDING,
    )
    trigger = AfterWatermark(early=AfterCount(10), late=AfterCount(1))
    _ = routed.accepted | WindowWithLateness(windows, trigger) | beam.GroupByKey()


def fields(pane: Pane, late: TooLateRecord, invalid: InvalidRecord) -> None:
    """The fields of the results."""
    assert_type(pane.window_start, int)
    assert_type(pane.count, int)
    assert_type(pane.index, int)
    assert_type(pane.timing, str)
    assert_type(late.watermark, int | None)
    assert_type(late.late_by_ms, int | None)
    assert_type(late.payload, bytes | None)
    assert_type(invalid.reason, str)
    assert_type(invalid.record_id, str | None)


def live(pipeline: beam.Pipeline) -> None:
    """Topics in and out, acknowledged by the store."""
    store, run = "sqlite:///windows.db", "run-1"
    windows = Windows("1m", allowed_lateness="2m")
    commits = CommitAfterStore(run, windows, store, retract=RemoveStale(store))
    lines = JsonLines("account", "amount_cents", "payment_id")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("30s")
    kafka = Kafka("broker:9092", "payments", lines, group="g", options={"sasl.username": "me"})
    read: ReadEventsResult = pipeline | ReadEvents(
        kafka, strategy.with_timestamp_assigner(MessageTime()), commits=commits
    )
    pubsub = PubSub(["projects/p/subscriptions/s"], lines, lease=timedelta(seconds=30))
    by_attribute = strategy.with_timestamp_assigner(MessageTime("created_at", unit="iso"))
    ReadEvents(pubsub, by_attribute)
    routed = read.events | RouteTooLate(windows)
    panes = routed.accepted | AggregateWindows(windows)
    panes | UpsertPanes(store, run, written=commits.panes_written)
    panes | PublishPanes("kafka://broker:9092/panes", run, written=commits.panes_written)
    routed.too_late | PublishDeadLetters(
        "pubsub://projects/p/topics/t", run, written=commits.letters_written
    )


def in_production(pipeline: beam.Pipeline, events: PCollection[EventBatch]) -> None:
    """An audited table, appended panes, alerts; and the nightly job."""
    windows, store = Windows("1m", allowed_lateness="2m"), "postgresql://app@localhost/bank"
    panes: PCollection[Pane] = events | AggregateWindows(windows, "sum", trace=True)
    refused: PCollection[RefusedPane] = panes | UpsertPanes(
        store, "run-1", table="audited", audit=True, emit_refused=True
    )
    _ = refused | "Refused" >> WriteDeadLetters("dead", "run-1")
    _ = panes | AppendPanes(store, "run-1", values="json")
    _ = panes | AppendPanesToFiles("panes", "run-1", file_format="parquet")
    alerts: PCollection[LateAlert] = events | LateRateAlert(windows, 0.01, per="5m", bound="30s")
    _ = alerts | SendAlerts("https://alerts.example/hook", timeout="3s")
    letters = pipeline | ReadDeadLetters(["dead/a.jsonl"], start_ms=0)
    done: ReconcileResult = letters.letters | Reconcile(store, "night-1", ("sum",), "audited")
    assert_type(done.corrected, PCollection[Corrected])
    assert_type(done.left, PCollection[Left])
    found: AuditResult = verify_audit(store, "audited")
    assert_type(found.problems, tuple[str, ...])

"""Late data for Apache Beam in Python.

Watermark strategies, panes that correct themselves, and a `too_late` output, so that
input = aggregated + too late + invalid, always.
"""

from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.lateness.aggregate import AggregateWindows
from beam_lateness.transforms.lateness.alerts import LateAlert, LateRateAlert
from beam_lateness.transforms.lateness.classify import RouteTooLate, RouteTooLateResult
from beam_lateness.transforms.lateness.tag_late import TagLate, TagLateResult
from beam_lateness.transforms.lateness.window_with_lateness import WindowWithLateness
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.reconcile.corrected import Corrected
from beam_lateness.transforms.reconcile.letters import Left
from beam_lateness.transforms.reconcile.reconcile import (
    ReadDeadLetters,
    Reconcile,
    ReconcileResult,
)
from beam_lateness.transforms.results import InvalidRecord, Pane, RefusedPane, TooLateRecord
from beam_lateness.transforms.sinks.alerts import SendAlerts
from beam_lateness.transforms.sinks.append import AppendPanes
from beam_lateness.transforms.sinks.append_files import AppendPanesToFiles
from beam_lateness.transforms.sinks.audit_check import AuditResult, verify_audit
from beam_lateness.transforms.sinks.bigquery import UpsertPanesToBigQuery, create_table_sql
from beam_lateness.transforms.sinks.dead_letters import WriteDeadLetters
from beam_lateness.transforms.sinks.stale import RemoveStale
from beam_lateness.transforms.sinks.topics import PublishDeadLetters, PublishPanes
from beam_lateness.transforms.sinks.upsert import UpsertPanes
from beam_lateness.transforms.sources.explain import Explanation, explain
from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import Csv, JsonLines
from beam_lateness.transforms.sources.kafka import Kafka
from beam_lateness.transforms.sources.pubsub import PubSub
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.reader import ReadEvents, ReadEventsResult
from beam_lateness.transforms.watermarks.generators import WatermarkGenerator, WatermarkOutput
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime, MessageTime

__all__ = [
    "AggregateWindows",
    "AppendPanes",
    "AppendPanesToFiles",
    "AuditResult",
    "CommitAfterStore",
    "Corrected",
    "Csv",
    "EventBatch",
    "Explanation",
    "FieldTime",
    "Files",
    "InvalidRecord",
    "JsonLines",
    "Kafka",
    "LateAlert",
    "LateRateAlert",
    "Left",
    "MessageTime",
    "Pane",
    "PubSub",
    "PublishDeadLetters",
    "PublishPanes",
    "ReadDeadLetters",
    "ReadEvents",
    "ReadEventsResult",
    "ReadSettings",
    "Reconcile",
    "ReconcileResult",
    "RefusedPane",
    "RemoveStale",
    "RouteTooLate",
    "RouteTooLateResult",
    "SendAlerts",
    "TagLate",
    "TagLateResult",
    "TooLateRecord",
    "UpsertPanes",
    "UpsertPanesToBigQuery",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowWithLateness",
    "Windows",
    "WriteDeadLetters",
    "create_table_sql",
    "explain",
    "verify_audit",
]

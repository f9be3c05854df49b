"""`ReadDeadLetters` and `Reconcile`: a bounded job that brings records into their windows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import typehints

from beam_lateness.transforms import metrics
from beam_lateness.transforms.database import without_login
from beam_lateness.transforms.reconcile.corrected import Corrected
from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import APPLIED, Ledger
from beam_lateness.transforms.reconcile.letters import NOT_TOO_LATE, Left, Letter, read_letters
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, Cell

LEFT_TAG: Final = "left"
_WINDOWS_AT_ONCE: Final = 200

_LETTERS = metrics.Count(metrics.DEAD_LETTERS)
_RECONCILED = metrics.Count(metrics.RECONCILED)
_APPLIED = metrics.Count(metrics.ALREADY_RECONCILED)
_LEFT = metrics.Count(metrics.LEFT)
_CORRECTED = metrics.Count(metrics.CORRECTED_WINDOWS)


@dataclass(frozen=True)
class ReconcileResult:
    """What `Reconcile` gives.

    Args:
        corrected: `PCollection[Corrected]`.
        left: `PCollection[Left]`, each with its reason.
    """

    corrected: PCollection[Corrected]
    left: PCollection[Left]


@dataclass(frozen=True)
class DeadLetters:
    """What `ReadDeadLetters` gives.

    Args:
        letters: `PCollection[tuple[tuple[str, int], bytes]]`: records by key and window.
        left: `PCollection[Left]`: what is no such record.
    """

    letters: PCollection[Any]
    left: PCollection[Left]


def find_letters(pattern: str) -> list[tuple[str, int]]:
    """Finds the files of dead letters.

    Args:
        pattern: A folder, or a glob; of any filesystem that Beam knows.

    Returns:
        Names and sizes in bytes, in the order of the names.

    Raises:
        ValueError: If there is none.
    """
    tried = [pattern, FileSystems.join(pattern, "*.jsonl")]
    try:
        matched = FileSystems.match(tried)
    except Exception as error:  # of the filesystem
        msg = f"dead_letters (--dead_letters) {without_login(pattern)!r} cannot be read: {error}"
        raise ValueError(msg) from error
    files = {each.path: each.size_in_bytes for result in matched for each in result.metadata_list}
    found = sorted((path, size) for path, size in files.items() if path.endswith(".jsonl"))
    if not found:
        msg = (
            f"dead_letters (--dead_letters) {pattern!r} holds no *.jsonl; give the folder of the "
            "job's --dead_letters (a topic's messages must be written to files first)"
        )
        raise ValueError(msg)
    return found


@dataclass(eq=False)
class ReadDeadLetters(beam.PTransform[PBegin, DeadLetters]):
    """Reads dead letters, for `Reconcile`.

    Watermark: a bounded input; it goes to the end of time.

    Args:
        files: Files of JSON lines, as `WriteDeadLetters` makes them.
        start_ms: Records of windows that start at this or later, in ms; None for all.
        end_ms: Records of windows that start before this; None for all.
        of_run: Only those that this run of the job wrote; None for all.

    Returns:
        A `DeadLetters`.

    Example:
        >>> ReadDeadLetters(["dead-letters/a.jsonl"]).of_run is None
        True
    """

    files: list[str]
    start_ms: int | None = None
    end_ms: int | None = None
    of_run: str | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, pbegin: PBegin) -> DeadLetters:
        """Reads file by file."""
        read = (
            pbegin
            | "Start" >> beam.Impulse()
            | "Files" >> beam.ParDo(_Give(self.files))
            | "Spread" >> beam.Reshuffle()
            | "ReadLetters"
            >> beam.ParDo(_ReadLetters(self.start_ms, self.end_ms, self.of_run)).with_outputs(
                LEFT_TAG, main="letters"
            )
        )
        read.letters.element_type = typehints.Tuple[typehints.Tuple[str, int], bytes]
        return DeadLetters(read.letters, read[LEFT_TAG])


class _Give(beam.DoFn):
    """Gives the names of the files."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def process(self, element: bytes) -> Iterable[str]:
        return self._files


class _ReadLetters(beam.DoFn):
    """Reads a file."""

    def __init__(self, start_ms: int | None, end_ms: int | None, of_run: str | None) -> None:
        self._start_ms, self._end_ms, self._of_run = start_ms, end_ms, of_run

    def process(self, element: str) -> Iterable[Any]:
        with FileSystems.open(element) as file:
            for each in read_letters(file, element):
                if isinstance(each, Left):
                    if each.reason != NOT_TOO_LATE:  # it may have been a too late record
                        _LETTERS.inc()
                        _LEFT.inc()
                    yield TaggedOutput(LEFT_TAG, each)
                elif self._is_wanted(each):
                    _LETTERS.inc()
                    yield (each.key, each.window_start_ms), json.dumps(each).encode()

    def _is_wanted(self, letter: Letter) -> bool:
        start = letter.window_start_ms
        if self._of_run is not None and letter.run != self._of_run:
            return False
        if self._start_ms is not None and start < self._start_ms:
            return False
        return self._end_ms is None or start < self._end_ms


@dataclass(eq=False)
class Reconcile(beam.PTransform[PCollection[Any], ReconcileResult]):
    """Adds too late records to the windows that they belong to, each record once.

    It takes the letters of `ReadDeadLetters`. What it does twice, at the same time or after a
    crash, changes nothing more (see `Ledger`).

    Watermark: takes a bounded collection, gives bounded ones.

    Args:
        url: The database of the job's `UpsertPanes`.
        run: Names this reconciliation.
        aggregate: The job's aggregates.
        table: The job's table; its audit trail is written too, if it has one.
        dry_run: Whether to find out only, and change nothing.
        superseded: Whether to apply records that a later run of the job has judged again.

    Returns:
        A `ReconcileResult`.

    Raises:
        ValueError: At construction, if an aggregate is unknown.

    Example:
        >>> Reconcile("sqlite:///windows.db", "reconcile-1", ("sum",)).dry_run
        False
    """

    url: str = field(repr=False)  # may hold a password
    run: str
    aggregate: tuple[str, ...] = ("sum",)
    table: str = TABLE_NAME
    dry_run: bool = False
    superseded: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self._correction = Correction(self.aggregate)

    def expand(self, letters: PCollection[Any]) -> ReconcileResult:
        """Brings the records of a window together, and applies many windows at once."""
        open_ledger = partial(
            Ledger,
            self.url,
            self.run,
            self._correction,
            self.table,
            dry_run=self.dry_run,
            superseded=self.superseded,
        )
        done = (
            letters
            | "ByWindow" >> beam.GroupByKey()
            | "Apply" >> beam.ParDo(_Apply(open_ledger)).with_outputs(LEFT_TAG, main="corrected")
        )
        return ReconcileResult(done.corrected, done[LEFT_TAG])


class _Apply(beam.DoFn):
    """Applies the records of some windows in one transaction."""

    def __init__(self, open_ledger: Any) -> None:
        self._open = open_ledger

    def setup(self) -> None:
        self._ledger = self._open()

    def start_bundle(self) -> None:
        self._letters: dict[Cell, list[Letter]] = {}

    def process(self, element: tuple[Cell, Iterable[bytes]]) -> Iterable[Any]:
        cell, encoded = element
        self._letters[cell] = [Letter(*json.loads(each)) for each in encoded]
        if len(self._letters) >= _WINDOWS_AT_ONCE:
            yield from self._flush()

    def finish_bundle(self) -> Iterable[Any]:
        for each in self._flush():
            if isinstance(each, TaggedOutput):
                yield TaggedOutput(each.tag, GlobalWindows.windowed_value(each.value))
            else:
                yield GlobalWindows.windowed_value(each)

    def _flush(self) -> Iterable[Any]:
        letters, self._letters = self._letters, {}
        if not letters:
            return
        corrected, left = self._ledger.apply(letters)
        for each in corrected:
            _CORRECTED.inc()
            _RECONCILED.inc(len(each.record_ids))
            yield each
        for one in left:
            (_APPLIED if one.reason == APPLIED else _LEFT).inc()
            yield TaggedOutput(LEFT_TAG, one)

    def teardown(self) -> None:
        self._ledger.close()

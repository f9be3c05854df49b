"""Many writers of one table, each its own thread or process: what stands is what one had left."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_lateness import Pane, verify_audit
from beam_lateness.transforms.database import open_database
from beam_lateness.transforms.sinks.audit_trail import AuditTrail, Entry
from beam_lateness.transforms.sinks.window_table import Cell, WindowTable
from tests.transforms.sinks.databases import (
    MINUTE_MS,
    assert_holds,
    empty_database,  # noqa: F401  (pytest finds the fixture here)
    latest,
    pane,
    some_name,
)

WRITERS: Final = 8
_TIMEOUT_S: Final = 60

_together: Barrier | None = None  # of this process


class Share(NamedTuple):
    """What one writer writes: batches, each of a run."""

    url: str
    table: str
    audit: bool
    batches: Sequence[tuple[str, Sequence[Pane]]]


def _join(barrier: Barrier) -> None:
    global _together  # a pool hands on a barrier by its initializer only
    _together = barrier


def _write(share: Share) -> None:
    """Opens the table, which may not be there yet, and writes when all the others do."""
    assert _together is not None
    _together.wait(_TIMEOUT_S)
    try:
        table = WindowTable(share.url, share.table, audit=share.audit)
        try:
            _together.wait(_TIMEOUT_S)
            for run, panes in share.batches:
                table.write(panes, run)
        finally:
            table.close()
    except Exception:
        _together.abort()
        raise


@pytest.fixture(scope="module", params=["threads", "processes"])
def writers(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """Eight writers that are there at once."""
    if request.param == "threads":
        with ThreadPoolExecutor(WRITERS, "writer", _join, (threading.Barrier(WRITERS),)) as pool:
            yield pool
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(WRITERS, context, _join, (context.Barrier(WRITERS),)) as pool:
        yield pool


def numbered(run: str, key: str, minute: int, count: int, index: int) -> tuple[str, Pane]:
    """Makes a pane of a run, whose value tells which it is."""
    value = int(run[-1]) * 10_000 + count * 100 + index
    return run, pane(key, minute * MINUTE_MS, value, count, index)


RUNS = st.sampled_from(["run-1", "run-2"])
PANES = st.builds(
    numbered, RUNS, st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 4), st.integers(0, 3)
)
HISTORIES = st.lists(PANES, min_size=8, max_size=30, unique=True)


def share_out(history: Sequence[tuple[str, Pane]], seed: int) -> list[list[tuple[str, Pane]]]:
    """Gives each writer most of the panes, some of them twice, in an order of its own."""
    dice = random.Random(seed)
    shares = []
    for number in range(WRITERS):
        taken = [each for each in history if number == 0 or dice.random() < 0.6]
        taken += [each for each in taken if dice.random() < 0.3]
        dice.shuffle(taken)
        shares.append(taken)
    return shares


def batches_of(taken: Sequence[tuple[str, Pane]], size: int) -> list[tuple[str, list[Pane]]]:
    """Cuts what a writer has into batches, each of one run."""
    cut = [taken[low : low + size] for low in range(0, len(taken), size)]
    return [
        (run, [each for of, each in batch if of == run])
        for batch in cut
        for run in sorted({of for of, _ in batch}, reverse=True)
    ]


def write_at_once(writers: Executor, shares: Sequence[Share]) -> None:
    """Has each writer write its share; the first error of one is raised."""
    futures = [writers.submit(_write, share) for share in shares]
    errors = [error for error in (future.exception() for future in futures) if error]
    for error in sorted(errors, key=_is_broken_off):
        raise error


def _is_broken_off(error: BaseException) -> bool:
    return isinstance(error, threading.BrokenBarrierError)


def entries_of(url: str, table: str) -> dict[Cell, list[Entry]]:
    """Reads the audit trail, by key and window."""
    engine = open_database(url, "url")
    found: dict[Cell, list[Entry]] = {}
    try:
        with engine.connect() as connection:
            for entry in AuditTrail.of(table).read(connection):
                cell = (entry.change.key, entry.change.window_start_ms)
                found.setdefault(cell, []).append(entry)
    finally:
        engine.dispose()
    return found


def age(entry: Entry) -> tuple[str, int, int]:
    """How new the pane of an entry is."""
    return entry.change.run, entry.change.new_count, entry.change.pane_index


@pytest.mark.parametrize("audit", [False, True], ids=["plain", "audited"])
@settings(
    max_examples=2,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=HISTORIES, seed=st.integers(0, 9999), size=st.integers(2, 9))
def test_eight_writers_leave_what_one_would(
    url: str,
    writers: Executor,
    audit: bool,
    history: list[tuple[str, Pane]],
    seed: int,
    size: int,
) -> None:
    """Old and new panes and runs, shuffled and doubled: none fails, and the newest stand.

    An audit trail has an entry for each row that was replaced, and none for a pane that came too
    late: the entries of a key and window follow each other, each newer than the one before.
    """
    table = some_name()
    taken = share_out(history, seed)
    write_at_once(writers, [Share(url, table, audit, batches_of(each, size)) for each in taken])
    expected = latest(history)
    assert_holds(url, table, expected)
    if not audit:
        return
    assert verify_audit(url, table).problems == ()
    entries = entries_of(url, table)
    assert set(entries) == set(expected)
    for cell, (run, last) in expected.items():
        assert age(entries[cell][-1]) == (run, last.count, last.index)
        assert entries[cell][0].change.old_value is None
        for before, after in pairwise(entries[cell]):
            assert age(before) < age(after)
            assert after.change.old_value == before.change.new_value
            assert after.change.old_count == before.change.new_count


@pytest.mark.parametrize("audit", [False, True], ids=["plain", "audited"])
def test_writers_of_many_rows_in_opposite_orders_do_not_deadlock(
    url: str, writers: Executor, audit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They lock rows in one order; without that, PostgreSQL would break some of them off."""
    panes = [("run-1", pane(f"k{number}", 0, number, 1)) for number in range(150)]
    corrections = [("run-1", pane(f"k{number}", 0, -number, 2, 1)) for number in range(150)]
    shares = []
    for number in range(WRITERS):
        order = -1 if number % 2 else 1
        batches = [batches_of(each[::order], 150)[0] for each in (panes, corrections, panes)]
        shares.append(Share(url, "windows", audit, batches))
    write_at_once(writers, shares)
    assert_holds(url, "windows", latest(corrections))
    assert "deadlock" not in caplog.text

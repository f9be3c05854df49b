"""The ledger at the same time and after a crash: each record stands in its window once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import pytest
from sqlalchemy import Engine, event

from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import Ledger
from beam_lateness.transforms.reconcile.letters import Letter
from beam_lateness.transforms.sinks.audit_check import verify_audit
from tests.transforms.reconcile.conftest import MakeStore
from tests.transforms.reconcile.stores import Store, by_cell, letter, pane

KILLS: Final = 20
WINDOWS: Final = 8  # every other one has a row before
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])

LETTERS: Final = [
    letter(f"{window}.{n}", 10**n, key=f"k{window:02}")
    for window in range(WINDOWS)
    for n in range(6)
]
PANES: Final = [pane(5, key=f"k{window:02}") for window in range(0, WINDOWS, 2)]
WHOLE: Final = {
    (f"k{window:02}", 0): (111_111 + (5 if window % 2 == 0 else 0), 6 + (window % 2 == 0), 6)
    for window in range(WINDOWS)
}


def check_whole(store: Store, audit: bool) -> None:
    """Holds the store to all panes, and each letter once."""
    assert store.rows == WHOLE
    assert set(store.ledger) == {each.record_id for each in LETTERS}
    if audit:
        result = verify_audit(store.url)
        assert result.problems == ()


def shares(seed: int, many: int) -> list[list[list[Letter]]]:
    """Gives each of many reconciliations batches of letters: disjoint ones, and ones that overlap.

    All letters of a window are never in one batch.
    """
    dice = random.Random(seed)
    shares = []
    for number in range(many):
        own = LETTERS[number::many] + dice.sample(LETTERS, len(LETTERS) // 2)
        dice.shuffle(own)
        shares.append([own[low : low + 10] for low in range(0, len(own), 10)])
    return shares


@pytest.fixture(params=[False, True], ids=["plain", "audited"])
def audit(request: pytest.FixtureRequest) -> bool:
    """Whether there is an audit trail."""
    return bool(request.param)


@pytest.fixture
def begun(make_store: MakeStore, audit: bool) -> Store:
    """A store with half of the rows."""
    store = make_store(audit=audit)
    store.write(PANES)
    return store


def apply_all(store: Store, batches: Sequence[Sequence[Letter]]) -> None:
    """Reconciles batch by batch."""
    for batch in batches:
        store.apply(*batch)


def write_again(store: Store) -> None:
    """Replays the panes."""
    for _ in range(20):
        store.write(PANES)


def test_eight_threads_add_each_record_once(begun: Store, audit: bool) -> None:
    """To the same windows, while the job replays its panes."""
    with ThreadPoolExecutor(8) as threads:
        work = [threads.submit(apply_all, begun, each) for each in shares(1, 7)]
        work.append(threads.submit(write_again, begun))
        for each in work:
            each.result()
    check_whole(begun, audit)


def test_rows_that_a_job_makes_meanwhile_are_corrected(begun: Store, audit: bool) -> None:
    """It makes the missing ones and replaces those that reconciliation made; one run more heals."""
    late = [pane(7, key=f"k{window:02}") for window in range(1, WINDOWS, 2)]
    start = threading.Barrier(4)

    def act(what: Callable[[], None]) -> None:
        start.wait()
        what()

    def job() -> None:
        for each in late:
            begun.write([each])

    with ThreadPoolExecutor(4) as threads:
        work = [threads.submit(act, job)]
        work += [threads.submit(act, partial(apply_all, begun, each)) for each in shares(2, 3)]
        for each in work:
            each.result()
    begun.apply(*LETTERS)
    expected = {
        cell: (value + (0 if value % 10 == 6 else 7), 7, 6) for cell, (value, _, _) in WHOLE.items()
    }
    assert begun.rows == expected
    if audit:
        assert verify_audit(begun.url).problems == ()


def test_four_processes_add_each_record_once(begun: Store, audit: bool) -> None:
    """Each with connections of its own."""
    processes = [CONTEXT.Process(target=apply_all, args=(begun, each)) for each in shares(3, 4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    check_whole(begun, audit)


class Statements:
    """Acts before a statement or a commit of this process.

    Args:
        number: Before which: 1, 2, 3 ...
        act: What is done.
    """

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.made = 0
        self._number = number
        self._act = act

    def __call__(self, *_: Any) -> None:
        """Counts a statement."""
        self.made += 1
        if self.made == self._number:
            self._act()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts those of all engines for a while."""
        for name in ("before_cursor_execute", "commit"):
            event.listen(Engine, name, self)
        try:
            yield
        finally:
            for name in ("before_cursor_execute", "commit"):
                event.remove(Engine, name, self)


class InjectedError(Exception):
    """What is raised between two statements."""


def test_an_error_between_any_two_statements_leaves_nothing_half_done(
    begun: Store, audit: bool
) -> None:
    """Within the transaction, and before its commit."""

    def fail() -> None:
        raise InjectedError

    half = LETTERS[::2]
    begun.apply(*half)
    begun.write([pane(6, 2, 1, key="k00")])  # so that there is something to forget
    begun.write([pane(5, key="k00")], "run-2")
    before = begun.dump()
    number, raised = 0, True
    with closing(Ledger(begun.url, "reconcile-2", Correction(["sum"]))) as ledger:
        while raised:
            number += 1
            with Statements(number, fail).counted():
                try:
                    ledger.apply(by_cell(LETTERS))
                    raised = False
                except InjectedError:
                    pass
            if raised:
                assert begun.dump() == before
    assert number > 20
    check_whole(begun, audit)


def _apply_and_die(store: Store, batches: list[list[Letter]], number: int) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with Statements(number, die).counted():
        apply_all(store, batches)


def test_a_process_killed_at_any_statement_leaves_each_record_once(
    begun: Store, audit: bool
) -> None:
    """Again and again; the last one does the rest."""
    dice = random.Random(4)
    (batches,) = shares(4, 1)
    statements = Statements(0, check_nothing)
    with statements.counted():
        begun.apply(*batches[0])
    codes = []
    for _ in range(KILLS):
        number = dice.randint(1, statements.made * 3)
        process = CONTEXT.Process(target=_apply_and_die, args=(begun, batches, number))
        process.start()
        process.join(60)
        codes.append(process.exitcode)
        found = begun.rows
        assert sum(row[2] for row in found.values()) == len(begun.ledger)
    assert codes == [-signal.SIGKILL] * KILLS
    begun.apply(*LETTERS)
    check_whole(begun, audit)


def check_nothing() -> None:
    """Does nothing."""

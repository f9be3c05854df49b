"""The ledger: each too late record stands in its window once, and what cannot be added is left."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.reconcile.correction import Correction
from beam_lateness.transforms.reconcile.ledger import APPLIED, ELSEWHERE, UNFIT, Ledger
from beam_lateness.transforms.reconcile.letters import Letter
from beam_lateness.transforms.sinks.audit_check import verify_audit
from tests.transforms.reconcile.conftest import MakeStore
from tests.transforms.reconcile.stores import FILE, MINUTE_MS, RUN, Store, letter, pane

A, B = ("a", 0), ("b", 0)


def test_a_record_is_added_to_its_row(store: Store) -> None:
    """Value, count, and how many of them were reconciled; the report tells both sides."""
    store.write([pane(80_000, count=2)])
    (corrected,), left = store.apply(letter("x", 5_000))
    assert store.rows == {A: (85_000, 3, 1)}
    assert store.ledger == {"x": A}
    assert left == []
    assert corrected == ("a", 0, MINUTE_MS, 80_000, 85_000, 2, 3, ("x",), (FILE,))


def test_a_window_without_a_row_gets_one(store: Store) -> None:
    """Where every record of it came too late."""
    (corrected,), _ = store.apply(letter("x", 5), letter("y", 6))
    assert store.rows == {A: (11, 2, 2)}
    assert (corrected.before, corrected.count_before) == (None, 0)


def test_a_record_that_comes_twice_at_once_is_added_once(store: Store) -> None:
    """The second is accounted for."""
    store.write([pane(1)])
    (corrected,), left = store.apply(letter("x", 5), letter("x", 5, file="again.jsonl"))
    assert store.rows == {A: (6, 2, 1)}
    assert corrected.record_ids == ("x",)
    assert [(each.reason, each.record_id) for each in left] == [(APPLIED, "x")]


def test_a_record_that_stands_in_another_window_is_left(store: Store) -> None:
    """It says in which; whether it comes in the same batch or later."""
    corrected, left = store.apply(letter("x", 5), letter("x", 5, key="b"))
    assert [each.key for each in corrected] == ["a"]
    assert [(each.reason, each.record_id) for each in left] == [(ELSEWHERE, "x")]
    assert "window 0 of 'a'" in left[0].detail
    assert store.apply(letter("x", 5, key="b"))[0] == []
    assert store.rows == {A: (5, 1, 1)}


def test_a_record_whose_other_window_was_replaced_is_added(store: Store) -> None:
    """It stands nowhere then: a newer run's windows are others."""
    store.write([pane(1)])
    store.apply(letter("x", 5))
    store.write([pane(1)], "run-2")
    corrected, left = store.apply(letter("x", 5, key="b"))
    assert (len(corrected), left) == (1, [])
    assert store.rows == {A: (1, 1, 0), B: (5, 1, 1)}


@pytest.mark.parametrize(
    ("count", "index", "run"), [(2, 1, RUN), (1, 1, RUN), (1, 0, "run-2")], ids=str
)
def test_what_a_replaced_row_had_is_added_again(
    store: Store, count: int, index: int, run: str
) -> None:
    """After a later pane of the run, or the first of a newer one: once, however often it is run."""
    store.write([pane(10)])
    store.apply(letter("x", 5), letter("y", 6))
    store.write([pane(20, count, index)], run)
    assert store.rows == {A: (20, count, 0)}
    for _ in range(2):
        store.apply(letter("x", 5))
        store.apply(letter("y", 6))
        assert store.rows == {A: (31, count + 2, 2)}


def test_a_replayed_pane_replaces_nothing(store: Store) -> None:
    """The same run's, or an older one's: what was added stays."""
    store.write([pane(10, 2, 1)])
    store.apply(letter("x", 5))
    for again in (pane(10, 2, 1), pane(7, 1, 0)):
        store.write([again])
        store.write([again], "run-0")
        store.apply(letter("x", 5))
        assert store.rows == {A: (15, 3, 1)}


@dataclass
class Model:
    """One row after the other, in the plainest way."""

    panes: dict[Any, tuple[tuple[str, int, int], int]] = field(default_factory=dict)
    added: dict[Any, dict[str, int]] = field(default_factory=dict)

    def write(self, cell: Any, run: str, count: int, index: int, value: int) -> None:
        """Takes a pane."""
        order = (run, count, index)
        if cell not in self.panes or order > self.panes[cell][0]:
            self.panes[cell] = (order, value)
            self.added[cell] = {}

    def apply(self, letters: list[Letter]) -> None:
        """Takes letters."""
        for each in letters:
            cell = (each.key, each.window_start_ms)
            self.added.setdefault(cell, {})[each.record_id] = each.value

    @property
    def rows(self) -> dict[Any, tuple[Any, int, int]]:
        """The table."""
        found = {}
        for cell, added in self.added.items():
            (_, count, _), value = self.panes.get(cell, (("", 0, 0), 0))
            found[cell] = (value + sum(added.values()), count + len(added), len(added))
        return found


CELLS = [(key, start) for key in "ab" for start in (0, MINUTE_MS)]
LETTERS = [letter(f"{key}{start}{n}", 10**n, key, start) for key, start in CELLS for n in range(5)]
steps = st.one_of(
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=12),
    st.tuples(
        st.sampled_from(CELLS),
        st.sampled_from([RUN, "run-2"]),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
)


@settings(max_examples=25, deadline=None)
@given(history=st.lists(steps, max_size=8), seed=st.integers(0, 99), audit=st.booleans())
def test_any_history_gives_the_panes_and_each_record_once(
    history: list[Any], seed: int, audit: bool
) -> None:
    """Panes and letters in any order, batches and repetitions, as a plain model has them."""
    model, dice = Model(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/db", audit=audit)
        for step in [*history, LETTERS]:
            if isinstance(step, list):
                store.apply(*dice.sample(step, len(step)))
                model.apply(step)
            else:
                (key, start), run, count, index = step
                value = 1000 * count + index  # as of one pane, whoever writes it
                store.write([pane(value, count, index, key, start)], run)
                model.write((key, start), run, count, index, value)
            assert store.rows == model.rows
        if audit:
            assert verify_audit(store.url).problems == ()


@pytest.mark.parametrize("audit", [False, True])
def test_a_dry_run_tells_all_and_changes_nothing(make_store: MakeStore, audit: bool) -> None:
    """Not even a table is made; the run afterwards reports the same."""
    store = make_store(audit=audit)
    store.write([pane(1), pane(2, key="b")])
    letters = [letter("x", 5), letter("x", 5), letter("y", "no"), letter("z", 7, key="c")]
    before = store.dump()
    told = store.apply(*letters, dry_run=True)
    assert store.dump() == before
    assert store.apply(*letters) == told
    after = store.dump()
    corrected, left = store.apply(*letters, dry_run=True)
    assert corrected == []
    assert Counter(each.reason for each in left) == {APPLIED: 3, UNFIT: 1}
    assert store.dump() == after


@pytest.mark.parametrize("rows", [[], [pane(1)]], ids=["no row", "a row"])
@pytest.mark.parametrize(
    "unfit",
    [
        letter("bad", None),
        letter("bad", "7"),
        letter("bad", True),
        letter("bad", 10**400),
    ],
    ids=["none", "text", "true", "vast"],
)
def test_an_unfit_record_holds_no_other_back(store: Store, rows: list[Any], unfit: Letter) -> None:
    """It alone is left, and can be added once it is mended."""
    store.write(rows)
    corrected, (left,) = store.apply(letter("x", 5), unfit, letter("y", 6))
    assert corrected[0].record_ids == ("x", "y")
    assert (left.reason, left.record_id) == (UNFIT, "bad")
    assert left.detail.startswith("the record's value")
    assert set(store.ledger) == {"x", "y"}
    store.apply(unfit._replace(value=7))
    assert store.rows[A][0] == sum(each.value for each in rows) + 18


def test_a_record_of_a_window_of_another_size_is_left(store: Store) -> None:
    """The row says of which size they are; without one nobody knows, and all are left."""
    strange = letter("strange", 7, window_end_ms=5 * MINUTE_MS)
    corrected, left = store.apply(letter("x", 5), strange)
    assert (corrected, store.rows, store.ledger) == ([], {}, {})
    assert [each.reason for each in left] == [UNFIT, UNFIT]
    store.write([pane(1)])
    _, (one,) = store.apply(letter("x", 5), strange)
    assert (one.record_id, one.reason) == ("strange", UNFIT)
    assert store.rows == {A: (6, 2, 1)}


@pytest.mark.parametrize("name", ["nul \0", "long " * 5000])
def test_a_record_that_the_database_refuses_is_left_alone(store: Store, name: str) -> None:
    """PostgreSQL takes no NUL in a text; SQLite takes all."""
    _, left = store.apply(letter("x", 5), letter(name, 6), letter("y", 7, key="b"))
    assert {(each.reason, each.record_id) for each in left} <= {(UNFIT, name)}
    assert set(store.ledger) == {"x", "y", name} - {each.record_id for each in left}
    assert store.rows[A][0] == (5 if left else 11)


@pytest.mark.parametrize("letters", [900, 3000])
def test_a_window_of_many_records_is_applied_whole(store: Store, letters: int) -> None:
    """More than a statement takes."""
    many = [letter(f"x{n}", n) for n in range(letters)]
    store.apply(*many[: letters // 2])
    _, left = store.apply(*many)
    assert store.rows == {A: (sum(range(letters)), letters, letters)}
    assert len(left) == letters // 2


def test_integers_and_floats_of_any_size_are_added_exactly(store: Store) -> None:
    """As the database keeps them."""
    store.write([pane(2**63 - 1), pane(0.1, key="b")])
    store.apply(letter("x", 2**63 - 1), letter("y", 0.2, key="b"))
    assert store.rows == {A: (2**64 - 2, 2, 1), B: (0.1 + 0.2, 2, 1)}


def test_several_aggregates_are_corrected_together(make_store: MakeStore) -> None:
    """Each by its own rule."""
    store = make_store(aggregate=["sum", "count", "min", "max", "mean"], audit=True)
    store.write([pane({"sum": 6, "count": 2, "min": 2, "max": 4, "mean": 3.0}, count=2)])
    store.apply(letter("x", 9), letter("y", 1))
    assert store.rows[A][0] == {"sum": 16, "count": 4, "min": 1, "max": 9, "mean": 4.0}
    assert verify_audit(store.url).problems == ()


def test_every_correction_is_an_entry_of_the_audit_trail(make_store: MakeStore) -> None:
    """Cause, files, ids, the reconciliation's name, both values; the trail is whole."""
    store = make_store(audit=True)
    store.write([pane(1)])
    store.apply(letter("x", 5), letter("y", 6, file="other", watermark_ms=None), run="reconcile-7")
    store.apply(letter("x", 5))
    entry = store.dump()["windows_audit"][-1]
    assert (entry["cause"], entry["run"]) == ("reconciliation", "reconcile-7")
    assert json.loads(entry["source"]) == {
        "dead_letters": sorted([FILE, "other"]),
        "record_ids": ["x", "y"],
    }
    assert (entry["old_value"], entry["new_value"], entry["delta"]) == ("1", "12", "11")
    assert (entry["old_count"], entry["new_count"]) == (1, 3)
    assert entry["watermark_ms"] == 2 * MINUTE_MS
    assert verify_audit(store.url)[::2] == (2, ())


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [(["sum", "count"], 7), (["sum"], {"sum": 7, "count": 1}), (["sum", "max"], {"sum": 7})],
    ids=str,
)
def test_a_table_of_other_aggregates_is_refused(
    make_store: MakeStore, aggregate: list[str], value: Any
) -> None:
    """Before a window without a row gets a value that is unlike all others."""
    store = make_store(aggregate=["sum"] if isinstance(value, int) else ["sum", "more"])
    store.write([pane(value)])
    with pytest.raises(ValueError, match=r"not of these aggregates \(--aggregate\)"):
        Ledger(store.url, "r", Correction(aggregate))
    assert store.ledger == {}


def test_a_database_without_the_table_is_refused_untouched(make_store: MakeStore) -> None:
    """By the flags' names."""
    store = make_store()
    before = store.dump()
    with pytest.raises(ValueError, match=r"has no table 'settlement' \(--table\)"):
        Ledger(store.url, "r", Correction(["sum"]), "settlement")
    assert store.dump() == before

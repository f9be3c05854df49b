"""`TableWriter`: the newest pane of each key and window stands, whatever fails or comes twice."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from google.rpc.status_pb2 import Status
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.results import Pane
from beam_lateness.transforms.sinks import bigquery_writer
from beam_lateness.transforms.sinks.bigquery import run_sections
from beam_lateness.transforms.sinks.bigquery_writer import (
    AppendError,
    RowEncoder,
    TableWriter,
    ValueType,
    encode_value,
)
from tests.bigquery import STREAM, URL, FakeBigQuery, connect, errors, served

RUNS = [f"2026010{day}T030405.000006Z-ab1{day}" for day in (1, 2, 3)]
RUN = RUNS[0]
TRANSIENT = [
    errors.ServiceUnavailable,
    errors.Aborted,
    errors.InternalServerError,
    errors.DeadlineExceeded,
]


def pane(key: Any = "a", start: int = 0, value: Any = 1, count: int = 1, index: int = 0) -> Pane:
    """Makes a pane of a minute."""
    timing = "LATE" if index else "ON_TIME"
    return Pane(key, start, start + 60_000, value, count, index, timing)


class Writing:
    """A writer of a run, the table, and the waits in s."""

    def __init__(
        self, fake: FakeBigQuery, run: str = RUN, value_type: ValueType = "JSON", client: Any = None
    ) -> None:
        self.waits: list[float] = []
        encoder = RowEncoder(run, run_sections(run), value_type)
        self.writer = TableWriter(URL, STREAM, encoder, client or fake, self.waits.append)

    def __call__(self, *panes: Pane) -> dict[int, str]:
        """Writes panes at once."""
        return self.writer.write(panes)


def test_a_row_holds_the_whole_pane() -> None:
    """Every field, and the run."""
    fake = FakeBigQuery()
    assert Writing(fake)(Pane("a", -60_000, 0, {"sum": 7}, 3, 2, "LATE")) == {}
    (row,) = fake.rows.values()
    del row["_CHANGE_SEQUENCE_NUMBER"]
    assert row == {
        "key": "a",
        "window_start_ms": -60_000,
        "window_end_ms": 0,
        "value": '{"sum": 7}',
        "count": 3,
        "pane_index": 2,
        "timing": "LATE",
        "run": RUN,
    }


PANES = st.builds(
    pane,
    key=st.sampled_from(["a", "b", 1]),
    start=st.sampled_from([-60_000, 0]),
    count=st.integers(0, 20) | st.integers(2**62, 2**63 - 1),
    index=st.integers(0, 20),
)


@settings(max_examples=80, deadline=None)
@given(
    history=st.lists(st.tuples(st.sampled_from(RUNS), PANES), max_size=20),
    failures=st.lists(st.sampled_from([None, *TRANSIENT]), max_size=4),
    failed_after=st.lists(st.sampled_from([None, *TRANSIENT]), max_size=4),
    seed=st.integers(0, 999),
)
def test_any_order_and_replay_leaves_the_newest_pane_of_each_key_and_window(
    history: list[tuple[str, Pane]], failures: list[Any], failed_after: list[Any], seed: int
) -> None:
    """The rule of `UpsertPanes`: the newer run, else the larger count, else the larger index."""
    dice = random.Random(seed)
    named = [(run, each._replace(value=[run, each.count, each.index])) for run, each in history]
    replayed = named + [each for each in named if dice.random() < 0.5]
    dice.shuffle(replayed)
    fake = FakeBigQuery()
    fake.failures = [each and each("now") for each in failures]
    fake.failed_after = [each and each("after") for each in failed_after]
    writers = {run: Writing(fake, run) for run in RUNS}
    while replayed:
        taken, replayed = replayed[:4], replayed[4:]
        for run in dice.sample(RUNS, len(RUNS)):
            assert writers[run](*(each for of, each in taken if of == run)) == {}
    newest: dict[tuple[str, int], Any] = {}
    for run, each in named:
        cell = (str(each.key), each.window_start)
        newest[cell] = max(newest.get(cell, []), [run, each.count, each.index])
    assert {cell: json.loads(row["value"]) for cell, row in fake.rows.items()} == newest


def test_of_a_batch_only_the_newest_of_each_key_and_window_is_sent() -> None:
    """In the order of the keys; one connection serves all batches."""
    fake = FakeBigQuery()
    write = Writing(fake)
    write(pane("b"), pane("a", count=5), pane("a", count=6), pane("a", count=6, index=1))
    write(pane("c"))
    sent = [[(row["key"], row["count"], row["pane_index"]) for row in rows] for rows in fake.sent]
    assert sent == [[("a", 6, 1), ("b", 1, 0)], [("c", 1, 0)]]
    assert fake.calls == [2]
    assert dict(fake.metadata)["x-goog-request-params"] == f"write_stream={STREAM}"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9000), max_size=40))
@example([0] * 200)
def test_no_request_is_larger_than_the_limit_and_every_row_arrives(lengths: list[int]) -> None:
    """Whatever the rows' sizes; no two requests would fit into one, but for the schema's 500 B."""
    fake, limit, schema = FakeBigQuery(), 20_000, 500
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bigquery_writer, "REQUEST_BYTES", limit)
        write = Writing(fake)
    refused = write(*(pane(f"{at:02}", value="x" * each) for at, each in enumerate(lengths)))
    assert (refused, len(fake.rows)) == ({}, len(lengths))
    assert max(fake.sizes, default=0) <= limit
    assert all(sum(pair) > limit - schema for pair in itertools.pairwise(fake.sizes))


def test_a_row_larger_than_a_request_is_refused() -> None:
    """With its size; the others are written, in requests of under 9 MB."""
    fake = FakeBigQuery()
    values = ["x" * 9_100_000, *("y" * 4_000_000 for _ in range(3))]
    refused = Writing(fake)(*(pane(f"{at}", value=each) for at, each in enumerate(values)))
    assert list(refused) == [0]
    assert re.search(r"9,100,\d\d\d bytes is too large", refused[0])
    assert (len(fake.rows), len(fake.sizes)) == (3, 2)
    assert max(fake.sizes) < 9_000_000


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "failure",
    [
        *(each("now") for each in TRANSIENT),
        *(Status(code=code) for code in (4, 10, 13, 14)),
        ConnectionResetError(),
    ],
)
def test_what_passes_is_tried_again_on_a_new_connection(failure: Any, after: bool) -> None:
    """Raised or answered, or closed without an answer; the waits double."""
    fake = FakeBigQuery()
    script = [failure or ConnectionResetError()] * 3
    fake.failed_after, fake.failures = (script, []) if after else ([], script)
    write = Writing(fake)
    assert write(pane(value=7)) == {}
    assert fake.rows["a", 0]["value"] == "7"
    assert len(fake.calls) == 4
    assert all(2**at / 2 <= each <= 2**at for at, each in enumerate(write.waits))
    assert len(write.waits) == 3


def test_what_does_not_pass_fails_the_batch() -> None:
    """After eight more tries; the next batch may be taken."""
    fake = FakeBigQuery()
    fake.failures = [errors.ServiceUnavailable("down")] * 9
    write = Writing(fake)
    with pytest.raises(AppendError, match=rf"{URL}: no rows taken after 8 retries: .*down"):
        write(pane())
    assert (len(write.waits), fake.rows) == (8, {})
    assert write(pane()) == {}
    assert len(fake.rows) == 1


@pytest.mark.parametrize(
    "failure", [errors.NotFound("no table"), errors.Forbidden("no"), Status(code=3)]
)
def test_any_other_error_is_raised_at_once(failure: Any) -> None:
    """With the remedies."""
    fake = FakeBigQuery()
    fake.failures = [failure]
    write = Writing(fake)
    with pytest.raises(AppendError, match=rf"{URL}: .*create_table_sql.*BigQuery Data Editor"):
        write(pane())
    assert write.waits == []


def bad_value(row: dict[str, Any]) -> str:
    """Refuses a row whose value is bad."""
    return "no good" if "bad" in row["value"] else ""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans()), unique=True, max_size=9
    ),
    st.integers(1, 9),
)
def test_refused_rows_are_given_out_and_all_others_written(
    drawn: list[tuple[str, int, bool]], size: int
) -> None:
    """An older pane stands where the newest is refused, however they are cut into batches."""
    cells = {(key, count): ok for key, count, ok in drawn}
    panes = [
        pane(key, value=f"{count}" if ok else "bad", count=count)
        for (key, count), ok in cells.items()
    ]
    fake = FakeBigQuery(bad_value)
    write, refused = Writing(fake), 0
    for at in range(0, len(panes), size):
        part = panes[at : at + size]
        details = write(*part)
        assert all(part[place].value == "bad" for place in details)
        refused += len(details)
    good = sorted((key, count) for (key, count), ok in cells.items() if ok)
    assert {row["key"]: row["count"] for row in fake.rows.values()} == dict(good)
    assert refused <= len(panes) - len(good)


@pytest.mark.parametrize(
    ("value", "value_type", "wanted"),
    [
        (2**63 - 1, "INT64", 2**63 - 1),
        (np.int64(7), "INT64", 7),
        (1.5, "FLOAT64", 1.5),
        (2**53, "FLOAT64", 2.0**53),
        (math.inf, "FLOAT64", math.inf),
        (0.1, "BIGNUMERIC", "0.1"),
        (100, "BIGNUMERIC", "100"),
        (1e-40, "BIGNUMERIC", "0"),
        (10**38, "BIGNUMERIC", "1" + "0" * 38),
        (Decimal("-1.50"), "BIGNUMERIC", "-1.5"),
        (None, "JSON", "null"),
        ([2**64, math.nan, (1, np.float64(0.5))], "JSON", f'["{2**64}", "nan", [1, 0.5]]'),
        ({("a", 1): 2}, "JSON", '{"[\\"a\\", 1]": 2}'),
    ],
    ids=repr,
)
def test_a_value_fits_its_column(value: Any, value_type: ValueType, wanted: Any) -> None:
    """Without loss, but for what is beyond 38 digits after the point."""
    fitted = encode_value(value, value_type)
    assert (fitted, type(fitted)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("value", "value_type"),
    [
        (2**63, "INT64"),
        (1.0, "INT64"),
        (2**53 + 1, "FLOAT64"),
        (2**2000, "FLOAT64"),
        (6 * 10**38, "BIGNUMERIC"),
        (math.nan, "BIGNUMERIC"),
        *(({"sum": 1}, each) for each in ("INT64", "FLOAT64", "BIGNUMERIC")),
    ],
    ids=repr,
)
def test_a_value_that_its_column_cannot_hold_is_refused(value: Any, value_type: ValueType) -> None:
    """Alone, with the value and the remedy."""
    fake = FakeBigQuery()
    refused = Writing(fake, value_type=value_type)(pane(value=value), pane("b", value=2))
    assert re.search(rf"value .* is none of a column {value_type}; give another", refused.pop(0))
    assert (refused, list(fake.rows)) == ({}, [("b", 0)])


@pytest.mark.parametrize("bad", [pane("\ud800"), pane(start=2**63), pane(count=-1)], ids=repr)
def test_a_pane_that_is_no_row_is_refused(bad: Pane) -> None:
    """Its key is no UTF-8, or a number does not fit."""
    fake = FakeBigQuery()
    assert list(Writing(fake)(bad, pane("b"))) == [0]
    assert list(fake.rows) == [("b", 0)]


@pytest.mark.parametrize("panes", [[], [pane()]], ids=["unused", "used"])
def test_a_writer_closes_its_client(panes: list[Pane]) -> None:
    """Whether it has opened a connection or not."""
    fake = FakeBigQuery()
    write = Writing(fake)
    write(*panes)
    assert (len(fake.calls), fake.closed) == (len(panes), False)
    write.writer.close()
    assert fake.closed


def test_googles_client_is_used_as_it_wants_to_be() -> None:
    """Over gRPC: failures, refused rows and the end of the call."""
    fake = FakeBigQuery(bad_value)
    fake.failures = [errors.ServiceUnavailable("down"), Status(code=10), ConnectionResetError()]
    fake.failed_after = [None, errors.DeadlineExceeded("late")]
    with served(fake) as port:
        write = Writing(fake, client=connect(port))
        assert write(pane("a"), pane("b", value="bad")) == {1: "no good"}
        assert write(pane("a", count=2), pane("c")) == {}
        assert write(pane("a")) == {}
        write.writer.close()
    assert len(write.waits) == 4
    assert {row["key"]: row["count"] for row in fake.rows.values()} == {"a": 2, "c": 1}
    assert sum(fake.calls) == len(fake.sent) == 8

"""Each built-in profile as a job: nothing is lost, nothing counts twice, wrong ones never run."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.profiles import load_profile, load_profiles
from beam_lateness.transforms.sinks.audit_check import verify_audit
from beam_lateness.transforms.times import duration_ms
from benchmarks.payments import write_payments
from tests.jobs import (
    EMBEDDED,
    FLIGHT_FLAGS,
    FLIGHTS,
    PAYMENT_FLAGS,
    PRISM,
    Outcome,
    query,
    read_flights,
    read_payments,
    write_lines,
)
from tests.model import Event, Marker, Windowed, bounded, punctuated, verdicts
from tests.pipelines.test_timeline import FLAGS as TIMELINE_FLAGS
from tests.pipelines.test_timeline import TEN, TIMELINE

MINUTE: Final = 60_000
PROFILES: Final = {profile.name: profile for profile in load_profiles()}
APPENDED: Final = sorted(n for n, each in PROFILES.items() if each.flags["mode"] == "append")
UPSERTED: Final = sorted(set(PROFILES) - set(APPENDED))
RUNNERS: Final = [EMBEDDED, pytest.param(PRISM, marks=pytest.mark.prism)]


class Feed(NamedTuple):
    """An input: its file, its flags, and its records."""

    path: Path
    flags: tuple[str, ...]
    events: list[Event]

    @property
    def total(self) -> int:
        """The sum of all that comes in."""
        return sum(event.value for event in self.events)


@pytest.fixture(scope="module", params=["flights", "payments"])
def feed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """A week of flights, or 20,000 payments; the profile says window and bound."""
    if request.param == "flights":
        return Feed(FLIGHTS, without_window(FLIGHT_FLAGS), read_flights())
    path = tmp_path_factory.mktemp("payments") / "payments.jsonl"
    write_payments(path, 20_000)
    return Feed(path, without_window(PAYMENT_FLAGS), read_payments(path))


def without_window(flags: Sequence[str]) -> tuple[str, ...]:
    """Leaves the window to the profile."""
    return tuple(flag for flag in flags if not flag.startswith("--window="))


def run_profile(
    name: str, folder: Path, path: Path, *flags: str, runner: str = EMBEDDED
) -> Outcome:
    """Runs a job of a profile, by input, fields and outputs alone."""
    folder.mkdir(parents=True, exist_ok=True)
    own = [f"--profile={name}", f"--input={path}", f"--output={store(folder)}"]
    own += [f"--dead_letters={folder / 'dead'}", f"--report={folder / 'report.json'}"]
    return Outcome(main(["stream", *own, f"--runner={runner}", *flags]), folder)


def store(folder: Path) -> str:
    """The URL of a job's database."""
    return f"sqlite:///{folder / 'windows.db'}"


def model_of(name: str, events: Sequence[Event]) -> Windowed:
    """What the sequential model makes of records under a profile."""
    flags = load_profile(name).flags
    bound, lateness = (
        duration_ms(flags[name], name=name) for name in ("bound", "allowed_lateness")
    )
    return verdicts([bounded(events, bound)], MINUTE, lateness)


def appended(outcome: Outcome) -> dict[tuple[str, int], int]:
    """Gives the rows of an append by key and window; there must be one each."""
    rows = query(outcome.folder / "windows.db", "select key, window_start_ms, value from panes")
    found = {(key, start): value for key, start, value in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", UPSERTED)
def test_what_must_balance_does_to_the_unit(
    tmp_path: Path, feed: Feed, name: str, runner: str, request: pytest.FixtureRequest
) -> None:
    """Table and dead letters are the input; each window and each letter as the model has them."""
    use(runner, request)
    outcome = run_profile(name, tmp_path, feed.path, *feed.flags, runner=runner)
    expected = model_of(name, feed.events)
    assert outcome.code == 0
    kept = sum(letter["value"] for letter in outcome.too_late)
    assert sum(row.value for row in outcome.rows) + kept == feed.total
    assert outcome.totals == expected.totals
    assert outcome.too_late_ids == sorted(event.name for event in expected.too_late)
    assert outcome.report["late"] == len(expected.late)
    assert outcome.report["input"] == len(feed.events)
    # The flights tell no seconds: under the short lateness of hybrid they are late never.
    assert expected.late or feed.path == FLIGHTS


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", APPENDED)
def test_what_is_appended_never_counts_twice(
    tmp_path: Path, feed: Feed, name: str, runner: str, request: pytest.FixtureRequest
) -> None:
    """A row a key and window; the rows and what was dropped are the input."""
    use(runner, request)
    outcome = run_profile(name, tmp_path, feed.path, *feed.flags, runner=runner)
    expected = model_of(name, feed.events)
    assert outcome.code == 0
    rows = appended(outcome)
    assert rows == expected.totals
    assert sum(rows.values()) + sum(event.value for event in expected.too_late) == feed.total
    assert outcome.report["too_late"] == len(expected.too_late) > 0
    assert outcome.letters == []


def use(runner: str, request: pytest.FixtureRequest) -> None:
    """Gets the engine, if the runner needs one."""
    if runner == PRISM:
        request.getfixturevalue("prism")


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_audit_names_every_late_record_once_at_its_stamp(
    tmp_path: Path, feed: Feed, runner: str, request: pytest.FixtureRequest
) -> None:
    """The trail is whole; its deltas are the table, and its late entries the model's records."""
    use(runner, request)
    run_profile("regulatory_audit", tmp_path, feed.path, *feed.flags, runner=runner)
    assert verify_audit(store(tmp_path)).problems == ()
    late, stamps = late_of("regulatory_audit", feed.events)
    sql = (
        "select key, window_start_ms, window_end_ms, cause, watermark_ms, source, delta, "
        "new_count - old_count from windows_audit order by seq"
    )
    named: list[str] = []
    totals: dict[tuple[str, int], int] = {}
    for key, start, end, cause, watermark, source, delta, records in query(
        tmp_path / "windows.db", sql
    ):
        totals[key, start] = totals.get((key, start), 0) + int(delta)
        if cause == "on_time":
            assert (watermark, source) == (end, None)
            continue
        ids = json.loads(source)["record_ids"]
        assert len(ids) == records
        assert watermark == max(stamps[each] for each in ids)
        assert sum(late[each].value for each in ids) == int(delta)
        assert {(late[each].key, late[each].ts // MINUTE * MINUTE) for each in ids} == {
            (key, start)
        }
        named += ids
    assert sorted(named) == sorted(late)
    assert totals == model_of("regulatory_audit", feed.events).totals


def late_of(name: str, events: Sequence[Event]) -> tuple[dict[str, Event], Mapping[str, int]]:
    """Gives the late records of the model by name, and the stamps of all."""
    bound = duration_ms(load_profile(name).flags["bound"], name="bound")
    stamps = {event.name: watermark for event, watermark in bounded(events, bound)}
    return {event.name: event for event in model_of(name, events).late}, stamps


def test_w3_three_decisions_over_one_stream_are_three_right_answers(
    tmp_path: Path, feed: Feed
) -> None:
    """Side by side: what settlement keeps, the dashboard drops and the audit explains."""
    names = ("settlement", "ops_dashboard", "regulatory_audit")
    found = {name: run_profile(name, tmp_path / name, feed.path, *feed.flags) for name in names}
    expected = {name: model_of(name, feed.events) for name in names}
    settled, shown, audited = (expected[name] for name in names)
    assert found["settlement"].totals == settled.totals
    assert appended(found["ops_dashboard"]) == shown.totals
    assert found["regulatory_audit"].totals == audited.totals
    assert [found[name].report["too_late"] for name in names] == [
        len(expected[name].too_late) for name in names
    ]
    assert len(shown.too_late) > len(settled.too_late) > len(audited.too_late)
    assert verify_audit(store(tmp_path / "regulatory_audit")).problems == ()


MARKED: Final = (*without_window(TIMELINE_FLAGS), "--block_bytes=1")


def timeline_model(lateness: int) -> Windowed:
    """What the model makes of the timeline."""
    steps = [
        Marker(line["event_time"])
        if line.get("marker")
        else Event(line["account"], line["amount"], line["event_time"], line["id"])
        for line in TIMELINE
    ]
    return verdicts([punctuated(steps)], MINUTE, lateness)


def test_w1_through_settlement_is_corrected_and_the_rest_is_kept(tmp_path: Path) -> None:
    """80,000, 85,000, 86,000; the last record is a dead letter."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    outcome = run_profile("settlement", tmp_path, path, *MARKED)
    assert outcome.code == 0
    assert outcome.finals == {("ACC-001", TEN): (86_000, 4)}
    assert outcome.rows[0].pane_index == 2
    assert outcome.too_late_ids == ["lost"]
    assert outcome.totals == timeline_model(2 * MINUTE).totals


def test_w1_through_the_audit_leaves_the_way_to_its_value(tmp_path: Path) -> None:
    """Five minutes: the record that settlement keeps aside is in, and each step is an entry."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    outcome = run_profile("regulatory_audit", tmp_path, path, *MARKED)
    assert outcome.totals == timeline_model(5 * MINUTE).totals == {("ACC-001", TEN): 93_000}
    sql = "select new_value, cause, source from windows_audit order by seq"
    assert query(tmp_path / "windows.db", sql) == [
        ("80000", "on_time", None),
        ("85000", "late", '{"record_ids":["late"]}'),
        ("86000", "late", '{"record_ids":["later"]}'),
        ("93000", "late", '{"record_ids":["lost"]}'),
    ]


def test_w1_through_the_dashboard_stays_what_was_shown(tmp_path: Path) -> None:
    """80,000, once; three were dropped, and counted."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    outcome = run_profile("ops_dashboard", tmp_path, path, *MARKED)
    assert appended(outcome) == {("ACC-001", TEN): 80_000} == timeline_model(0).totals
    assert outcome.report["too_late"] == 3


def test_w2_append_with_lateness_counts_twice_if_one_insists(tmp_path: Path) -> None:
    """What the refusal says: 80,000 and 85,000 both stand, sum 165,000; the warning is told."""
    path = write_lines(tmp_path / "w2.jsonl", TIMELINE[:4])
    wanted = ("--mode=append", "--confirm=append_double_counts")
    outcome = run_profile("settlement", tmp_path, path, *MARKED, *wanted)
    assert outcome.code == 0
    rows = query(tmp_path / "windows.db", "select value from panes order by pane_index")
    assert rows == [(80_000,), (85_000,)]


WRONG: Final[Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]]] = [
    (
        "settlement",
        ("--mode=append",),
        ("--mode=append with --allowed_lateness=2m", "twice", "--confirm=append_double_counts"),
    ),
    (
        "ops_dashboard",
        ("--allowed_lateness=1s",),
        ("--mode=append with --allowed_lateness=1s", "--mode=upsert"),
    ),
    (
        "settlement",
        ("--too_late=drop",),
        ("--too_late=drop", "must balance", "--confirm=drops_too_late"),
    ),
    (
        "regulatory_audit",
        ("--mode=append", "--allowed_lateness=0s"),
        ("--audit=true", "--mode=append", "--mode=upsert"),
    ),
    ("ops_dashboard", ("--audit=true",), ("--audit=true", "--mode=append")),
    (
        "regulatory_audit",
        ("--output=kafka://127.0.0.1:1/windows",),
        ("--audit=true", "a topic", "--output=sqlite:///FILE"),
    ),
    ("setlement", (), ("did you mean settlement?",)),
    ("settlement", ("--confirm=drops_too_late",), ("confirms nothing",)),
]


@pytest.mark.parametrize(("name", "flags", "told"), WRONG, ids=str)
def test_a_wrong_combination_is_refused_with_its_reason_before_anything_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    flags: tuple[str, ...],
    told: tuple[str, ...],
) -> None:
    """One line, exit code 2, and no file."""
    folder = tmp_path / "out"
    outcome = run_profile(name, folder, FLIGHTS, *without_window(FLIGHT_FLAGS), *flags)
    assert outcome.code == 2
    error = capsys.readouterr().err
    assert [part for part in told if part not in error] == []
    assert error.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_the_example_prints_three_right_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """W3, by the model, and the audit's trail with the ids of the late records."""
    example: Any = importlib.import_module("examples.three_decisions")
    example.main()
    printed = capsys.readouterr().out
    for name, value, records in (
        ("settlement", "85,700", 4),
        ("ops_dashboard", "80,000", 2),
        ("regulatory_audit", "85,740", 5),
    ):
        assert f"\n{name}\n  ACC-001: {value} of {records} records\n" in printed
    assert printed.count("ops_dashboard missed: ") == 3
    assert printed.count("settlement    kept for the night: ") == 1
    assert '#4 late: 85700 -> 85740, watermark 1767261780000, records {"record_ids":["last"]}' in (
        printed
    )
    assert "the trail is whole: 4 entries" in printed

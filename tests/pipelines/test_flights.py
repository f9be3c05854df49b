"""The main job on a week of real flights, on the embedded engine: the right values, always."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_lateness.pipelines import running, streaming
from tests.jobs import (
    FLIGHT_FLAGS,
    FLIGHTS,
    HOUR_MS,
    SETTINGS,
    Outcome,
    Setting,
    cut,
    job_flags,
    read_flights,
    run_job,
)
from tests.model import Windowed, bounded, verdicts

NAMES = ["15m-60m", "0m-0m", "60m-120m", "15m-60m-by-origin"]


def run_flights(folder: Path, setting: Setting, *flags: str, days: bool = False) -> Outcome:
    """Runs the flights under a setting."""
    inputs = [FLIGHTS]
    if setting.by_origin or days:
        inputs = cut(folder / "in", "day" if days else "origin")
    return run_job(folder, inputs, *FLIGHT_FLAGS, *setting.flags, *flags)


def model(setting: Setting, paths: list[Path]) -> Windowed:
    """What the sequential model makes of files."""
    splits = [bounded(read_flights(path), setting.bound_m * 60_000) for path in paths]
    return verdicts(splits, HOUR_MS, setting.lateness_m * 60_000)


def check(outcome: Outcome, setting: Setting) -> None:
    """The right values of issue 3."""
    report = outcome.report
    assert outcome.code == 0
    assert report["input"] == 6_064
    assert report["aggregated"] == setting.aggregated
    assert report["too_late"] == setting.too_late
    assert sum(row.value for row in outcome.rows) == setting.total


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_the_flights_have_their_right_values_record_for_record(
    tmp_path: Path, setting: Setting
) -> None:
    """Counts and sums of the issue; each window and each too late record as in the model."""
    outcome = run_flights(tmp_path, setting)
    check(outcome, setting)
    paths = sorted((tmp_path / "in").glob("*")) if setting.by_origin else [FLIGHTS]
    expected = model(setting, paths)
    assert outcome.totals == expected.totals
    assert outcome.too_late_ids == sorted(event.name for event in expected.too_late)


@pytest.mark.parametrize("block_bytes", [40_000, 300_007])
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[3]], ids=[NAMES[0], NAMES[3]])
def test_the_block_size_changes_no_verdict(
    tmp_path: Path, setting: Setting, block_bytes: int
) -> None:
    """From a few hundred lines a block to thousands."""
    outcome = run_flights(tmp_path, setting, f"--block_bytes={block_bytes}")
    check(outcome, setting)
    whole = run_flights(tmp_path / "whole", setting)
    assert outcome.finals == whole.finals
    assert outcome.too_late_ids == whole.too_late_ids


@pytest.mark.parametrize("setting", SETTINGS[:3], ids=NAMES[:3])
@pytest.mark.parametrize("block_bytes", [100_000, 8 << 20])
def test_the_week_cut_into_a_file_a_day_has_the_same_right_values(
    tmp_path: Path, setting: Setting, block_bytes: int
) -> None:
    """Whatever the block size, and record for record as the model judges each file."""
    outcome = run_flights(tmp_path, setting, f"--block_bytes={block_bytes}", days=True)
    check(outcome, setting)
    expected = model(setting, sorted((tmp_path / "in").glob("*")))
    assert outcome.totals == expected.totals
    assert outcome.too_late_ids == sorted(event.name for event in expected.too_late)


def test_the_order_in_which_files_are_named_changes_nothing(tmp_path: Path) -> None:
    """Nor does naming one twice, or by a glob and by its name."""
    paths = cut(tmp_path / "in", "origin")
    flags = (*FLIGHT_FLAGS, *SETTINGS[3].flags)
    one = run_job(tmp_path / "a", paths, *flags)
    glob = str(tmp_path / "in" / "*.jsonl")
    other = run_job(tmp_path / "b", [*reversed(paths), glob, paths[0]], *flags)
    check(other, SETTINGS[3])
    assert one.rows == other.rows
    assert one.too_late == other.too_late


def test_the_number_of_shards_changes_no_result(tmp_path: Path) -> None:
    """It is a matter of speed."""
    one = run_flights(tmp_path / "a", SETTINGS[0])
    four = run_flights(tmp_path / "b", SETTINGS[0], "--num_shards=4")
    check(four, SETTINGS[0])
    assert one.rows == four.rows


def test_the_report_tells_late_panes_and_watermark(tmp_path: Path) -> None:
    """By the model: late records, a pane a window at least, the watermark after the last record."""
    setting = SETTINGS[0]
    report = run_flights(tmp_path, setting).report
    expected = model(setting, [FLIGHTS])
    latest = max(event.ts for event in read_flights())
    assert report["late"] == len(expected.late)
    assert len(expected.totals) == 373
    assert 373 < report["panes"] <= 373 + len(expected.late)
    assert report["watermark_ms"] <= latest - setting.bound_m * 60_000
    assert report["engine"] == "embedded"
    assert report["blank_lines"] == 0


def test_a_dead_letter_says_all_about_its_record(tmp_path: Path) -> None:
    """Every field agrees with the line it came from, the rule, and the model's watermark."""
    setting = SETTINGS[0]
    outcome = run_flights(tmp_path, setting)
    events = read_flights()
    stamps = {event.name: watermark for event, watermark in bounded(events, 15 * 60_000)}
    by_name = {event.name: event for event in events}
    data = FLIGHTS.read_bytes()
    for letter in outcome.too_late:
        event = by_name[letter["record_id"]]
        start = event.ts // HOUR_MS * HOUR_MS
        watermark = stamps[event.name]
        line = letter["payload"].encode()
        assert letter == {
            "reason": "too_late",
            "record_id": event.name,
            "key": event.key,
            "value": event.value,
            "event_time_ms": event.ts,
            "window_start_ms": start,
            "window_end_ms": start + HOUR_MS,
            "watermark_ms": watermark,
            "late_by_ms": watermark - (start + HOUR_MS + 60 * 60_000),
            "split": str(FLIGHTS),
            "position": data.index(line),
            "payload": letter["payload"],
        }
        assert letter["late_by_ms"] >= 0
        assert event.name in letter["payload"]


def test_the_same_command_again_leaves_the_same_table_but_for_its_run(tmp_path: Path) -> None:
    """Nothing is doubled, and the newer run stands in every row."""
    first = run_flights(tmp_path, SETTINGS[0])
    rows, runs, late = first.rows, first.runs, first.too_late_ids
    second = run_flights(tmp_path, SETTINGS[0])
    assert second.rows == rows
    assert second.runs == {second.report["run"]}
    assert second.runs != runs
    assert sorted(set(second.too_late_ids)) == late


def test_a_job_that_does_not_balance_ends_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so in its balance and its report."""
    counts = running._counts

    def lossy(*args: object) -> dict[str, int]:
        found = counts(*args)  # type: ignore[arg-type]
        return {**found, "aggregated": found["aggregated"] - 1}

    monkeypatch.setattr(running, "_counts", lossy)
    flags = job_flags(tmp_path, [FLIGHTS], *FLIGHT_FLAGS, *SETTINGS[0].flags)
    assert streaming.main(flags) == 1
    assert "input 6,064 != 5,934 aggregated" in capsys.readouterr().out
    assert Outcome(1, tmp_path).report["balanced"] is False


def test_the_job_prints_its_engine_its_balance_and_where_the_results_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the README shows it."""
    outcome = run_flights(tmp_path, SETTINGS[0])
    printed = capsys.readouterr().out
    assert printed.startswith("engine: embedded (--runner=BundleBasedDirectRunner)\n")
    assert (
        "\nbalance: input 6,064 = 5,935 aggregated (432 late) + 129 too late + 0 invalid\n"
    ) in printed
    assert f"sqlite:///{tmp_path / 'windows.db'}" in printed
    assert str(tmp_path / "dead") in printed
    assert outcome.report["run"] in printed

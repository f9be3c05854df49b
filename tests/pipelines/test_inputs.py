"""Kinds of input and aggregates: the same records give the same results."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import FLIGHT_FLAGS, FLIGHTS, HOUR_MS, SETTINGS, Outcome, run_job, write_lines

FLAGS = (*FLIGHT_FLAGS, *SETTINGS[0].flags)


def flights(count: int = 6_064) -> list[dict[str, Any]]:
    """The first flights, as records."""
    return [json.loads(line) for line in FLIGHTS.read_text().splitlines()[:count]]


def as_csv(records: list[dict[str, Any]]) -> bytes:
    """Writes records as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The flights as JSON lines."""
    return run_job(tmp_path_factory.mktemp("plain"), [FLIGHTS], *FLAGS)


def test_csv_gives_the_same_as_json(tmp_path: Path, plain: Outcome) -> None:
    """Same windows, same too late records."""
    (tmp_path / "flights.csv").write_bytes(as_csv(flights()))
    outcome = run_job(tmp_path, [tmp_path / "flights.csv"], *FLAGS)
    assert outcome.rows == plain.rows
    assert outcome.too_late_ids == plain.too_late_ids


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)], ids=["gzip", "bzip2"]
)
def test_a_compressed_file_gives_the_same_as_a_plain_one(
    tmp_path: Path, plain: Outcome, ending: str, pack: Any
) -> None:
    """Positions are those of the text inside."""
    path = tmp_path / f"flights.jsonl{ending}"
    path.write_bytes(pack(FLIGHTS.read_bytes()))
    outcome = run_job(tmp_path, [path], *FLAGS, "--block_bytes=100000")
    assert outcome.finals == plain.finals
    assert [x["position"] for x in outcome.too_late] == [x["position"] for x in plain.too_late]


def test_a_gzipped_csv_is_csv(tmp_path: Path, plain: Outcome) -> None:
    """By its name, whatever stands behind `.csv`."""
    (tmp_path / "flights.csv.gz").write_bytes(gzip.compress(as_csv(flights())))
    outcome = run_job(tmp_path, [tmp_path / "flights.csv.gz"], *FLAGS)
    assert outcome.finals == plain.finals


@pytest.mark.parametrize("unit", ["s", "us", "ns", "iso"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "detected"])
def test_the_unit_of_the_event_time_changes_no_result(
    tmp_path: Path, plain: Outcome, unit: str, declared: bool
) -> None:
    """Declared or detected."""
    from beam_lateness.pipelines.report import format_time

    def spelt(ms: int) -> Any:
        if unit == "iso":
            return format_time(ms).replace(" ", "T")
        return ms // 1000 if unit == "s" else ms * {"us": 10**3, "ns": 10**6}[unit]

    lines = [{**x, "event_time": spelt(x["event_time"])} for x in flights()]
    path = write_lines(tmp_path / "in.jsonl", lines)
    outcome = run_job(tmp_path, [path], *FLAGS, *[f"--time_unit={unit}"] * declared)
    assert outcome.rows == plain.rows
    assert outcome.too_late_ids == plain.too_late_ids


def test_windows_line_ends_and_a_byte_order_mark_change_no_result(
    tmp_path: Path, plain: Outcome
) -> None:
    """Files come from everywhere."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + FLIGHTS.read_bytes().replace(b"\n", b"\r\n"))
    outcome = run_job(tmp_path, [path], *FLAGS)
    assert outcome.rows == plain.rows
    assert not any(letter["payload"].endswith("\r") for letter in outcome.too_late)


def test_several_aggregates_stand_side_by_side_as_json(tmp_path: Path, plain: Outcome) -> None:
    """By name, in the value."""
    outcome = run_job(tmp_path, [FLIGHTS], *FLAGS, "--aggregate=sum,count,min,max,mean")
    values = {(row.key, row.start): json.loads(row.value) for row in outcome.rows}
    assert {cell: x["sum"] for cell, x in values.items()} == plain.totals
    for cell, value in values.items():
        assert list(value) == ["sum", "count", "min", "max", "mean"]
        assert value["count"] == plain.finals[cell][1]
        assert value["mean"] == value["sum"] / value["count"]
        assert value["min"] <= value["mean"] <= value["max"]


def test_a_count_needs_no_value_field(tmp_path: Path, plain: Outcome) -> None:
    """Its value is the count."""
    flags = [flag for flag in FLAGS if not flag.startswith("--value_field")]
    outcome = run_job(tmp_path, [FLIGHTS], *flags, "--aggregate=count")
    assert outcome.totals == {cell: count for cell, (_, count) in plain.finals.items()}


def test_sums_beyond_64_bits_are_exact(tmp_path: Path) -> None:
    """As digits, where SQLite has no integer that large."""
    big = 2**63 - 1
    lines = [{"k": "a", "v": big, "event_time": 1_767_261_600_000 + i} for i in range(3)]
    path = write_lines(tmp_path / "in.jsonl", lines)
    flags = ("--key_field=k", "--value_field=v", "--window=1m", "--bound=0s")
    assert [row.value for row in run_job(tmp_path, [path], *flags).rows] == [str(3 * big)]


@pytest.mark.parametrize("values", [[1, 2], [0.25, 0.5]], ids=["integers", "floats"])
def test_integers_stay_integers_and_floats_floats(tmp_path: Path, values: list[float]) -> None:
    """In the table, from block to block."""
    moment = 1_767_261_600_000
    lines = [{"k": "a", "v": value, "event_time": moment} for value in values]
    path = write_lines(tmp_path / "in.jsonl", lines)
    flags = ("--key_field=k", "--value_field=v", "--window=1m", "--bound=1h", "--block_bytes=1")
    (row,) = run_job(tmp_path, [path], *flags).rows
    assert row.value == sum(values)
    assert type(row.value) is type(values[0])


def test_an_empty_file_balances_at_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0, no watermark, an empty table."""
    (tmp_path / "in.jsonl").touch()
    outcome = run_job(tmp_path, [tmp_path / "in.jsonl"], *FLAGS)
    assert outcome.code == 0
    assert outcome.report["input"] == 0
    assert outcome.report["watermark_ms"] is None
    assert outcome.rows == []
    assert "watermark: -" in capsys.readouterr().out


def test_an_empty_file_among_others_holds_nothing_up(tmp_path: Path, plain: Outcome) -> None:
    """It is read to its end, and out of the minimum."""
    (tmp_path / "empty.jsonl").touch()
    outcome = run_job(tmp_path, [tmp_path / "empty.jsonl", FLIGHTS], *FLAGS)
    assert outcome.finals == plain.finals
    assert outcome.too_late_ids == plain.too_late_ids


def test_window_offsets_move_every_window(tmp_path: Path) -> None:
    """All starts lie 15 minutes past the hour, and nothing is lost."""
    outcome = run_job(tmp_path, [FLIGHTS], *FLAGS, "--window_offset=15m")
    assert {row.start % HOUR_MS for row in outcome.rows} == {15 * 60_000}


def test_without_watermarks_nothing_is_late(tmp_path: Path) -> None:
    """Every window has one pane, at the end."""
    flags = [flag for flag in FLAGS if not flag.startswith("--bound")]
    outcome = run_job(tmp_path, [FLIGHTS], *flags, "--watermark=none")
    assert outcome.report["aggregated"] == 6_064
    assert outcome.report["late"] == 0
    assert {(row.pane_index, row.timing) for row in outcome.rows} == {(0, "ON_TIME")}


def test_monotonous_is_a_bound_of_zero(tmp_path: Path) -> None:
    """Record for record."""
    flags = [flag for flag in FLAGS if not flag.startswith("--bound")]
    one = run_job(tmp_path / "a", [FLIGHTS], *flags, "--watermark=monotonous")
    two = run_job(tmp_path / "b", [FLIGHTS], *flags, "--bound=0s")
    assert one.rows == two.rows
    assert one.too_late_ids == two.too_late_ids


@pytest.mark.parametrize(
    "moments",
    [
        ["0001-01-01T00:00:00Z"],
        ["0001-01-01T00:00:00Z", "2026-01-01T00:00:00Z"],
        ["2026-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"],
    ],
    ids=["only the first", "the first", "the last"],
)
def test_event_times_at_the_ends_of_the_range_are_aggregated(
    tmp_path: Path, moments: list[str]
) -> None:
    """The years 1 and 9999 are event times like others, and their watermarks can be written."""
    lines = [{"k": "a", "v": 1, "event_time": moment} for moment in moments]
    path = write_lines(tmp_path / "in.jsonl", lines)
    flags = ("--key_field=k", "--value_field=v", "--window=1m", "--bound=1h", "--block_bytes=1")
    outcome = run_job(tmp_path, [path], *flags)
    assert outcome.code == 0
    assert outcome.report["aggregated"] == len(moments)


def test_a_marker_at_the_end_of_time_closes_everything(tmp_path: Path) -> None:
    """Its watermark is the last that there is, and can be written."""
    lines = [
        {"k": "a", "v": 1, "event_time": "2026-01-01T00:00:00Z"},
        {"marker": True, "event_time": "9999-12-31T23:59:59.999Z"},
        {"k": "a", "v": 2, "event_time": "2026-01-01T00:00:00Z"},
    ]
    path = write_lines(tmp_path / "in.jsonl", lines)
    flags = ("--key_field=k", "--value_field=v", "--window=1m", "--block_bytes=1")
    outcome = run_job(tmp_path, [path], *flags, "--watermark=punctuated", "--marker_field=marker")
    assert outcome.code == 0
    assert (outcome.report["aggregated"], outcome.report["too_late"]) == (1, 1)

"""Both engines give the right values, and the same, record for record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs import (
    FLIGHT_FLAGS,
    FLIGHTS,
    PRISM,
    SETTINGS,
    Outcome,
    Setting,
    check_equal,
    cut,
    keep_history,
    read_history,
    run_job,
    write_lines,
)
from tests.pipelines.test_bad_input import FLAGS as BAD_FLAGS
from tests.pipelines.test_bad_input import Bad, check_interleaved, check_letter, good, interleaved
from tests.pipelines.test_bad_input import line as a_line
from tests.pipelines.test_timeline import FLAGS as TIMELINE_FLAGS
from tests.pipelines.test_timeline import TEN, TIMELINE, at

pytestmark = pytest.mark.prism

NAMES = ["15m-60m", "0m-0m", "60m-120m", "15m-60m-by-origin"]


def run_flights(folder: Path, setting: Setting, *flags: str, **runner: str) -> Outcome:
    """Runs the flights under a setting."""
    inputs = cut(folder.parent / "in", "origin") if setting.by_origin else [FLIGHTS]
    return run_job(folder, inputs, *FLIGHT_FLAGS, *setting.flags, *flags, **runner)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[Setting, Outcome]:
    """What the embedded engine makes of each setting."""
    root = tmp_path_factory.mktemp("embedded")
    return {setting: run_flights(root / str(i), setting) for i, setting in enumerate(SETTINGS)}


@pytest.mark.parametrize("block_bytes", [8_000, 50_000, 8 << 20])
@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_the_engines_agree_record_for_record_at_any_block_size(
    tmp_path: Path, embedded: dict[Setting, Outcome], setting: Setting, block_bytes: int
) -> None:
    """On the right values of issue 3."""
    outcome = run_flights(tmp_path / "out", setting, f"--block_bytes={block_bytes}", runner=PRISM)
    assert outcome.code == 0
    assert outcome.report["engine"] == "prism"
    assert outcome.report["aggregated"] == setting.aggregated
    assert outcome.report["too_late"] == setting.too_late
    assert outcome.report["late"] == embedded[setting].report["late"]
    assert sum(row.value for row in outcome.rows) == setting.total
    check_equal(outcome, embedded[setting])


@pytest.mark.parametrize("setting", SETTINGS[:3], ids=NAMES[:3])
def test_prism_gives_the_right_values_with_the_week_cut_into_a_file_a_day(
    tmp_path: Path, embedded: dict[Setting, Outcome], setting: Setting
) -> None:
    """The same as for the week as a whole."""
    paths = cut(tmp_path / "in", "day")
    outcome = run_job(
        tmp_path, paths, *FLIGHT_FLAGS, *setting.flags, "--block_bytes=30000", runner=PRISM
    )
    assert outcome.finals == embedded[setting].finals
    assert outcome.too_late_ids == embedded[setting].too_late_ids


def test_shards_change_no_result_on_prism(tmp_path: Path, embedded: dict[Setting, Outcome]) -> None:
    """Four groups of keys, as one."""
    setting = SETTINGS[0]
    flags = ("--num_shards=4", "--block_bytes=50000")
    outcome = run_flights(tmp_path / "out", setting, *flags, runner=PRISM)
    check_equal(outcome, embedded[setting])


def test_the_same_command_again_leaves_the_same_table_on_prism(tmp_path: Path) -> None:
    """But for its run, though the engines' bundles differ."""
    setting = SETTINGS[0]
    flags = ("--block_bytes=100000",)
    first = run_flights(tmp_path / "out", setting, *flags, runner=PRISM)
    finals, late = first.finals, first.too_late_ids
    second = run_flights(tmp_path / "out", setting, *flags, runner=PRISM)
    assert second.finals == finals
    assert second.runs == {second.report["run"]}
    assert sorted(set(second.too_late_ids)) == late


@pytest.mark.parametrize("block_bytes", [1, 8 << 20])
def test_w1_ends_right_on_prism(tmp_path: Path, block_bytes: int) -> None:
    """The worked timeline: 86,000, and one dead letter."""
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    flags = (*TIMELINE_FLAGS, "--allowed_lateness=2m", f"--block_bytes={block_bytes}")
    outcome = run_job(tmp_path, [path], *flags, runner=PRISM)
    assert outcome.finals == {("ACC-001", TEN): (86_000, 4)}
    (letter,) = outcome.letters
    assert (letter["record_id"], letter["late_by_ms"]) == ("lost", 1)


def test_the_panes_of_w1_come_in_order_on_prism(tmp_path: Path) -> None:
    """A sink may see two in one bundle, but never an older one after a newer one."""
    keep_history(tmp_path)
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    flags = (*TIMELINE_FLAGS, "--allowed_lateness=2m", "--block_bytes=1")
    outcome = run_job(tmp_path, [path], *flags, runner=PRISM)
    values = [value for value, *_ in read_history(tmp_path)]
    assert values == sorted(set(values))
    assert set(values) <= {80_000, 85_000, 86_000}
    (row,) = outcome.rows
    assert (row.start, row.end, row.value, row.records) == (TEN, at(1, 0), 86_000, 4)
    assert row.timing == "LATE"
    assert row.pane_index == outcome.report["panes"] - 1


def test_each_bad_line_is_a_dead_letter_on_prism_too(tmp_path: Path) -> None:
    """With reason, payload, file and byte offset."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(interleaved()[0]) + b"\n")
    flags = (*BAD_FLAGS, "--block_bytes=500")
    check_interleaved(run_job(tmp_path, [path], *flags, runner=PRISM), path)


@pytest.mark.parametrize("whole", [True, False], ids=["record", "no record"])
def test_a_line_of_50_mb_passes_through_prism(tmp_path: Path, whole: bool) -> None:
    """Between processes it is one message."""
    long = a_line(id="long", more="x" * 50_000_000)
    if not whole:
        long = long[:-1]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([good(0), long, good(1)]))
    outcome = run_job(tmp_path, [path], *BAD_FLAGS, runner=PRISM)
    assert outcome.report["aggregated"] == 2 + whole
    for letter in outcome.letters:
        check_letter(letter, Bad(long, "malformed_json"), path, len(good(0)) + 1)


@pytest.mark.parametrize("data", [b"", b"one\ntwo\n"], ids=["empty", "invalid lines only"])
def test_an_input_without_records_balances_on_prism(tmp_path: Path, data: bytes) -> None:
    """And ends, with exit code 0."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    outcome = run_job(tmp_path, [path], *BAD_FLAGS, runner=PRISM)
    assert outcome.code == 0
    assert outcome.report["input"] == data.count(b"\n")
    assert outcome.rows == []


def test_our_jobs_never_let_prism_split_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options that the engine gets hold `prism_disable_sdf_split`, and what was asked for."""
    from apache_beam.options.pipeline_options import DebugOptions
    from apache_beam.runners.portability.prism_runner import PrismRunner

    seen: list[Any] = []
    run = PrismRunner.run_pipeline

    def watched(self: PrismRunner, pipeline: Any, options: Any) -> Any:
        seen.append(options.view_as(DebugOptions).experiments)
        return run(self, pipeline, options)

    monkeypatch.setattr(PrismRunner, "run_pipeline", watched)
    path = write_lines(tmp_path / "w1.jsonl", TIMELINE)
    run_job(tmp_path, [path], *TIMELINE_FLAGS, "--experiments=mine", runner=PRISM)
    (experiments,) = seen
    assert {"mine", "prism_disable_sdf_split"} <= set(experiments)

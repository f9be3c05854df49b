"""Flink at parallelism 2 with checkpoints gives what the model says, and what Prism gives."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.flink_runner import FlinkRunner

from beam_lateness import ReadSettings
from beam_lateness.pipelines.flink.cluster import Cluster
from benchmarks.payments import write_payments
from tests.cases.check import check_all, of_case
from tests.cases.engine import run_cases_from_files
from tests.cases.load import fixed_cases
from tests.flink.jobs import QUICK, check_readers, run_on_flink
from tests.jobs import (
    FLIGHT_FLAGS,
    FLIGHTS,
    PAYMENT_FLAGS,
    PRISM,
    SETTINGS,
    Setting,
    check_equal,
    read_flights,
    read_payments,
    run_job,
)
from tests.model import Windowed, bounded, verdicts

pytestmark = [pytest.mark.flink, pytest.mark.usefixtures("prism")]

RECORDS = 100_000
CORE = [case for case in fixed_cases("window") if case.scope == "core"]
PAYMENTS = (*PAYMENT_FLAGS, "--bound=5s", "--allowed_lateness=2m", "--num_shards=4", *QUICK)


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file."""
    path = tmp_path_factory.mktemp("payments") / "payments.jsonl"
    write_payments(path, RECORDS)
    return path


@pytest.fixture(scope="module")
def expected(payments: Path) -> Windowed:
    """What the model makes of it."""
    return verdicts([bounded(read_payments(payments), 5_000)], 60_000, 120_000)


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=["15m-60m", "0m-0m"])
def test_the_flights_come_out_as_the_model_says(
    flink: Cluster, tmp_path: Path, setting: Setting
) -> None:
    """And as on Prism: every window, every too late record, and how far too late it was."""
    flags = (*FLIGHT_FLAGS, *setting.flags, "--block_bytes=50000", *QUICK)
    outcome = run_on_flink(flink, tmp_path, [FLIGHTS], *flags)
    model = verdicts(
        [bounded(read_flights(), setting.bound_m * 60_000)],
        3_600_000,
        setting.lateness_m * 60_000,
    )
    assert outcome.code == 0
    assert outcome.report["engine"] == "flink"
    assert outcome.report["aggregated"] == setting.aggregated
    assert sum(row.value for row in outcome.rows) == setting.total
    assert outcome.totals == model.totals
    assert outcome.too_late_ids == sorted(event.name for event in model.too_late)
    prisms = run_job(tmp_path / "prism", [FLIGHTS], *FLIGHT_FLAGS, *setting.flags, runner=PRISM)
    check_equal(outcome, prisms)


def test_payments_by_one_reader_come_out_as_the_model_says(
    flink: Cluster, tmp_path: Path, payments: Path, expected: Windowed
) -> None:
    """Every final sum, every too late record, and the number of late ones."""
    outcome = run_on_flink(flink, tmp_path, [payments], *PAYMENTS, "--block_bytes=300000")
    assert outcome.report["input"] == RECORDS
    assert outcome.totals == expected.totals
    assert outcome.too_late_ids == sorted(event.name for event in expected.too_late)
    assert outcome.report["late"] == len(expected.late)
    prisms = run_job(tmp_path / "prism", [payments], *PAYMENTS[:-2], runner=PRISM)
    check_equal(outcome, prisms)


def test_payments_by_four_readers_are_conserved_exactly(
    flink: Cluster, tmp_path: Path, payments: Path
) -> None:
    """No record is lost or doubled; where the engine judged, it was no harsher than the model of
    each file by itself."""
    lines = payments.read_bytes().splitlines(keepends=True)
    paths = [tmp_path / f"part{number}.jsonl" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(b"".join(lines[number::4]))
    flags = (*PAYMENTS, "--num_readers=4", "--parallelism=4", "--block_bytes=300000")
    outcome = run_on_flink(flink, tmp_path / "out", paths, *flags)
    assert outcome.report["input"] == RECORDS
    check_readers(outcome, paths)


def test_the_core_cases_come_out_as_they_say(flink: Cluster, tmp_path: Path) -> None:
    """By the punctuated source, all in one pipeline: values, labels and the too-late set."""
    flags = [
        *flink.layout.flags,
        "--streaming",
        "--environment_type=EXTERNAL",
        "--parallelism=1",
        "--max_bundle_time_mills=200",
        "--number_of_execution_retries=0",
        "--shutdown_sources_after_idle_ms=0",
    ]
    outcomes = run_cases_from_files(
        CORE,
        lambda: beam.Pipeline(FlinkRunner(), options=PipelineOptions(flags)),
        tmp_path,
        embedded=False,
        settings=ReadSettings(),
    )
    failures = {}
    for case in CORE:
        try:
            check_all(outcomes[case.id], of_case(case), stamped=True)
        except AssertionError as error:
            failures[case.id] = str(error)
    assert not failures

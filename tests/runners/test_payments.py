"""100,000 payments with heavy-tailed delays: on both engines what the sequential model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.payments import write_payments
from tests.jobs import EMBEDDED, PAYMENT_FLAGS, PRISM, read_payments, run_job
from tests.model import Windowed, bounded, verdicts

pytestmark = pytest.mark.prism

RECORDS = 100_000


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file."""
    path = tmp_path_factory.mktemp("payments") / "payments.jsonl"
    write_payments(path, RECORDS)
    return path


@pytest.fixture(scope="module")
def expected(payments: Path) -> Windowed:
    """What the model makes of it, at a bound of 5 s and a lateness of 2 minutes."""
    result = verdicts([bounded(read_payments(payments), 5_000)], 60_000, 120_000)
    assert result.too_late
    assert result.late
    return result


@pytest.mark.parametrize(
    ("runner", "flags"),
    [
        (PRISM, ("--block_bytes=8388608",)),
        (PRISM, ("--block_bytes=300000",)),
        (PRISM, ("--block_bytes=1000000", "--num_shards=4")),
        (EMBEDDED, ("--block_bytes=1000000",)),
    ],
    ids=["prism-one-block", "prism-small-blocks", "prism-shards", "embedded"],
)
def test_payments_are_judged_and_summed_as_by_the_model(
    tmp_path: Path, payments: Path, expected: Windowed, runner: str, flags: tuple[str, ...]
) -> None:
    """Every final sum, every too late record, and the number of late ones."""
    outcome = run_job(
        tmp_path,
        [payments],
        *PAYMENT_FLAGS,
        "--bound=5s",
        "--allowed_lateness=2m",
        *flags,
        runner=runner,
    )
    assert outcome.code == 0
    assert outcome.report["input"] == RECORDS
    assert outcome.totals == expected.totals
    assert outcome.too_late_ids == sorted(event.name for event in expected.too_late)
    assert outcome.report["late"] == len(expected.late)

"""The report: the balance as a sum and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beam_lateness.pipelines.report import Report, format_time
from beam_lateness.transforms import metrics

COUNTS = {
    metrics.INPUT: 6064,
    metrics.AGGREGATED: 5935,
    metrics.LATE: 432,
    metrics.TOO_LATE: 128,
    metrics.INVALID: 1,
    metrics.PANES: 590,
    metrics.BLANK_LINES: 2,
    metrics.WATERMARK_MS: 1_357_035_300_000,
}


def test_the_balance_is_a_sum_that_reads_as_one() -> None:
    """With `=`, thousands set apart, and what was late among the aggregated."""
    report = Report.of(COUNTS, "prism", "r")
    assert report.balance() == (
        "input 6,064 = 5,935 aggregated (432 late) + 128 too late + 1 invalid"
    )


def test_a_lost_record_shows_in_the_sum() -> None:
    """As `!=`, and as unaccounted."""
    report = Report.of({**COUNTS, metrics.INPUT: 6065}, "prism", "r")
    assert not report.balanced
    assert report.unaccounted == 1
    assert "input 6,065 != 5,935" in report.balance()


def test_a_doubled_record_does_not_balance_either() -> None:
    """The law holds both ways."""
    report = Report.of({**COUNTS, metrics.AGGREGATED: 5936}, "prism", "r")
    assert not report.balanced
    assert report.unaccounted == -1


def test_counts_that_were_never_made_are_zero() -> None:
    """An empty input makes none."""
    report = Report.of({}, "embedded", "r")
    assert report.balanced
    assert (report.input, report.panes, report.watermark_ms) == (0, 0, None)


def test_the_file_has_the_fields_that_others_read(tmp_path: Path) -> None:
    """Those of issue 3, and the run and the blank lines."""
    path = tmp_path / "report.json"
    Report.of(COUNTS, "prism", "r1").write(str(path))
    assert json.loads(path.read_text()) == {
        "input": 6064,
        "aggregated": 5935,
        "late": 432,
        "too_late": 128,
        "invalid": 1,
        "panes": 590,
        "watermark_ms": 1_357_035_300_000,
        "balanced": True,
        "engine": "prism",
        "blank_lines": 2,
        "run": "r1",
    }


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "1970-01-01 00:00:00.000Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999Z"),
        (-62_135_596_800_000, "0001-01-01 00:00:00.000Z"),
    ],
)
def test_times_are_written_to_the_millisecond_over_the_whole_range(
    ms: int | None, text: str
) -> None:
    """Years 1 to 9999, in UTC."""
    assert format_time(ms) == text


@pytest.mark.parametrize("ms", [-62_135_596_800_001 - 10_000, 253_402_300_800_000])
def test_a_watermark_just_outside_the_years_1_to_9999_is_written_too(ms: int) -> None:
    """A watermark is a bound behind the first event times, or 1 ms after the last."""
    assert format_time(ms)

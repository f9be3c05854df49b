"""The examples of operations (W2 and W15 of cases/worked.md): their numbers are the model's."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from examples import above_the_threshold, double_counting
from tests.model import Event, Marker, Windowed, bounded, punctuated, verdicts

MINUTE = 60_000
LATENESS = 2 * MINUTE
BOUND = 10_000


def steps() -> list[Event | Marker]:
    """The steps of W2, for the model."""
    found: list[Event | Marker] = []
    for step in double_counting.STEPS:
        moment = datetime.fromisoformat(step["at"].replace("Z", "+00:00"))
        ms = round(moment.timestamp() * 1000)
        marker = "marker" in step
        found.append(Marker(ms) if marker else Event(step["account"], step["amount"], ms))
    return found


def model_panes() -> list[int]:
    """The panes of W2: the window fires at the first watermark past its end."""
    model = Windowed(MINUTE, LATENESS)
    for event, watermark in punctuated(steps()):
        model.advance(watermark)
        model.record(event)
    return [pane.value for pane in model.panes]


def payments(file: Path) -> list[Event]:
    """A terminal's payments, for the model."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        Event(line["account"], line["amount_cents"], line["event_time"], line["payment_id"])
        for line in lines
    ]


def test_appended_panes_sum_to_more_than_was_paid(tmp_path: Path) -> None:
    """All panes of the model stand in the one table, the last in the other, and it is right."""
    panes = model_panes()
    paid = sum(step.value for step in steps() if isinstance(step, Event))
    url = double_counting.write_both(tmp_path)
    appended = [row[2] for row in double_counting.read_rows(url, double_counting.PANES)]
    upserted = [row[2] for row in double_counting.read_rows(url, double_counting.WINDOWS)]
    assert appended == panes
    assert upserted == panes[-1:] == [paid]
    assert sum(appended) > paid


def test_the_example_of_double_counting_shows_both_sums_and_the_refusal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sums of the model; and that corrections in an append table are refused, and why."""
    panes = model_panes()
    double_counting.main()
    printed, errors = capsys.readouterr()
    assert f"append: sum {sum(panes):,}\n" in printed
    assert f"upsert: sum {panes[-1]:,}\n" in printed
    assert "exit code 2" in printed
    assert "--mode=append with --allowed_lateness=2m (profile ops_dashboard)" in errors
    assert "counts records twice" in errors


def test_the_refused_job_leaves_nothing_behind(tmp_path: Path) -> None:
    """No database: it was refused before anything ran."""
    double_counting.write_both(tmp_path)
    assert double_counting.refuse(tmp_path) == 2
    assert not (tmp_path / "dashboard.db").exists()


@pytest.mark.parametrize(("kept", "alerts"), [(20, 1), (10, 0), (5, 0)])
def test_an_alert_comes_above_one_percent_only_and_the_night_completes_the_store(
    tmp_path: Path, kept: int, alerts: int
) -> None:
    """2% of a minute: one alert, that blames B; 1% and 0.5%: none; the store ends as the input."""
    files = above_the_threshold.write_stream(tmp_path, kept)
    splits = [list(bounded(payments(file), BOUND)) for file in files]
    model = verdicts(splits, MINUTE, LATENESS)
    assert len(model.too_late) == kept

    found = above_the_threshold.stream(tmp_path)
    assert above_the_threshold.read_store(tmp_path) == model.totals
    assert len(found) == alerts
    for alert in found:
        period = range(alert["period_start_ms"], alert["period_end_ms"])
        came = [[event for event, watermark in split if watermark in period] for split in splits]
        late = [[event for event in split if event in model.too_late] for split in came]
        assert alert["records"] == sum(map(len, came))
        assert alert["too_late"] == sum(map(len, late)) == kept
        assert Path(alert["split"]) == files[1]
        assert (alert["split_records"], alert["split_too_late"]) == (len(came[1]), len(late[1]))
        assert alert["rate"] == kept / sum(map(len, came)) > 0.01

    above_the_threshold.reconcile(tmp_path)
    everything = verdicts(splits, MINUTE, 10**12)
    assert above_the_threshold.read_store(tmp_path) == everything.totals
    assert above_the_threshold.sum_up(files) == everything.totals


def test_the_example_of_the_threshold_prints_one_alert_and_two_complete_stores(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The sum by night is that of all payments, after either day."""
    files = above_the_threshold.write_stream(tmp_path, 0)
    paid = sum(event.value for file in files for event in payments(file))
    above_the_threshold.main()
    printed = capsys.readouterr().out
    assert re.findall(r"alerts: (\d)", printed) == ["1", "0"]
    assert printed.count("ALERT: 20 of 1,000 (2.0%)") == 1
    assert printed.count(f"by night: {paid:,}; equal to the input: True") == 2


def test_with_the_suggested_lateness_there_is_no_alert_any_more(tmp_path: Path) -> None:
    """The suggestion of the alert, held to the model: at most 1% are too late then."""
    files = above_the_threshold.write_stream(tmp_path, 20)
    (alert,) = above_the_threshold.stream(tmp_path)
    splits = [list(bounded(payments(file), BOUND)) for file in files]
    suggested = alert["suggested_allowed_lateness_ms"]
    assert len(verdicts(splits, MINUTE, suggested).too_late) <= 10
    assert len(verdicts(splits, MINUTE, suggested - 1_000).too_late) > 0

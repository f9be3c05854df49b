"""`SendAlerts`: each alert arrives whole, in one place, and a failure costs the job nothing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import apache_beam as beam
import pytest

from beam_lateness.transforms import metrics
from beam_lateness.transforms.lateness.alerts import LateAlert
from beam_lateness.transforms.sinks.alerts import (
    FileChannel,
    NotDeliveredError,
    SendAlerts,
    WebhookChannel,
    alert_json,
    alert_text,
    masked,
)
from tests.cases.engine import direct_pipeline

ALERT = LateAlert(
    period_start_ms=60_000,
    period_end_ms=120_000,
    records=1000,
    too_late=20,
    rate=0.02,
    split="day-1.jsonl",
    split_records=400,
    split_too_late=19,
    late_by_p50_ms=1_500,
    late_by_max_ms=61_000,
    suggested_allowed_lateness_ms=130_000,
    suggested_bound_ms=20_000,
    suppressed=3,
)


@dataclass
class Hook:
    """A webhook on this machine.

    Args:
        answers: The statuses it answers with, one after another, and then 200; 0 is silence.
    """

    answers: list[int]
    url: str = ""
    location: str = ""
    got: list[bytes] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture(autouse=True)
def own_tally() -> Iterator[None]:
    """Begins and ends with nothing counted."""
    metrics.start_tally()
    yield
    metrics.start_tally()


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Serves a webhook."""
    hook = Hook([])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.got.append(self.rfile.read(int(self.headers["Content-Length"])))
            hook.logins.append(self.headers["Authorization"])
            status = hook.answers.pop(0) if hook.answers else 200
            if not status:
                hook.over.wait(60)
                return
            self.send_response(status)
            if hook.location:
                self.send_header("Location", hook.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/services/token"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield hook
        hook.over.set()
        server.shutdown()
        thread.join()


def no_sleep(seconds: float) -> None:
    """Takes no time."""


def send(target: str, *alerts: LateAlert, timeout: str = "5s") -> None:
    """Sends alerts by a pipeline."""
    with direct_pipeline() as pipeline:
        created = pipeline | beam.Create(list(alerts or [ALERT]))
        _ = created | SendAlerts(target, timeout, no_sleep)


def failures() -> int:
    """How many alerts were not delivered."""
    return metrics.tally().get(metrics.ALERTS_FAILED, 0)


def test_the_text_tells_what_happened_and_what_would_help() -> None:
    """In one line, in units that the flags take."""
    assert alert_text(ALERT) == (
        "20 of 1000 records (2%) were too late from 1970-01-01T00:01:00.000Z to "
        "1970-01-01T00:02:00.000Z, most of them from 'day-1.jsonl' (19 of its 400); half by up to "
        "1s500ms, all by up to 1m1s; an allowed lateness of 2m10s or a bound of 20s would have "
        "kept enough of them; 3 alerts before it were held back"
    )


def test_the_text_leaves_out_what_there_is_not() -> None:
    """No bound, nothing held back."""
    text = alert_text(ALERT._replace(suggested_bound_ms=None, suppressed=0))
    assert text.endswith("an allowed lateness of 2m10s would have kept enough of them")


@pytest.mark.parametrize("year_ms", [-99_999_999_999_999, 253_402_300_800_000])
def test_periods_outside_of_the_years_that_dates_have_can_be_told(year_ms: int) -> None:
    """A watermark is up to a bound behind the year 1."""
    assert "too late" in alert_text(ALERT._replace(period_start_ms=year_ms))


def test_json_has_every_field_and_the_text() -> None:
    """By name; a split's name that is no UTF-8 too."""
    alert = ALERT._replace(split="caf\udce9", suggested_bound_ms=None)
    assert json.loads(alert_json(alert)) == {**alert._asdict(), "text": alert_text(alert)}


def test_the_log_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """In the package's own log."""
    with caplog.at_level(logging.WARNING, "beam_lateness"):
        send("log")
    (record,) = [each for each in caplog.records if each.name.startswith("beam_lateness")]
    assert (record.levelname, record.getMessage()) == ("WARNING", alert_text(ALERT))


@pytest.mark.parametrize("form", ["{}.jsonl", "file:{}", "file://{}"])
def test_a_file_gets_a_line_an_alert_that_only_its_owner_may_read(
    form: str, tmp_path: Path
) -> None:
    """What was there stays."""
    target = form.format(tmp_path / "alerts")
    send(target, ALERT, ALERT._replace(too_late=21))
    send(target, ALERT._replace(too_late=22))
    (path,) = tmp_path.iterdir()
    found = [json.loads(line)["too_late"] for line in path.read_text().splitlines()]
    assert (sorted(found[:2]), found[2:]) == ([20, 21], [22])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_where_the_pipeline_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may have another working directory."""
    monkeypatch.chdir(tmp_path)
    channel = FileChannel("alerts.jsonl")
    monkeypatch.chdir("/")
    channel.send(ALERT)
    assert (tmp_path / "alerts.jsonl").read_bytes() == alert_json(ALERT) + b"\n"


def test_a_file_that_cannot_be_written_any_more_does_not_fail_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told and counted; a disk may be full, a folder gone."""
    (tmp_path / "folder").mkdir()
    target = SendAlerts(str(tmp_path / "folder" / "alerts.jsonl"))
    (tmp_path / "folder" / "alerts.jsonl").unlink()
    (tmp_path / "folder").rmdir()
    with direct_pipeline() as pipeline:
        _ = pipeline | beam.Create([ALERT]) | target
    assert failures() == 1
    assert "FileNotFoundError" in caplog.text


def test_a_full_disk_does_not_fail_the_job() -> None:
    """It fails to write at the first byte."""
    send("file:/dev/full")
    assert failures() == 1


def test_a_webhook_gets_the_alert_as_json(hook: Hook) -> None:
    """Once, and whole."""
    send(hook.url)
    assert hook.got == [alert_json(ALERT)]
    assert failures() == 0


def test_a_login_in_the_url_is_used(hook: Hook) -> None:
    """As HTTP's Basic authentication."""
    send(hook.url.replace("http://", "http://me:secret@"))
    assert hook.logins == ["Basic bWU6c2VjcmV0"]


def test_a_webhook_that_fails_and_recovers_gets_the_alert(hook: Hook) -> None:
    """500, too many requests, then 200: the waits grow."""
    waits: list[float] = []
    hook.answers = [500, 429]
    WebhookChannel(hook.url, 5, waits.append).send(ALERT)
    assert hook.got == [alert_json(ALERT)] * 3
    assert waits == [1, 2]


def test_a_webhook_that_keeps_failing_does_not_fail_the_job(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    """After three tries it is told and counted, and the next alert has its own."""
    hook.answers = [500, 503, 500]
    send(hook.url, ALERT, ALERT._replace(too_late=21))
    assert (len(hook.got), failures()) == (4, 1)
    assert "HTTP 500 (tries: 3)" in caplog.text


def test_a_webhook_that_hangs_is_given_up(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    """After the timeout, each time."""
    hook.answers = [0, 0, 0]
    send(hook.url, timeout="50ms")
    assert failures() == 1
    assert "ReadTimeout (tries: 3)" in caplog.text


def test_a_webhook_that_is_not_there_does_not_fail_the_job(hook: Hook) -> None:
    """Nobody listens at that port."""
    url = hook.url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(NotDeliveredError, match=r"ConnectionError \(tries: 3\)"):
        WebhookChannel(url, 5, no_sleep).send(ALERT)
    send(url)
    assert failures() == 1


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_what_another_try_would_not_mend_is_not_tried_again(hook: Hook, status: int) -> None:
    """The request itself is wrong."""
    hook.answers = [status]
    with pytest.raises(NotDeliveredError, match=rf"HTTP {status} \(tries: 1\)"):
        WebhookChannel(hook.url, 5, no_sleep).send(ALERT)
    assert len(hook.got) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(hook: Hook, status: int) -> None:
    """It could lead an alert, or a login, to a host that nobody chose."""
    hook.answers, hook.location = [status], hook.url
    send(hook.url)
    assert (len(hook.got), failures()) == (1, 1)


def test_no_secret_of_a_url_is_logged(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    """Neither login, nor path, nor query, whatever goes wrong."""
    secret = f"{hook.url}/T0/hush?key=hush#hush".replace("http://", "http://me:hush@")
    hook.answers = [500, 0, 404]
    with caplog.at_level(logging.WARNING):
        send(secret, timeout="50ms")
        send(secret.replace("127.0.0.1", "127.0.0.2"))
    assert failures() == 2
    assert caplog.text.count("127.0.0.") == 2
    assert "hush" not in caplog.text
    assert "hush" not in repr(SendAlerts(secret))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example", "https://hooks.example/..."),
        ("https://hooks.example/", "https://hooks.example/..."),
        ("https://hooks.example?key=a@b/c", "https://hooks.example/..."),
        ("https://me:half?of@hooks.example", "https://me/..."),
        ("https://me:s@hooks.example:8443/a/b?c#d", "https://hooks.example/..."),
    ],
)
def test_a_masked_url_names_the_host_only(url: str, shown: str) -> None:
    """Chat services have the secret in the path."""
    assert masked(url) == shown


@pytest.mark.parametrize(
    "target",
    ["", "stdout", "alerts.json", "ftp://h/a.jsonl", "gs://b/a.jsonl", "file:", "file://h/a.jsonl"],
)
def test_another_target_is_refused(target: str) -> None:
    """At construction, with what there is to choose from."""
    with pytest.raises(
        ValueError, match=r"\(--alert_to\) must be log, file:PATH, .*\.jsonl, .*https://"
    ):
        SendAlerts(target)


@pytest.mark.parametrize("rest", ["", "/path", ":80/path", "hush:word?@host", "[::1/path"])
def test_a_url_without_a_host_is_refused_and_not_shown(rest: str) -> None:
    """What stands in its place may be a password."""
    with pytest.raises(ValueError, match="must be a URL with a host") as refused:
        SendAlerts(f"https://{rest}")
    assert "hush" not in str(refused.value)


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """At construction."""
    for path in (tmp_path, tmp_path / "none" / "alerts.jsonl"):
        with pytest.raises(ValueError, match=r"target .* must be a file that can be written"):
            SendAlerts(f"file:{path}")


def test_a_timeout_of_nothing_is_refused() -> None:
    """It would fail each time."""
    with pytest.raises(ValueError, match="timeout must lie between 1ms"):
        SendAlerts("log", timeout=0)

"""`SendAlerts`: alerts to the log, to a file of JSON lines, or to a webhook.

An alert that cannot be delivered is logged and counted (`alerts_failed`), and the job goes on.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import apache_beam as beam
import numpy as np
import requests
from apache_beam.pvalue import PCollection

from beam_lateness.transforms import metrics
from beam_lateness.transforms.database import without_login
from beam_lateness.transforms.lateness.alerts import LateAlert
from beam_lateness.transforms.times import Duration, duration_ms, format_duration

LOG: Final = "log"
_TRIES: Final = 3
_FIRST_WAIT_S: Final = 1.0
_TOO_MANY_REQUESTS: Final = 429
_LOG = logging.getLogger(__name__)
_FAILED = metrics.Count(metrics.ALERTS_FAILED)


def alert_text(alert: LateAlert) -> str:
    """Writes an alert for a person, in one line.

    Example:
        >>> print(alert_text(LateAlert(0, 60_000, 1000, 20, 0.02, "a", 500, 19, 70, 99, 4_000)))
        20 of 1000 records (2%) were too late from 1970-01-01T00:00:00.000Z to \
1970-01-01T00:01:00.000Z, most of them from 'a' (19 of its 500); half by up to 70ms, all by up to \
99ms; an allowed lateness of 4s would have kept enough of them
    """
    start, end = np.array([alert.period_start_ms, alert.period_end_ms], "datetime64[ms]")
    remedies = [f"an allowed lateness of {format_duration(alert.suggested_allowed_lateness_ms)}"]
    if alert.suggested_bound_ms is not None:
        remedies.append(f"a bound of {format_duration(alert.suggested_bound_ms)}")
    held = f"; {alert.suppressed} alerts before it were held back" if alert.suppressed else ""
    return (
        f"{alert.too_late} of {alert.records} records ({alert.rate * 100:.3g}%) were too late from "
        f"{start}Z to {end}Z, most of them from {alert.split!r} ({alert.split_too_late} of its "
        f"{alert.split_records}); half by up to {format_duration(alert.late_by_p50_ms)}, all by "
        f"up to {format_duration(alert.late_by_max_ms)}; {' or '.join(remedies)} would have kept "
        f"enough of them{held}"
    )


def alert_json(alert: LateAlert) -> bytes:
    """Writes an alert as a JSON object: its fields by name, and `text` (see `alert_text`).

    Example:
        >>> written = alert_json(LateAlert(0, 60_000, 1000, 20, 0.02, "a", 500, 20, 70, 99, 4_000))
        >>> json.loads(written)["rate"]
        0.02
    """
    return json.dumps({**alert._asdict(), "text": alert_text(alert)}).encode()


@dataclass(eq=False)
class SendAlerts(beam.PTransform[PCollection[LateAlert], PCollection[Any]]):
    """Sends each alert to one place, and never fails the job.

    A bundle that an engine repeats sends its alerts again: `period_start_ms` tells them apart.

    Watermark: takes a `PCollection[LateAlert]`, gives nothing.

    Args:
        target: `log`: a warning in the package's log. `file:PATH`, or a path that ends in .jsonl:
            appended to that local file as JSON lines (see `alert_json`), which only its owner may
            read. `https://...` or `http://...`: posted there as JSON, up to three times, where
            the answer is no 2xx but may yet become one (5xx, 429, no answer); redirects are
            refused. The object's `text` is what chat services show.
        timeout: How long a webhook may keep silent.
        sleep: Waits so many seconds between tries; workers get it with the pipeline.

    Raises:
        ValueError: At construction, if the target is none of these or the file cannot be written.

    Example:
        >>> SendAlerts("log").timeout
        '10s'
    """

    target: str = field(repr=False)  # may hold a password
    timeout: Duration = "10s"
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        super().__init__()
        timeout_s = duration_ms(self.timeout, name="timeout", minimum_ms=1) / 1000
        self._channel = open_channel(self.target, timeout_s, self.sleep)

    def expand(self, alerts: PCollection[LateAlert]) -> PCollection[Any]:
        """Sends one by one."""
        return alerts | "Send" >> beam.ParDo(_Send(self._channel))


class Channel(Protocol):
    """Where alerts go.

    Args:
        shown: What to call it, without what may be secret.
    """

    shown: str

    def send(self, alert: LateAlert) -> None:
        """Delivers an alert, or raises."""


class NotDeliveredError(Exception):
    """An alert was not delivered; says why without what may be secret."""


def open_channel(target: str, timeout_s: float, sleep: Callable[[float], None]) -> Channel:
    """Gives the channel of a target; see `SendAlerts`.

    Raises:
        ValueError: If it is none, or its file cannot be written.
    """
    scheme = target.partition("://")[0].lower()
    if target == LOG:
        return LogChannel()
    if scheme in ("http", "https"):
        return WebhookChannel(target, timeout_s, sleep)
    if path := _path_of(target):
        return FileChannel(path)
    msg = (
        "target (--alert_to) must be log, file:PATH, a path that ends in .jsonl, or a webhook's "
        f"https:// or http:// URL, got {masked(target)!r}"
    )
    raise ValueError(msg)


def _path_of(target: str) -> str | None:
    """Gives the path of a target that is a local file."""
    if not target.startswith("file:"):
        return target if target.endswith(".jsonl") and "://" not in target else None
    path = target.removeprefix("file:")
    if path.startswith("//"):  # file:///PATH is local, file://HOST/PATH is not
        path = path.removeprefix("//")
        return path if path.startswith("/") else None
    return path


def masked(url: str) -> str:
    """Gives a URL without what may be secret: the login, the query, and the path of a webhook.

    Example:
        >>> masked("https://me:secret@hooks.example/services/T0/token?key=secret")
        'https://hooks.example/...'
    """
    scheme, sign, _ = url.partition("://")
    try:
        host = urlsplit(url).hostname  # and not the port: it may be half a password
    except ValueError:
        host = None
    return f"{scheme}{sign}{host or ''}/..." if sign else without_login(url)


class LogChannel:
    """The package's log."""

    shown: str = LOG

    def send(self, alert: LateAlert) -> None:
        """Warns."""
        _LOG.warning("%s", alert_text(alert))


class FileChannel:
    """A local file of JSON lines.

    Args:
        path: Its path; what is there stays.

    Raises:
        ValueError: If it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.shown = self._path = os.path.abspath(path)
        try:
            os.close(self._open())
        except OSError as error:
            msg = (
                f"target (--alert_to) {path!r} must be a file that can be written: {error.strerror}"
            )
            raise ValueError(msg) from error

    def send(self, alert: LateAlert) -> None:
        """Appends a line, in one write: lines of several workers do not mix."""
        line = alert_json(alert) + b"\n"
        file = self._open()
        try:
            written = os.write(file, line)
        finally:
            os.close(file)
        if written < len(line):
            msg = f"{written} of {len(line)} bytes written"
            raise NotDeliveredError(msg)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class WebhookChannel:
    """A URL that alerts are posted to.

    Args:
        url: The URL; it may hold a login.
        timeout_s: How long it may keep silent, in seconds.
        sleep: Waits so many seconds between tries.

    Raises:
        ValueError: If the URL has no host.
    """

    def __init__(self, url: str, timeout_s: float, sleep: Callable[[float], None]) -> None:
        try:
            parts = urlsplit(url)
            usable = bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, a bracket that is not closed
            usable = False
        if not usable:
            scheme = url.partition("://")[0]
            msg = f"target (--alert_to) must be a URL with a host, got {scheme}://...; write {scheme}://HOST/PATH"
            raise ValueError(msg)
        self.shown = masked(url)
        self._url = url
        self._timeout_s = timeout_s
        self._sleep = sleep

    def send(self, alert: LateAlert) -> None:
        """Posts it; tries again where that may help."""
        data = alert_json(alert)
        for tried in range(_TRIES):
            if tried:
                self._sleep(_FIRST_WAIT_S * 2 ** (tried - 1))
            reason, may_help = self._post(data)
            if reason is None:
                return
            if not may_help:
                break
        msg = f"{reason} (tries: {tried + 1}): {alert_text(alert)}"
        raise NotDeliveredError(msg)

    def _post(self, data: bytes) -> tuple[str | None, bool]:
        """Posts once; gives what went wrong, and whether another try may help."""
        try:
            with requests.post(
                self._url,
                data=data,
                headers={"Content-Type": "application/json"},
                timeout=self._timeout_s,
                allow_redirects=False,  # it could lead to a host that nobody chose
                stream=True,  # the answer's body is not read: it may have no end
            ) as answer:
                status = answer.status_code
        except requests.RequestException as error:  # its text holds the URL
            return type(error).__name__, True
        if 200 <= status < 300:
            return None, False
        return f"HTTP {status}", status >= 500 or status == _TOO_MANY_REQUESTS


class _Send(beam.DoFn):
    """Sends alerts; what goes wrong is told."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def process(self, element: LateAlert) -> None:
        try:
            self._channel.send(element)
        except Exception as error:  # whatever it is: the job is worth more than the alert
            _FAILED.inc()
            reason = error if isinstance(error, NotDeliveredError) else type(error).__name__
            period = f"[{element.period_start_ms}, {element.period_end_ms}) ms"
            _LOG.warning("alert of %s not sent to %s: %s", period, self._channel.shown, reason)

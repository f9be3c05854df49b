"""Who looks after a running job: alerts, and its counts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from apache_beam.pvalue import PCollection
from rich.console import Console

from beam_lateness.pipelines.flags import whole
from beam_lateness.pipelines.ports import LARGEST
from beam_lateness.pipelines.prometheus import MetricsFile, serve
from beam_lateness.transforms.batch import EventBatch
from beam_lateness.transforms.lateness.alerts import LateRateAlert
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.sinks.alerts import SendAlerts

_PER: Final = "1m"
_TO: Final = "log"


def add_watch_flags(add: Callable[..., Any]) -> None:
    """Adds the flags to a group of an argument parser."""
    add(
        "--alert_threshold",
        help="share of records that may be too late, such as 0.01: more of them in a period bring "
        "an alert",
    )
    add("--alert_per", help=f"length of a period of watermark time ({_PER})")
    add(
        "--alert_to",
        help=f"log, file:PATH (JSON lines) or the URL of a webhook ({_TO})",
    )
    add("--metrics_port", help="serve counts to Prometheus on this port of this machine; 0: any")
    add("--metrics_file", help="keep counts in this file, for node exporter: NAME.prom")


@dataclass(frozen=True)
class Watch:
    """Who looks after a job, checked.

    Args:
        threshold: The share of records that may be too late; None for no alerts.
        per: The length of a period.
        to: Where alerts go.
        bound: The bound of the watermark, for suggestions; None if there is none.
        port: Where Prometheus finds the counts; None if it does not.
        path: The file of the counts; None if there is none.
    """

    threshold: float | None
    per: str
    to: str = field(repr=False)  # may hold a password
    bound: str | None
    port: int | None
    path: str | None

    @property
    def counts(self) -> bool:
        """Whether anybody is shown the counts."""
        return self.port is not None or self.path is not None

    def add_alerts(self, events: PCollection[EventBatch], windows: Windows) -> None:
        """Adds the steps of the alerts to a pipeline, if there are any."""
        if self.threshold is not None:
            alerts = events | "LateRateAlert" >> LateRateAlert(
                windows, self.threshold, self.per, self.bound
            )
            _ = alerts | "SendAlerts" >> SendAlerts(self.to)

    @contextmanager
    def counting(
        self,
        read_counts: Callable[[], Mapping[str, int]],
        run: str,
        engine: str,
        console: Console,
    ) -> Iterator[None]:
        """Shows a job's counts to Prometheus as long as the context lasts.

        Args:
            read_counts: Gives the counts by metric name.
            run: The run's name.
            engine: The engine that runs the job.
            console: Where to say how to find them.

        Raises:
            ValueError: If the port or the file cannot be had.
        """
        with ExitStack() as stack:
            if self.path is not None:
                stack.enter_context(MetricsFile(self.path, read_counts, run, engine))
            if self.port is not None:
                server = stack.enter_context(serve(self.port, read_counts, run, engine))
                console.print(f"metrics: http://127.0.0.1:{server.port}/metrics", highlight=False)
            yield


def read_watch(options: Any) -> Watch:
    """Checks the flags.

    Raises:
        ValueError: For the first flag that is wrong or has no meaning beside the others.
    """
    threshold = _share(options.alert_threshold)
    for name in ("alert_per", "alert_to"):
        if threshold is None and getattr(options, name) is not None:
            msg = f"--{name} is of alerts: give --alert_threshold too, or leave it out"
            raise ValueError(msg)
    found = Watch(
        threshold,
        options.alert_per or _PER,
        options.alert_to or _TO,
        options.bound if options.watermark == "bounded" else None,
        _port(options.metrics_port),
        options.metrics_file,
    )
    if threshold is not None and options.num_readers != "1":
        msg = (
            f"--alert_threshold needs --num_readers=1, got {options.num_readers}: with several, "
            "each judges by its own splits, and the engine alone knows what is too late"
        )
        raise ValueError(msg)
    if threshold is not None:  # their own checks, before anything runs
        LateRateAlert(Windows("1m"), threshold, found.per)
        SendAlerts(found.to)
    return found


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        msg = f"--alert_threshold must be a number, got {text!r}; 0.01 is one record in a hundred"
        raise ValueError(msg) from None


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    port = whole("--metrics_port", text, least=0)
    if port > LARGEST:
        msg = f"--metrics_port must be a number from 0 to {LARGEST}, got {text!r}"
        raise ValueError(msg)
    return port

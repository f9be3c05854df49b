"""Flink's REST interface: what a cluster says of its jobs, and what it is told."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import requests
from apache_beam.metrics import monitoring_infos
from apache_beam.portability.api import metrics_pb2

from beam_lateness.pipelines.causes import cause_of
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.transforms import metrics

MASTER: Final = "localhost:8081"
MAGIC_MASTERS: Final = ("[auto]", "[local]", "[collection]")
"""Beam's names for a Flink inside the job server, which has no REST interface."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1")
RUNNING: Final = "RUNNING"
ENDED: Final = ("FINISHED", "CANCELED", "FAILED")
_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.2
_START_S: Final = 60.0  # in which the tasks of a job should run
_AT_WORK: Final = ("RUNNING", "FINISHED")
_BEAMS_METRICS: Final = "__metricscontainers"
_OURS: Final = re.compile(rf"\.{metrics.NAMESPACE}_")


@dataclass(frozen=True)
class Job:
    """A job of a cluster.

    Args:
        id: Flink's name for it: 32 hexadecimal digits.
        name: Its own name.
        state: Such as RUNNING, RESTARTING, FINISHED, CANCELED or FAILED.
        start_ms: When it started, in ms since the epoch.
        end_ms: When it ended; None before.
    """

    id: str
    name: str
    state: str
    start_ms: int
    end_ms: int | None

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ENDED


@dataclass(frozen=True)
class Checkpoints:
    """What a job has kept.

    Args:
        completed: How many checkpoints there were.
        failed: How many did not come about.
        restored: How often the job went back to one (or began with one).
        path: Where the last one is; None before the first.
        size: Its size in bytes.
        at_ms: When it was begun, in ms since the epoch.
        sizes: The sizes of those that Flink remembers, in bytes, the oldest first.
    """

    completed: int
    failed: int
    restored: int
    path: str | None
    size: int | None
    at_ms: int | None
    sizes: tuple[int, ...]


class FlinkRest:
    """A Flink cluster.

    Args:
        master: `HOST:PORT` of its REST interface, or its URL.
    """

    def __init__(self, master: str) -> None:
        self.master = master
        self._url = (master if "://" in master else f"http://{master}").rstrip("/")
        self._session = requests.Session()
        self.here = urlsplit(self._url).hostname in LOCAL_HOSTS  # whether it is on this machine
        self._session.trust_env = not self.here  # a proxy knows nothing of this machine

    def overview(self) -> Mapping[str, Any]:
        """Gives task managers, slots, jobs and the version of Flink."""
        found = self._get("overview")
        if not isinstance(found, dict) or "flink-version" not in found:
            raise self._stranger()
        return found

    def task_managers(self) -> set[str]:
        """Gives the ids of the task managers."""
        return {entry["id"] for entry in self._get("taskmanagers")["taskmanagers"]}

    def jobs(self) -> list[Job]:
        """Gives the jobs that the cluster remembers, the last started first."""
        told = self._get("jobs/overview")
        if not isinstance(told, dict) or "jobs" not in told:
            raise self._stranger()
        found = [_job(entry) for entry in told["jobs"]]
        return sorted(found, key=lambda job: job.start_ms, reverse=True)

    def job(self, name: str | None = None) -> Job:
        """Gives a job by its id or its name, or the only one that runs.

        Raises:
            ValueError: If there is none, or it is not clear which is meant.
        """
        jobs = self.jobs()
        if name is None:
            found = [job for job in jobs if not job.ended]
            what = "running job"
        else:
            found = [job for job in jobs if job.id == name]
            found = found or [job for job in jobs if job.name == name][:1]
            what = f"job {name!r}"
        if len(found) == 1:
            return found[0]
        there = ", ".join(f"{job.name} ({job.id}, {job.state})" for job in jobs) or "none"
        number = "no" if not found else "more than one"
        msg = f"{self.master} has {number} {what}; its jobs: {there}"
        raise ValueError(msg)

    def restarts(self, job_id: str) -> int:
        """Gives how often a job has been started anew after a failure."""
        found = self._get(f"jobs/{job_id}/metrics?get=numRestarts")
        return max((int(entry["value"]) for entry in found), default=0)

    def checkpoints(self, job_id: str) -> Checkpoints:
        """Gives what a job has kept."""
        found = self._get(f"jobs/{job_id}/checkpoints")
        counts = found["counts"]
        last = found["latest"]["completed"] or {}
        sizes = [
            entry["state_size"]
            for entry in reversed(found["history"])
            if entry["status"] == "COMPLETED" and not entry["is_savepoint"]
        ]
        return Checkpoints(
            counts["completed"],
            counts["failed"],
            counts["restored"],
            last.get("external_path"),
            last.get("state_size"),
            last.get("trigger_timestamp"),
            tuple(sizes),
        )

    def counts(self, job_id: str) -> dict[str, int]:
        """Gives what a job has counted since it was started (last), by metric name.

        Flink tells a running job's counts step by step, and those of one that is over as a whole.
        """
        found = dict.fromkeys(metrics.COUNTS, 0)
        detail = self._get(f"jobs/{job_id}")
        if detail["state"] in ENDED:
            for entry in self._get(f"jobs/{job_id}/accumulators")["user-task-accumulators"]:
                if entry["name"] == _BEAMS_METRICS:
                    for info in json.loads(entry["value"])["metrics"]["attempted"]:
                        _add(info, found)
            return found
        for vertex in detail["vertices"]:
            path = f"jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics"
            names = [entry["id"] for entry in self._get(path) if _OURS.search(entry["id"])]
            if not names:
                continue
            asked = quote(",".join(names))
            for entry in self._get(f"{path}?get={asked}&agg=sum,min"):
                name = _OURS.split(entry["id"])[-1]
                if name in metrics.GAUGES:  # of several watermarks the lowest holds
                    least = int(entry["min"])
                    found[name] = min(least, found.get(name, least))
                elif name in metrics.COUNTERS:
                    found[name] = found.get(name, 0) + int(entry["sum"])
        return found

    def failure(self, job_id: str) -> str | None:
        """Gives the cause of a job's last failure in one line; None if there was none."""
        entries = self._get(f"jobs/{job_id}/exceptions").get("exceptionHistory", {})
        for entry in entries.get("entries", [])[:1]:
            return cause_of(entry["stacktrace"])
        return None

    def stop(self, job_id: str, folder: str | None = None, timeout_s: float = 600.0) -> str:
        """Stops a job with a savepoint, at a moment at which nothing is half done.

        A job that has just been started, or started anew, is waited for: Flink would refuse.

        Args:
            job_id: The job.
            folder: Where the savepoint goes; None for the cluster's own.
            timeout_s: How long to wait for it, in seconds.

        Returns:
            Where the savepoint is.

        Raises:
            EngineError: If Flink refuses, or it takes too long.
        """
        asked = {"drain": False, **({} if folder is None else {"targetDirectory": folder})}
        self._await_tasks(job_id, min(timeout_s, _START_S))
        end = time.monotonic() + timeout_s
        request = self._call("POST", f"jobs/{job_id}/stop", asked)["request-id"]
        while time.monotonic() < end:
            found = self._get(f"jobs/{job_id}/savepoints/{request}")
            if found["status"]["id"] == "COMPLETED":
                operation = found["operation"]
                if "location" in operation:
                    return str(operation["location"])
                cause = cause_of(operation["failure-cause"].get("stack-trace", ""))
                msg = f"job {job_id} was not stopped, and goes on: {cause}"
                raise EngineError(msg)
            time.sleep(_POLL_S)
        msg = f"no savepoint of job {job_id} in {timeout_s:g} s; it may still come, see its status"
        raise EngineError(msg)

    def _await_tasks(self, job_id: str, timeout_s: float) -> None:
        """Waits until all tasks of a job run; if they do not, Flink says why."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            counts = [vertex["tasks"] for vertex in self._get(f"jobs/{job_id}")["vertices"]]
            if not any(each[state] for each in counts for state in each.keys() - set(_AT_WORK)):
                return
            time.sleep(_POLL_S)

    def cancel(self, job_id: str) -> None:
        """Ends a job at once; what it has in its state is in its last checkpoint only."""
        self._call("PATCH", f"jobs/{job_id}?mode=cancel", None)

    def await_state(self, job_id: str, *states: str, timeout_s: float = 120.0) -> Job:
        """Waits until a job is in one of some states, or over.

        Raises:
            EngineError: If that takes too long.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            job = self.job(job_id)
            if job.ended or job.state in states:
                return job
            time.sleep(_POLL_S)
        wanted = " or ".join(states) or "over"
        msg = f"job {job_id} is {job.state} after {timeout_s:g} s, not {wanted}"
        raise EngineError(msg)

    def _get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, body: Any) -> Any:
        try:
            url = f"{self._url}/{path}"
            answer = self._session.request(method, url, json=body, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            msg = (
                f"no Flink answers at {self.master} ({type(error).__name__}); start one with "
                "`beam-lateness cluster up`, or name another with --flink_master=HOST:PORT"
            )
            raise EngineError(msg) from error
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not answer.ok and isinstance(found, dict) and "errors" in found:
            msg = f"Flink at {self.master} refuses {method} {path}: {_refusal(found, answer)}"
            raise EngineError(msg)
        if not answer.ok or found is None:
            raise self._stranger()
        return found

    def _stranger(self) -> EngineError:
        return EngineError(
            f"what answers at {self.master} is no Flink; name another with --flink_master"
        )


def _job(entry: Mapping[str, Any]) -> Job:
    end_ms = entry["end-time"]
    return Job(
        entry["jid"],
        entry["name"],
        entry["state"],
        entry["start-time"],
        end_ms if end_ms >= 0 else None,
    )


def _add(info: Mapping[str, Any], counts: dict[str, int]) -> None:
    """Adds one of Beam's metrics, if it is one of ours."""
    labels = info.get("labels", {})
    if labels.get(monitoring_infos.NAMESPACE_LABEL) != metrics.NAMESPACE:
        return
    name = labels[monitoring_infos.NAME_LABEL]
    payload = base64.b64decode(info["payload"])
    found = metrics_pb2.MonitoringInfo(urn=info["urn"], type=info["type"], payload=payload)
    if monitoring_infos.is_counter(found):
        counts[name] = counts.get(name, 0) + monitoring_infos.extract_counter_value(found)
    elif monitoring_infos.is_gauge(found):
        _, value = monitoring_infos.extract_gauge_value(found)
        counts[name] = min(value, counts.get(name, value))


def _refusal(found: Mapping[str, Any], answer: requests.Response) -> str:
    errors = [str(each) for each in found["errors"]]
    return cause_of("\n".join(errors)) if errors else f"HTTP {answer.status_code}"

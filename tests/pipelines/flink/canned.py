"""A server that answers as the REST interface of Flink 1.19 does, with what a test gives it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from apache_beam.portability.api import metrics_pb2

START_MS: Final = 1_700_000_000_000
TRACE: Final = """\
java.util.concurrent.CompletionException: org.apache.flink.util.FlinkException: no savepoint
\tat java.base/java.util.concurrent.CompletableFuture.encodeRelay(CompletableFuture.java:368)
Caused by: org.apache.flink.runtime.checkpoint.CheckpointException: Some tasks are not running.
\tat org.apache.flink.runtime.checkpoint.CheckpointCoordinator.stop(CheckpointCoordinator.java:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.lang.Thread.run(Thread.java:829)
"""
ROOT: Final = "java.io.IOException: No space left on device"


class Answer(str):
    """A body as it is, with an HTTP status.

    Args:
        body: The body.
        status: Its status.
    """

    status: int

    def __new__(cls, body: str, status: int = 200) -> Answer:
        made = super().__new__(cls, body)
        made.status = status
        return made


def refusal(status: int, *errors: str) -> Answer:
    """Flink's answer to what it does not do."""
    return Answer(json.dumps({"errors": errors}), status)


class Turns(list[Any]):
    """Answers that are given one by one, the last for ever."""


@dataclass
class Asked:
    """A request.

    Args:
        method: Such as GET.
        path: Without the query.
        query: Its fields.
        body: What came with it.
    """

    method: str
    path: str
    query: dict[str, str]
    body: Any


@dataclass
class CannedFlink:
    """What the server answers.

    Args:
        port: On which it listens.
        jobs: The jobs, in the order in which Flink gives them.
        answers: By path, instead of what follows from the rest.
        vertices: The steps of each job: the metrics of each, each a value a subtask.
        overview: What it says of itself.
        asked: What it was asked, in order.
    """

    port: int
    jobs: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    vertices: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    overview: dict[str, Any] = field(
        default_factory=lambda: {
            "taskmanagers": 2,
            "slots-total": 4,
            "slots-available": 3,
            "jobs-running": 1,
            "jobs-finished": 0,
            "jobs-cancelled": 0,
            "jobs-failed": 0,
            "flink-version": "1.19.3",
            "flink-commit": "cafe",
        }
    )
    asked: list[Asked] = field(default_factory=list)

    @property
    def master(self) -> str:
        """Where it is."""
        return f"127.0.0.1:{self.port}"

    def add(self, name: str, number: int, state: str = "RUNNING", *, ended: bool = False) -> str:
        """Adds a job, started at second `number`; gives its id."""
        start_ms = START_MS + number * 1000
        self.jobs.append(
            {
                "jid": f"{number:032x}",
                "name": name,
                "start-time": start_ms,
                "end-time": start_ms + 500 if ended else -1,
                "duration": 500,
                "state": state,
                "last-modification": start_ms,
                "tasks": {"running": 1, "canceled": 0},
            }
        )
        return f"{number:032x}"

    def answer(self, asked: Asked) -> Any:
        """Answers a request."""
        self.asked.append(asked)
        canned = self.answers.get(asked.path)
        if isinstance(canned, Turns):
            return canned.pop(0) if len(canned) > 1 else canned[0]
        if canned is not None:
            return canned
        match asked.path.split("/"):
            case ["overview"]:
                return self.overview
            case ["jobs", "overview"]:
                return {"jobs": self.jobs}
            case ["jobs", job]:
                return self._detail(job)
            case ["jobs", job, "vertices", vertex, "subtasks", "metrics"]:
                return _aggregated(self.vertices[job][vertex], asked.query)
        return refusal(404, f"Not found: /{asked.path}")

    def _detail(self, job: str) -> Any:
        for entry in self.jobs:
            if entry["jid"] == job:
                tasks = {"RUNNING": 1, "FINISHED": 0, "DEPLOYING": 0}
                names = self.vertices.get(job, {})
                steps = [{"id": name, "name": name, "tasks": tasks} for name in names]
                return {"jid": job, "state": entry["state"], "vertices": steps}
        return refusal(404, f"org.apache.flink.runtime.rest.NotFoundException: Job {job} not found")


def _aggregated(metrics: Mapping[str, list[float]], query: Mapping[str, str]) -> Any:
    """The names of metrics; or of those that were asked for, the aggregates that were."""
    if "get" not in query:
        return [{"id": name} for name in metrics]
    found: list[dict[str, Any]] = []
    for name in query["get"].split(","):
        values = metrics.get(name, [])
        told = {"sum": sum(values), "max": max(values, default=0), "min": min(values, default=0)}
        asked = {each: float(told[each]) for each in query["agg"].split(",")}
        found += [{"id": name, **asked}] if values else []
    return found


@contextmanager
def canned_flink() -> Iterator[CannedFlink]:
    """Serves as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            found = flink.answer(Asked(self.command, url.path.strip("/"), query, body))
            status = found.status if isinstance(found, Answer) else 200
            text = found if isinstance(found, Answer) else json.dumps(found)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PATCH = _serve  # noqa: N815 (so the library names them)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        flink = CannedFlink(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield flink
        finally:
            server.shutdown()
            thread.join()


def checkpoints(
    completed: int = 0,
    *,
    restored: int = 0,
    path: str | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What Flink tells of a job's checkpoints; `path` is that of the last one."""
    last = {
        "id": completed,
        "status": "COMPLETED",
        "is_savepoint": False,
        "trigger_timestamp": START_MS + completed,
        "state_size": 1000 + completed,
        "external_path": path,
    }
    return {
        "counts": {
            "restored": restored,
            "total": completed,
            "in_progress": 0,
            "completed": completed,
            "failed": 0,
        },
        "latest": {"completed": last if path else None, "savepoint": None, "failed": None},
        "history": list(history),
    }


def accumulators(*infos: metrics_pb2.MonitoringInfo) -> dict[str, Any]:
    """What Flink tells of the metrics of a job that is over, which Beam has put together."""
    attempted = [
        {
            "urn": info.urn,
            "type": info.type,
            "payload": base64.b64encode(info.payload).decode(),
            "labels": dict(info.labels),
        }
        for info in infos
    ]
    value = json.dumps({"metrics": {"attempted": attempted}})
    return {
        "job-accumulators": [],
        "user-task-accumulators": [
            {"name": "numRecords", "type": "IntCounter", "value": "3"},
            {"name": "__metricscontainers", "type": "MetricsAccumulator", "value": value},
        ],
        "serialized-user-task-accumulators": {},
    }

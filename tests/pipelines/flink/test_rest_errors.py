"""Flink's REST interface: what went wrong, in one line, and with what helps."""

from __future__ import annotations

from typing import Any, Final

import pytest

from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.rest import FlinkRest
from beam_lateness.pipelines.ports import free_ports
from tests.pipelines.flink.canned import ROOT, TRACE, Answer, CannedFlink, refusal


def failing(flink: CannedFlink, *traces: str) -> str:
    """A job with failures, the last one first."""
    job = flink.add("mine", 1)
    entries = [{"exceptionName": "x", "stacktrace": trace, "timestamp": 1} for trace in traces]
    flink.answers[f"jobs/{job}/exceptions"] = {"exceptionHistory": {"entries": entries}}
    return job


def test_the_cause_of_the_last_failure_is_the_innermost(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """In one line; without a failure there is none."""
    assert rest.failure(failing(flink, TRACE, "java.lang.Error: earlier")) == ROOT
    flink.jobs.clear()
    assert rest.failure(failing(flink)) is None


def test_a_failure_that_nothing_caused_is_its_own_cause(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """Its first line, not the last frame of its stack."""
    trace = "java.io.IOException: disk full\n\tat a.b.C.d(C.java:1)\n\tat e.f.G.h(G.java:2)\n"
    assert rest.failure(failing(flink, trace)) == "java.io.IOException: disk full"


@pytest.mark.parametrize(
    "last",
    [
        "ValueError: no such table",
        "AssertionError",
        "shop.NoSuchTable: t",
        "ValueError: no table:\n  windows",
    ],
)
def test_the_failure_of_a_python_step_is_what_python_says(
    flink: CannedFlink, rest: FlinkRest, last: str
) -> None:
    """Beam puts the traceback of the worker into Java's message."""
    traceback = f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n{last}'
    error = (
        "java.lang.RuntimeException: Error received from SDK harness for instruction 5: "
        f"{traceback}\n\n"
    )
    frame = "\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient.onNext(F.java:1)\n"
    trace = f"java.util.concurrent.ExecutionException: {error}{frame}Caused by: {error}{frame}"
    assert str(rest.failure(failing(flink, trace))).startswith(last.splitlines()[0])


STRANGERS: Final = {
    "a page": Answer("<html>Welcome</html>"),
    "nothing": Answer(""),
    "a missing page": Answer("<html>Not found</html>", 404),
    "an object": {"status": "ok"},
    "a list": [],
    "a refusal that is a list": Answer("[]", 404),
}
TOLD: Final = ("a page", "nothing")


@pytest.mark.parametrize(
    "answer",
    [pytest.param(answer, id=name) for name, answer in STRANGERS.items()],
)
def test_a_server_that_is_no_flink_is_told_so(
    flink: CannedFlink, rest: FlinkRest, answer: Any
) -> None:
    """Another program on Flink's port."""
    flink.answers["jobs/overview"] = answer
    with pytest.raises(EngineError, match=f"{flink.master} is no Flink"):
        rest.jobs()


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ((TRACE,), ROOT),
        (("Internal server error.", f"<Exception on server side:\n{TRACE}"), ROOT),
        (("org.apache.flink.runtime.rest.NotFoundException: no job",), "NotFoundException: no job"),
        ((), "HTTP 404"),
    ],
    ids=["a stack", "two", "a line", "nothing"],
)
def test_what_flink_refuses_is_one_short_line(
    flink: CannedFlink, rest: FlinkRest, errors: tuple[str, ...], told: str
) -> None:
    """What was asked, and the innermost cause of a long stack."""
    flink.answers["jobs/f00/checkpoints"] = refusal(404, *errors)
    with pytest.raises(EngineError) as caught:
        rest.checkpoints("f00")
    assert "refuses GET jobs/f00/checkpoints" in str(caught.value)
    assert str(caught.value).endswith(told)
    assert "\n" not in str(caught.value)


def test_a_cluster_of_this_machine_is_asked_without_a_proxy(
    flink: CannedFlink, rest: FlinkRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy's own loopback is another machine."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://localhost:{free_ports(1)[0]}")
    assert rest.overview() == flink.overview

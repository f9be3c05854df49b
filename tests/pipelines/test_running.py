"""How a job ends that fails: its cause is named, whatever the engine tells after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.portability.api import beam_job_api_pb2 as api

from beam_lateness.pipelines.running import outcome, run_to_end

CAUSE = (
    "bundle inst007 failed:Traceback (most recent call last):\n  a frame\nValueError: the cause\n"
)
STALLED = "nothing in progress and no refreshes with non zero pending elements: 1"


def message(text: str) -> api.JobMessagesResponse:
    """An error, as an engine tells it."""
    level = api.JobMessage.JOB_MESSAGE_ERROR
    told = api.JobMessage(message_text=text, importance=level)
    return api.JobMessagesResponse(message_response=told)


def state() -> api.JobMessagesResponse:
    """A change of state, which holds no text."""
    return api.JobMessagesResponse(state_response=api.JobStateEvent())


class Failed:
    """A result of Beam's portable runner, which raises with the last error it was told."""

    def __init__(self, *texts: str) -> None:
        self._messages = [message(text) for text in texts] + [state()]
        self._last = texts[-1] if texts else "unknown error"

    def wait_until_finish(self) -> None:
        """Raises what the runner would."""
        raise RuntimeError(f"Pipeline job-001 failed in state FAILED: {self._last}")


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([CAUSE], "ValueError: the cause"),
        ([CAUSE, STALLED], "ValueError: the cause"),
        ([STALLED], STALLED),
        ([], "unknown error"),
    ],
)
def test_what_an_engine_tells_later_does_not_hide_the_cause(
    texts: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a cause, the last error is all that is known."""
    pipeline: Any = SimpleNamespace(run=lambda: Failed(*texts))
    engine: Any = SimpleNamespace()
    assert outcome("stream", lambda: int(run_to_end(pipeline, engine).interrupted)) == 1
    assert capsys.readouterr().err.rstrip().endswith(named)

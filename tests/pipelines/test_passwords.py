"""A password in a flag is shown nowhere: not on the console, in errors, options or the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines import streaming
from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.options import StreamOptions, read_config
from tests.jobs import EMBEDDED, FLIGHT_FLAGS, FLIGHTS, SETTINGS

SECRET = "s3cr3t/+@?"
NOWHERE = f"postgresql://me:{SECRET}@127.0.0.1:1/db"


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """A job without an output."""
    return [
        f"--input={FLIGHTS}",
        *FLIGHT_FLAGS,
        *SETTINGS[0].flags,
        "--too_late=emit",
        f"--dead_letters={tmp_path / 'dead'}",
        f"--runner={EMBEDDED}",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["stream", f"--output={NOWHERE}"],
        ["stream", f"--output={NOWHERE}", "--mode=append", "--allowed_lateness=0s"],
        ["stream", f"--output=mysql://me:{SECRET}@h/db"],
        ["reconcile", f"--output={NOWHERE}"],
        ["audit", "verify", f"--output={NOWHERE}"],
        ["audit", "show", f"--output={NOWHERE}"],
    ],
    ids=lambda command: " ".join(command[:2]).partition("=")[0],
)
def test_an_error_hides_it(
    command: list[str], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the database cannot be reached, or is of no known kind."""
    name, *rest = command
    rest = rest if name == "audit" else [*(flags if name == "stream" else flags[-2:-1]), *rest]
    assert main([name, *rest]) != 0
    told = capsys.readouterr()
    assert "error" in told.err
    assert SECRET not in told.out + told.err


def test_the_options_that_an_engine_is_given_hide_it(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink shows them to everybody who can see the job."""
    given: list[Any] = []

    def build(pipeline: beam.Pipeline, *_: Any, **__: Any) -> None:
        given.append(pipeline._options.get_all_options())
        raise ValueError

    monkeypatch.setattr(streaming, "build", build)
    output = f"sqlite:///{tmp_path}/w.db"
    alert = "https://me:s3cr3t@alerts.example/hook?token=s3cr3t"
    own = [f"--output={output}", "--alert_threshold=0.1", f"--alert_to={alert}"]
    assert streaming.main([*flags, *own]) == 2
    assert given[0]["output"] == output
    assert "s3cr3t" not in json.dumps(given[0], default=str)


def test_a_configuration_hides_it_when_it_is_printed(flags: list[str]) -> None:
    """As in a log, or in a traceback's locals."""
    options = PipelineOptions([*flags, f"--output={NOWHERE}", "--audit=true"])
    assert SECRET not in repr(read_config(options.view_as(StreamOptions)))

"""What the tests of jobs on Flink share: a canned cluster, a job, and who runs commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apache_beam as beam
import pytest

from beam_lateness.pipelines.flink import rest as rests
from beam_lateness.pipelines.flink.rest import FlinkRest
from beam_lateness.pipelines.ports import free_ports
from tests.jobs import write_lines
from tests.pipelines.flink.canned import CannedFlink, canned_flink
from tests.pipelines.flink.told import Teller

RECORD: Final = {"account": "a", "amount": 5, "event_time": 1_357_035_300_000}


@pytest.fixture
def flink(monkeypatch: pytest.MonkeyPatch) -> Iterator[CannedFlink]:
    """A cluster without jobs, which is asked again at once."""
    monkeypatch.setattr(rests, "_POLL_S", 0.0)
    with canned_flink() as canned:
        yield canned


@pytest.fixture
def rest(flink: CannedFlink) -> FlinkRest:
    """Its client."""
    return FlinkRest(flink.master)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Teller:
    """Runs commands."""
    return Teller(capsys)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a job that would run, in a folder of its own; no pipeline may run here."""

    def refuse(self: object, *args: object) -> None:
        pytest.fail("a pipeline ran")

    monkeypatch.setattr(beam.Pipeline, "run", refuse)
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in.jsonl", [RECORD])
    return [
        "--input=in.jsonl",
        "--key_field=account",
        "--value_field=amount",
        "--window=1m",
        "--bound=10s",
        "--too_late=emit",
        "--dead_letters=dead",
        "--output=sqlite:///windows.db",
    ]


@pytest.fixture
def nowhere() -> list[str]:
    """Flags of a Flink that is not there."""
    return ["--runner=FlinkRunner", f"--flink_master=localhost:{free_ports(1)[0]}"]

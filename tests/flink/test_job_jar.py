"""Application mode: the job as a jar, whose entry class a cluster runs by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from beam_lateness.pipelines.cli import main
from beam_lateness.pipelines.flink.cluster import Cluster
from tests.flink.jobs import QUICK, flink_flags
from tests.jobs import FLIGHT_FLAGS, FLIGHTS, SETTINGS, Outcome

pytestmark = pytest.mark.flink

ENTRY_CLASS = "org.apache.beam.runners.flink.FlinkPipelineRunner"


def test_a_job_jar_runs_by_its_entry_class(flink: Cluster, tmp_path: Path) -> None:
    """With the right values, and no client or job server."""
    jar = tmp_path / "job.jar"
    flags = [
        flag
        for flag in flink_flags(flink, tmp_path, [FLIGHTS], *FLIGHT_FLAGS, *SETTINGS[0].flags)
        if not flag.startswith(("--flink_master=", "--job_endpoint="))
    ]
    assert main(["stream", *flags, *QUICK, f"--output_executable_path={jar}"]) == 0
    outcome = Outcome(0, tmp_path)
    assert outcome.rows == [], "it was to be written, not run"
    url = f"http://{flink.layout.master}/jars"
    with jar.open("rb") as file:
        content = {"jarfile": (jar.name, file, "application/x-java-archive")}
        uploaded = requests.post(f"{url}/upload", files=content, timeout=120).json()
    name = uploaded["filename"].rpartition("/")[2]
    asked = {"entryClass": ENTRY_CLASS}
    run = requests.post(f"{url}/{name}/run", json=asked, timeout=120).json()
    assert "jobid" in run, run["errors"][0][-3000:]
    job = flink.rest.await_state(run["jobid"])
    assert job.state == "FINISHED"
    assert sum(row.records for row in outcome.rows) == SETTINGS[0].aggregated
    assert sum(row.value for row in outcome.rows) == SETTINGS[0].total
    assert len(outcome.too_late_ids) == SETTINGS[0].too_late

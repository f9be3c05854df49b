"""How a live job on Flink grows: its checkpoints and its memory, poll by poll.

    python -m benchmarks.flink_growth

It starts a cluster, follows a file that grows by a few payments a second, and reads the size of the
checkpoints and the memory of the processes for as long as 1,500 polls take. A job in a steady state
should need as much at its end as at its beginning; what it needs more is what a poll leaves behind.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from beam_lateness.pipelines.cli import main as beam_lateness
from beam_lateness.pipelines.flink.cluster import Cluster, find_jars, running
from beam_lateness.pipelines.flink.jars import FLINK_VERSION, JOB_SERVER_VERSION
from beam_lateness.pipelines.flink.nodes import WORKERS, Layout, task_manager
from beam_lateness.pipelines.ports import free_ports
from benchmarks.payments import write_payments

POLL_S = 0.02  # about what a poll takes, besides the interval
STEP_S = 1.0
RATE = 20  # payments a step
WARM_UP = 0.2  # of the run, of which nothing is told


class Sample(NamedTuple):
    """What was seen at some moment."""

    seconds: float
    checkpoint: int
    java: int
    python: int


def memory(cluster: Cluster, *names: str) -> int:
    """Bytes of some processes of a cluster and their children."""
    found = 0
    for name in names:
        process = cluster.node(name).process
        if process is not None:
            family = [process, *process.children(recursive=True)]
            found += sum(each.memory_info().rss for each in family)
    return found


def watch(
    cluster: Cluster, job_id: str, lines: list[bytes], path: Path, end_s: float
) -> list[Sample]:
    """Lets the file grow, and looks at the job once a step."""
    samples = []
    began = time.monotonic()
    while (now := time.monotonic() - began) < end_s:
        with path.open("ab") as file:
            file.write(b"".join(lines[:RATE]))
        del lines[:RATE]
        size = cluster.rest.checkpoints(job_id).size
        managers = [task_manager(number + 1) for number in range(cluster.layout.task_managers)]
        if size is not None:
            java, python = memory(cluster, *managers), memory(cluster, WORKERS)
            samples.append(Sample(now, size, java, python))
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began - now)))
    return samples


def growth(samples: list[Sample], name: str) -> float:
    """Bytes a second, by a line through the samples after the warm-up."""
    kept = samples[int(len(samples) * WARM_UP) :]
    seconds = [sample.seconds for sample in kept]
    values = [getattr(sample, name) for sample in kept]
    return float(np.polyfit(seconds, values, 1)[0])


def run(polls: int, interval_s: float) -> None:
    """Runs the job, and prints how it grew."""
    jars = find_jars(None, None, FLINK_VERSION, JOB_SERVER_VERSION, print)
    end_s = polls * (interval_s + POLL_S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_payments(folder / "whole.jsonl", int(end_s / STEP_S + 60) * RATE, rate=RATE)
        lines = (folder / "whole.jsonl").read_bytes().splitlines(keepends=True)
        path = folder / "payments.jsonl"
        path.touch()
        with running(Layout(folder / "flink", *free_ports(4)), jars) as cluster:
            flags = [
                f"--input={path}",
                "--follow",
                "--key_field=account",
                "--value_field=amount_cents",
                "--time_unit=ms",
                "--window=10s",
                "--bound=2s",
                "--allowed_lateness=10s",
                "--too_late=drop",
                f"--output=sqlite:///{folder / 'windows.db'}",
                "--checkpointing_interval=5000",
                "--parallelism=2",
                f"--poll_interval={interval_s}s",
                *cluster.layout.flags,
            ]
            if beam_lateness(["submit", *flags]) != 0:
                raise SystemExit(1)
            job = cluster.rest.job()
            samples = watch(cluster, job.id, lines, path, end_s)
            cluster.rest.cancel(job.id)
    first, last = samples[int(len(samples) * WARM_UP)], samples[-1]
    a_poll = end_s / polls
    print(f"{polls} polls, {interval_s:g} s apart, in {end_s:.0f} s:")
    for what in ("checkpoint", "java", "python"):
        before, after = getattr(first, what), getattr(last, what)
        print(
            f"  {what}: {before / 1024:,.0f} KB -> {after / 1024:,.0f} KB, "
            f"{growth(samples, what) * a_poll / 1024:,.1f} KB a poll"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=1500)
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between polls")
    options = parser.parse_args()
    run(options.polls, options.interval)

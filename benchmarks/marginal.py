"""Measures what one more record costs: the main job on 1 M and on 5 M payments, on Prism.

    python benchmarks/marginal.py [--small 1000000] [--large 5000000] [--repeats 3]

It runs the job as a user would (JSON lines in, SQLite upsert and dead letters out) in turn with a
hand-written loop in Python that does the same by itself (no panes, no engine), and prints CPU time
(user + system) and memory of the whole process tree. Marginal CPU a record is the difference
between the two sizes divided by the difference in records: start-up cancels out. Each figure is the
least of the repeats, since other work on the machine only adds. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from payments import write_payments

_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Cost:
    """What a run cost."""

    cpu_s: float
    wall_s: float
    memory_mb: float


def measure(command: list[str]) -> Cost:
    """Runs a command to its end, and sums up its process tree."""
    before = _children_cpu()
    began = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, _group_memory(process.pid))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode != 0:
        msg = f"{' '.join(command)} failed:\n{output.decode()}"
        raise SystemExit(msg)
    return Cost(_children_cpu() - before, time.monotonic() - began, peak / 1e6)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _group_memory(group: int) -> int:
    """Resident memory, in bytes, of all processes of a group."""
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[21]) * _PAGE
    return total


def job(source: Path, folder: Path) -> list[str]:
    """The command of the main job."""
    return [
        sys.executable,
        "-m",
        "beam_lateness.pipelines.cli",
        "stream",
        "--runner=PrismRunner",
        f"--input={source}",
        "--key_field=account",
        "--value_field=amount_cents",
        "--id_field=event_id",
        "--window=1m",
        "--bound=10s",
        "--allowed_lateness=2m",
        "--too_late=emit",
        f"--output=sqlite:///{folder / 'windows.db'}",
        f"--dead_letters={folder / 'dead-letters'}",
        f"--report={folder / 'report.json'}",
    ]


def loop(source: Path, folder: Path) -> list[str]:
    """The command of the hand-written loop."""
    return [sys.executable, str(Path(__file__).with_name("loop.py")), str(source), str(folder)]


def run(command: Callable[[Path, Path], list[str]], source: Path) -> tuple[Cost, dict[str, int]]:
    """Runs a command in a fresh folder; gives its cost and its counts."""
    with tempfile.TemporaryDirectory() as folder:
        cost = measure(command(source, Path(folder)))
        return cost, json.loads(Path(folder, "report.json").read_text())


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    sizes = (arguments.small, arguments.large)
    commands = {"beam-lateness on Prism": job, "hand-written loop": loop}
    with tempfile.TemporaryDirectory() as folder:
        sources = {}
        for size in sizes:
            sources[size] = Path(folder, f"payments-{size}.jsonl")
            write_payments(sources[size], size)
        costs: dict[tuple[str, int], list[Cost]] = {}
        counts: dict[tuple[str, int], tuple[int, int, int]] = {}
        for _ in range(arguments.repeats):
            for name, command in commands.items():
                for size in sizes:
                    cost, report = run(command, sources[size])
                    costs.setdefault((name, size), []).append(cost)
                    found = (report["input"], report["aggregated"], report["too_late"])
                    counts[name, size] = found
    print(f"{'':24}{'records':>12}{'CPU s':>9}{'wall s':>9}{'MB':>7}")
    marginal = {}
    for name in commands:
        for size in sizes:
            runs = costs[name, size]
            print(
                f"{name:24}{size:12,}{min(r.cpu_s for r in runs):9.2f}"
                f"{min(r.wall_s for r in runs):9.2f}{max(r.memory_mb for r in runs):7.0f}"
            )
        small, large = (min(r.cpu_s for r in costs[name, size]) for size in sizes)
        marginal[name] = (large - small) / (sizes[1] - sizes[0]) * 1e6
        print(f"{name:24}marginal CPU {marginal[name]:.2f} µs a record")
    ours, theirs = marginal.values()
    print(f"ratio to the loop: {ours / theirs:.2f}")
    agree = all(len({counts[name, size] for name in commands}) == 1 for size in sizes)
    print("input, aggregated and too late agree" if agree else f"COUNTS DIFFER: {counts}")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())

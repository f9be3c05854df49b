"""Watermarks of several splits, step by step: W8, W12, W13 and W14 of the worked examples.

    python examples/watermarks.py

A clock that is set by hand stands in for the wall clock; the source reads real files as they grow.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from beam_lateness import Files, JsonLines, ReadSettings, WatermarkStrategy
from beam_lateness.transforms.lateness.tag_late import behind_ms
from beam_lateness.transforms.sources.formats import bind
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.split import Poll

START_MS: Final = 1_767_261_600_000  # 2026-01-01 10:00:00 UTC

Written = Mapping[str, Callable[[int], Sequence[float]]]
"""What each file gets in each second: event times in seconds after ten o'clock."""


def follow(
    strategy: WatermarkStrategy, written: Written, until_s: int, block_bytes: int = 1 << 20
) -> list[Poll]:
    """Polls followed files once a second of a clock that starts at ten.

    Args:
        strategy: The strategy.
        written: What the files get.
        until_s: How many seconds.
        block_bytes: How much a poll reads of a file.
    """
    now = [START_MS / 1000]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in written:
            (folder / split).touch()
        files = Files([name], JsonLines("k"), follow=True)
        settings = ReadSettings(block_bytes=block_bytes, clock=lambda: now[0])
        timed = strategy.with_timestamp_assigner("t")
        first = json.dumps({"k": "k", "t": START_MS}).encode()
        settled, sample = bind(files.line_format, timed, [(b"", first)])
        reader = Group(files, settled, sample, settings).open()
        polls = []
        for second in range(until_s):
            for split, times in written.items():
                with (folder / split).open("a") as file:
                    for at in times(second):
                        line = {"k": "k", "t": START_MS + round(at * 1000)}
                        file.write(json.dumps(line) + "\n")
            polls.append(reader.poll())
            now[0] += 1
        reader.close()
    return polls


def at(ms: int | None) -> str:
    """A time as minutes and seconds after ten."""
    if ms is None:
        return "-"
    minutes, seconds = divmod((ms - START_MS) // 1000, 60)
    return f"10:{minutes:02}:{seconds:02}"


def silent_split() -> list[Poll]:
    """W8: two splits, idleness 1 min; b falls silent at 10:00:20 and speaks again at 10:03:00."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness("1m")
    return follow(
        strategy,
        {"a": lambda s: [s], "b": lambda s: [s] if s < 20 or s >= 180 else []},
        200,
    )


def aligned_splits() -> list[Poll]:
    """W13: the backlog of one split can be read 100 times faster; max drift 30 s."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment(
        "example", "30s"
    )
    return follow(
        strategy,
        {"fast": lambda s: list(range(6_000)) if s == 0 else [], "slow": lambda s: [s]},
        120,
        block_bytes=100 * 31,  # a hundred records a poll
    )


def degrading_source() -> list[tuple[float, int]]:
    """W12: lateness P99 goes from 1 s to 20 s at noon; gives (seconds after noon, bound in ms)."""
    rng = np.random.default_rng(12)
    arrival_s = np.arange(-600, 600, 0.05)
    p99_s = np.where(arrival_s < 0, 1.0, 20.0)
    late_s = rng.exponential(p99_s / np.log(100))
    times = START_MS + ((arrival_s - late_s) * 1000).astype(np.int64)
    strategy = WatermarkStrategy.for_self_adjusting_bound("500ms", "1m", period="5m")
    generator = strategy.create_generator()
    generator.on_events(times, np.zeros(len(times), dtype=np.bool_))
    return [
        ((change.event_time_ms - START_MS) / 1000, change.after_ms)
        for change in generator.take_changes()
    ]


def stream_without_windows() -> list[tuple[str, int]]:
    """W14: event times and how far each was behind the watermark, bound 5 s, in ms."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5s")
    times = {0: [10, 12, 6, 20], 1: [15, 14.999, 8]}
    polls = follow(strategy, {"a": lambda s: times.get(s, [])}, 2)
    return [
        (at(ms), late)
        for poll in polls
        for batch in poll.batches
        for ms, late in zip(batch.event_times.tolist(), behind_ms(batch).tolist(), strict=True)
    ]


def main() -> None:
    """Prints them."""
    print("W8  a silent split (idleness 1 min)")
    polls = silent_split()
    for second in (10, 60, 79, 81, 120, 180, 199):
        status = polls[second].status
        states = ", ".join(f"{Path(each.split).name} {each.state}" for each in status.splits)
        print(f"    {at(START_MS + second * 1000)}  watermark {at(status.watermark_ms)}  {states}")

    print("W12 a self-adjusting bound (P99, period 5 min); P99 goes from 1 s to 20 s at noon")
    changes = degrading_source()
    for low, high in ((-600, 0), (0, 60), (60, 300), (300, 600)):
        bounds = [bound for second, bound in changes if low <= second < high]
        if bounds:
            print(f"    {low:4} to {high:3} s after noon: {min(bounds):,} to {max(bounds):,} ms")

    print("W13 alignment (max drift 30 s): how far the fast split is ahead of the slow one")
    leads = []
    for poll in aligned_splits():
        fast, slow = (split.watermark_ms for split in poll.status.splits)
        if fast is not None and slow is not None:
            leads.append((fast - slow) // 1000)
    print(f"    at most {max(leads)} s: the drift, and a block of 100 records of a second each")

    print("W14 a stream without windows (bound 5 s): what is behind the watermark")
    for when, late in stream_without_windows():
        print(f"    {when}  " + (f"behind by {late:,} ms" if late else "on time"))


if __name__ == "__main__":
    main()

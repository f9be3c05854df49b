"""Watermark strategies on Prism, live: lagging and silent files, markers, alignment, gauges."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness import (
    Files,
    JsonLines,
    ReadEvents,
    RouteTooLate,
    TagLate,
    WatermarkStrategy,
    Windows,
)
from beam_lateness.pipelines.flink.options import Job
from beam_lateness.pipelines.runners import choose_engine
from beam_lateness.transforms import metrics
from tests import model
from tests.jobs import PRISM, Outcome, job_flags, run_job, write_lines
from tests.runners.process import running
from tests.runners.test_live import FLAGS as LIVE_FLAGS
from tests.runners.test_live import TEN, append, end, record, values

pytestmark = pytest.mark.prism

FLAGS: Final = ("--key_field=k", "--value_field=v", "--id_field=id", "--window=10s", "--bound=0s")
LIVE: Final = (*FLAGS, "--allowed_lateness=10m", "--follow")
LAG: Final = 60


def seconds(key: str, low: int, high: int) -> list[dict[str, Any]]:
    """A record a second, from second `low` up to and with `high`."""
    return [record(second, key=key) for second in range(low, high + 1)]


class Feed:
    """Four files of a record a second: `d` lags a minute behind, `c` falls silent at 20 s."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.written = 0
        self.write("a", seconds("a", 0, 130))
        self.write("b", seconds("b", 0, 130))
        self.write("c", seconds("c", 0, 20))
        self.write("d", seconds("d", -LAG, 130 - LAG))

    def write(self, name: str, records: Iterable[dict[str, Any]]) -> None:
        """Appends to a file."""
        lines = list(records)
        append(self.folder / f"{name}.jsonl", *lines)
        self.written += len(lines)

    def fires(self, until: int) -> dict[tuple[str, int], int]:
        """The windows that stand in the table when the watermark is at a second, by key."""
        first = {"a": 0, "b": 0, "c": 0, "d": -LAG}
        last = {"a": 130, "b": 130, "c": 20, "d": 130}
        return {
            (key, start): min(start + 9, last[key]) - start + 1
            for key in first
            for start in range(first[key], until, 10)
            if start <= last[key]
        }


def flags_of(folder: Path, feed: Feed, *more: str) -> list[str]:
    """The flags of a job that follows the feed."""
    return job_flags(folder, [feed.folder], *LIVE, *more, runner=PRISM)


def test_with_idleness_every_window_fires_up_to_the_lagging_file(tmp_path: Path) -> None:
    """The silent file holds nothing after its timeout; the lagging one does until it catches up."""
    feed = Feed(tmp_path / "in")
    flags = flags_of(tmp_path, feed, "--idle_timeout=1s")
    with running(flags, tmp_path / "log") as job:

        def alive() -> None:
            """The other three are not silent."""
            feed.write("a", [record(130, key="a", value=0)])
            feed.write("b", [record(130, key="b", value=0)])
            feed.write("d", [record(130 - LAG, key="d", value=0)])

        def fired() -> bool:
            alive()
            return feed.fires(130 - LAG).items() <= values(tmp_path).items()

        job.await_that(fired, "the windows up to where the lagging file is")
        assert values(tmp_path) == feed.fires(130 - LAG), "none beyond it"
        feed.write("d", seconds("d", 130 - LAG + 1, 130))
        job.await_that(lambda: feed.fires(130).items() <= values(tmp_path).items(), "all windows")
        end(job, signal.SIGTERM)
        assert values(tmp_path) == feed.fires(130)
    report = Outcome(130, tmp_path).report
    assert (report["input"], report["too_late"]) == (feed.written, 0)


def test_without_idleness_the_job_waits_for_the_silent_file(tmp_path: Path) -> None:
    """Nothing fires beyond where it fell silent until it speaks again; then everything does."""
    feed = Feed(tmp_path / "in")
    with running(flags_of(tmp_path, feed), tmp_path / "log") as job:
        job.await_that(
            lambda: feed.fires(20).items() <= values(tmp_path).items(), "the windows up to 20 s"
        )
        # A correction of a window that fired shows that the job is past all that was written.
        feed.write("a", [record(5, key="a", value=100)])
        corrected = feed.fires(20) | {("a", 0): 110}
        job.await_that(lambda: values(tmp_path)["a", 0] == 110, "the correction")
        assert values(tmp_path) == corrected, "the silent file holds the rest"
        feed.write("c", seconds("c", 21, 130))
        feed.write("d", seconds("d", 130 - LAG + 1, 130))
        complete = feed.fires(130) | {("a", 0): 110}
        complete |= {("c", start): 10 for start in range(20, 130, 10)}
        job.await_that(lambda: complete.items() <= values(tmp_path).items(), "all windows")
        end(job, signal.SIGTERM)
        assert values(tmp_path) == complete
    report = Outcome(130, tmp_path).report
    assert (report["input"], report["too_late"], report["invalid"]) == (feed.written, 0, 0)


@pytest.mark.parametrize("scope", ["per_split", "merged"])
def test_merged_files_are_one_stream_and_others_are_not(tmp_path: Path, scope: str) -> None:
    """Per split nothing is late; merged, whatever lies behind an earlier file is."""
    feed = Feed(tmp_path / "in")
    paths = sorted(feed.folder.iterdir())
    outcome = run_job(
        tmp_path,
        paths,
        *FLAGS,
        "--allowed_lateness=0s",
        f"--split_watermarks={scope}",
        "--block_bytes=2000",
        runner=PRISM,
    )
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    events = [model.Event(x["k"], x["v"], x["event_time"], x["id"]) for x in lines]
    judged = model.bounded(events, 0)
    merged = {e.name for e, w in judged if w >= e.ts - e.ts % 10_000 + 10_000}
    assert set(outcome.too_late_ids) == (merged if scope == "merged" else set())
    assert len(merged) > 250, "nearly all of b, c and d"


@pytest.mark.parametrize(
    "kind", [("punctuated", "--marker_field=end"), ("tests.runners.own_watermarks:EndOfBatch",)]
)
def test_a_marker_fires_its_window_with_no_delay(tmp_path: Path, kind: tuple[str, ...]) -> None:
    """W6: nothing comes after the marker, and the window it completes fires; none is too late."""
    path = tmp_path / "in.jsonl"
    marker = {"end": True, "type": "end", "event_time": TEN + 9_999, "k": "a", "v": 0, "id": "m1"}
    write_lines(path, [record(8, 5), record(3, 6), record(9, 7)])
    flags = job_flags(
        tmp_path,
        [path],
        *FLAGS[:-1],
        f"--watermark={kind[0]}",
        *kind[1:],
        "--follow",
        runner=PRISM,
    )
    with running(flags, tmp_path / "log") as job:
        append(path, marker)
        job.await_that(lambda: values(tmp_path) == {("a", 0): 18}, "the first window")
        append(path, record(14, 1), record(12, 2), {**marker, "event_time": TEN + 19_999})
        job.await_that(lambda: values(tmp_path).get(("a", 10)) == 3, "the second window")
        end(job, signal.SIGTERM)
    outcome = Outcome(130, tmp_path)
    assert outcome.letters == []
    assert {row.timing for row in outcome.rows} == {"ON_TIME"}
    markers = 0 if kind[0] == "punctuated" else 2
    assert outcome.report["input"] == outcome.report["aggregated"] == 5 + markers


def test_a_watermark_by_the_clock_closes_windows_without_records(tmp_path: Path) -> None:
    """C36: it moves with every poll, also of nothing."""
    path = tmp_path / "in.jsonl"
    path.touch()
    more = ("--window=2s", "--time_unit=ms", "--follow")
    by_clock = "--watermark=tests.runners.own_watermarks:ByClock"
    flags = job_flags(tmp_path, [path], *FLAGS[:3], by_clock, *more, runner=PRISM)
    with running(flags, tmp_path / "log") as job:

        def write(key: str) -> None:
            """A record of two seconds from now."""
            ahead = int(time.time() * 1000) + 2_000
            append(path, {"k": key, "v": 5, "id": f"{key}{ahead}", "event_time": ahead})

        def runs() -> bool:
            """Some records come in time once the job has started."""
            write("a")
            return bool(values(tmp_path))

        job.await_that(runs, "a window of a job that runs")
        write("b")  # the last record
        job.await_that(lambda: "b" in {key for key, _ in values(tmp_path)}, "its window")
        end(job, signal.SIGTERM)
    assert {row.timing for row in Outcome(130, tmp_path).rows} == {"ON_TIME"}


def test_a_folder_that_is_empty_at_first_freezes_nothing(tmp_path: Path) -> None:
    """C35: polls of nothing, then records."""
    folder = tmp_path / "in"
    folder.mkdir()
    flags = job_flags(tmp_path, [folder], *FLAGS, "--time_unit=ms", "--follow", runner=PRISM)
    with running(flags, tmp_path / "log") as job:
        job.await_that(lambda: "engine: prism" in job.output, "an engine")
        append(folder / "late.jsonl", record(1, 1), record(17, 2))
        job.await_that(lambda: values(tmp_path) == {("a", 0): 1}, "the first window")
        end(job, signal.SIGTERM)


def test_aligned_files_lose_nothing_while_one_is_paused(tmp_path: Path) -> None:
    """A file far ahead waits for the other, and both are whole in the end."""
    fast, slow = tmp_path / "fast.jsonl", tmp_path / "slow.jsonl"
    write_lines(fast, seconds("f", 0, 300))
    write_lines(slow, seconds("s", 0, 3))
    more = ("--allowed_lateness=5s", "--follow", "--max_drift=10s")
    flags = job_flags(tmp_path, [fast, slow], *LIVE_FLAGS, *more, runner=PRISM)
    with running(flags, tmp_path / "log") as job:
        job.await_that(lambda: values(tmp_path).get(("s", 2)) == 1, "the slow file's window")
        append(fast, *seconds("f", 301, 310))  # not read before the slow one has come near
        append(slow, *seconds("s", 4, 305))
        job.await_that(lambda: values(tmp_path).get(("s", 304)) == 1, "the slow file's last")
        append(slow, *seconds("s", 306, 310))
        job.await_that(lambda: values(tmp_path).get(("f", 309)) == 1, "the fast file's last")
        end(job, signal.SIGTERM)
    report = Outcome(130, tmp_path).report
    assert (report["input"], report["too_late"]) == (311 + 311, 0)


def test_a_job_shows_its_watermark_as_beam_metrics(tmp_path: Path, prism: str) -> None:
    """Gauges for every monitoring that reads Beam's metrics, and a count of what is behind."""
    path = write_lines(tmp_path / "in.jsonl", [record(s, key="a") for s in (1, 9, 5, 20)])
    options = PipelineOptions([f"--prism_location={prism}", "--runner=PrismRunner"])
    engine = choose_engine(options, Job(True, True, 1, "run"), None, print)
    pipeline = beam.Pipeline(runner=engine.runner, options=options)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2s")
    read = pipeline | ReadEvents(Files([str(path)], JsonLines("k", "v", "id")), strategy)
    _ = read.events | TagLate()
    _ = read.events | RouteTooLate(Windows("10s"))
    result = pipeline.run()
    result.wait_until_finish()
    counts = metrics.committed(result.metrics())
    assert counts[metrics.WATERMARK_MS] == TEN + 18_000
    assert counts[metrics.BOUND_MS] == 2_000
    assert counts[metrics.WATERMARK_LAG_MS] > 0
    assert (counts[metrics.IDLE_SPLITS], counts[metrics.PAUSED_SPLITS]) == (0, 0)
    assert counts[metrics.BEHIND_WATERMARK] == 1  # 5 s, behind 9 s less the bound

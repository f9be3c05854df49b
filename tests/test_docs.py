"""The documentation: its code runs, its pictures are there, its numbers are those of the model."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apache_beam as beam
import pytest

from beam_lateness import JsonLines, Kafka, PubSub
from beam_lateness.transforms.sources.connector import SplitPosition
from tests import model

ROOT: Final = Path(__file__).parent.parent
WATERMARKS: Final = ROOT / "docs" / "watermarks.md"
TEN_S: Final = 10_000


def seconds(key: str, low: int, high: int) -> list[model.Event]:
    """A record a second."""
    return [model.Event(key, 1, 1000 * s, f"{key}{s}") for s in range(low, high + 1)]


def too_late(events: list[model.Event], lateness: int) -> int:
    """How many are too late for their 10 s window, at bound 0."""
    judged = model.bounded(events, 0)
    return sum(w >= e.ts - e.ts % TEN_S + TEN_S + lateness for e, w in judged)


def run_blocks(page: Path) -> dict[str, object]:
    """Runs a page's code, block by block, in one place."""
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)
    return names


def test_the_code_of_the_watermarks_page_runs() -> None:
    """As it stands there."""
    assert "strategy" in run_blocks(WATERMARKS)


def test_the_code_of_the_topics_page_makes_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its source, which would ask a broker; a mock one stands for that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Kafka, "initial_positions", no_partitions)
    monkeypatch.setattr(Kafka, "head", no_head)
    names = run_blocks(ROOT / "docs" / "topics.md")
    pipeline = beam.Pipeline()
    names["build"](pipeline)  # type: ignore[operator]
    labels = {step.full_label for step in pipeline.transforms_stack[0].parts}
    assert {"ReadEvents", "UpsertPanes", "TooLate", "Invalid"} <= labels


def no_partitions(source: Kafka) -> dict[str, SplitPosition]:
    """A topic without partitions."""
    return {}


def no_head(source: Kafka) -> Iterator[tuple[bytes, bytes]]:
    """A topic without messages."""
    return iter(())


def test_the_settings_of_topics_and_their_defaults_are_those_of_the_page() -> None:
    """As the tables say."""
    text = (ROOT / "docs" / "topics.md").read_text()
    lines = JsonLines("k")
    pubsub, kafka = PubSub(["projects/p/subscriptions/s"], lines), Kafka("h:1", "t", lines)
    for source, names in (
        (pubsub, ("lease", "batch", "max_in_flight")),
        (kafka, ("group", "start", "batch", "discovery")),
    ):
        for name in names:
            default = getattr(source, name)
            shown = "none" if default is None else f"`{default}`"
            assert f"| `{name}` | {shown} |" in text


def test_per_split_and_merged_numbers_are_the_models() -> None:
    """Four files: two in step, one a minute behind, one that ends early."""
    files = [
        seconds("a", 0, 130),
        seconds("b", 0, 130),
        seconds("c", 0, 20),
        seconds("d", -60, 70),
    ]
    merged = [event for file in files for event in file]
    wanted = {
        "per split": sum(too_late(file, 0) for file in files),
        "merged": too_late(merged, 0),
        "merged, allowed lateness 1 min": too_late(merged, 60_000),
    }
    text = WATERMARKS.read_text()
    for name, count in wanted.items():
        assert f"| {name} | {count} of {len(merged)} |" in text


def test_every_picture_is_drawn_by_the_project(tmp_path: Path) -> None:
    """Each that the page shows, anew, from the package's own generators and reader."""
    shown = set(re.findall(r"\]\(pictures/(\w+)\.svg\)", WATERMARKS.read_text()))
    drawn = importlib.import_module("docs.pictures").draw_all(tmp_path)
    assert {path.stem for path in drawn} == shown
    for path in drawn:
        assert path.read_text().count("<path") > 20
        assert (ROOT / "docs" / "pictures" / path.name).exists()


def test_the_example_of_watermarks_prints_what_it_is_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """W8, W12, W13 and W14, by the package's own reader."""
    importlib.import_module("examples.watermarks").main()
    printed = capsys.readouterr().out
    assert "10:01:19  watermark 10:00:19  a active, b active" in printed
    assert "10:01:21  watermark 10:01:21  a active, b idle" in printed
    assert "10:03:19  watermark 10:03:19  a active, b active" in printed
    assert "at most 130 s: the drift, and a block of 100 records" in printed
    assert printed.count("behind by") == 3

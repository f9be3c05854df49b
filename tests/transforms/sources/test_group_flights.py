"""A week of flights: the counts of issue 3, by the stamps alone, however the week is cut."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import JsonLines
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.model import Event
from tests.transforms.sources.memory import Stamped, drain, expected, stamped, too_late

WEEK: Final = Path(__file__).parents[3] / "examples" / "data" / "flights-2013-week1.jsonl"
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000


@cache
def lines() -> list[tuple[bytes, dict[str, Any]]]:
    """The week's lines, as they are and as they read."""
    return [(line, json.loads(line)) for line in WEEK.read_bytes().splitlines(keepends=True)]


def cut(folder: Path, by: str) -> dict[str, list[Event]]:
    """Cuts the week into files by origin or by the day of arrival; gives the model's streams."""
    streams: dict[str, list[Event]] = defaultdict(list)
    texts: dict[str, list[bytes]] = defaultdict(list)
    for raw, record in lines():
        part = record["origin"] if by == "origin" else record["arrival_time"] // 86_400_000
        name = str(folder / f"{part}.jsonl")
        texts[name].append(raw)
        event = Event(record["origin"], record["distance"], record["event_time"])
        streams[name].append(event._replace(name=record["event_id"]))
    for name, parts in texts.items():
        Path(name).write_bytes(b"".join(parts))
    return streams


def read(pattern: Path, bound_ms: int, block_bytes: int = 1 << 23) -> list[Stamped]:
    """Reads files, as the job would."""
    files = Files([str(pattern)], JsonLines("origin", "distance", "event_id"))
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound_ms / 1_000)
    settings = ReadSettings(block_bytes=block_bytes)
    return stamped(drain(Group.bind(files, strategy, settings).open()))


@pytest.mark.parametrize(
    ("bound_m", "lateness_m", "aggregated", "lost"),
    [(15, 60, 5_935, 129), (0, 0, 4_933, 1_131), (60, 120, 6_041, 23)],
)
@pytest.mark.parametrize("block_bytes", [20_000, 1 << 17, 1 << 23])
def test_a_week_of_flights_in_one_file(
    bound_m: int, lateness_m: int, aggregated: int, lost: int, block_bytes: int
) -> None:
    """The counts are those of the data set, whatever the block size."""
    records = read(WEEK, bound_m * MINUTE_MS, block_bytes)
    names = too_late(records, HOUR_MS, lateness_m * MINUTE_MS)
    assert len(names) == lost
    assert len(records) - len(names) == aggregated


def test_the_sum_of_the_flights_in_time(tmp_path: Path) -> None:
    """6,214,842 miles at a bound of 15 minutes and a lateness of an hour."""
    lost = too_late(read(WEEK, 15 * MINUTE_MS), HOUR_MS, HOUR_MS)
    kept = [record["distance"] for _, record in lines() if record["event_id"] not in lost]
    assert sum(kept) == 6_214_842


@pytest.mark.parametrize("block_bytes", [20_000, 1 << 17, 1 << 23])
def test_a_week_of_flights_in_one_file_per_origin(tmp_path: Path, block_bytes: int) -> None:
    """Each origin by its own watermark: 5,946 and 118, record by record the model's."""
    streams = cut(tmp_path, "origin")
    records = read(tmp_path / "*.jsonl", 15 * MINUTE_MS, block_bytes)
    model = [each for split in expected(streams, 15 * MINUTE_MS).values() for each in split]
    assert sorted(records) == sorted(model)
    lost = too_late(records, HOUR_MS, HOUR_MS)
    assert (len(records) - len(lost), len(lost)) == (5_946, 118)


@pytest.mark.parametrize("block_bytes", [20_000, 1 << 23])
@pytest.mark.parametrize("bound_m", [0, 15])
def test_a_week_of_flights_in_one_file_per_day(
    tmp_path: Path, block_bytes: int, bound_m: int
) -> None:
    """What is too late is what each day's own model says."""
    streams = cut(tmp_path, "day")
    records = read(tmp_path / "*.jsonl", bound_m * MINUTE_MS, block_bytes)
    model = [each for split in expected(streams, bound_m * MINUTE_MS).values() for each in split]
    assert sorted(records) == sorted(model)
    assert too_late(records, HOUR_MS, HOUR_MS) == too_late(model, HOUR_MS, HOUR_MS)
    assert len(streams) > 6

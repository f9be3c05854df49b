"""The peers' watermark cases (`tests/cases/watermark`) that need neither idleness nor alignment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import exclusive
from beam_lateness.transforms.watermarks.generators import HighestWatermark
from beam_lateness.transforms.watermarks.splits import SplitWatermarks
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy

FOLDER: Final = Path(__file__).parents[2] / "cases" / "watermark"
GENERATORS: Final = (
    "asc_before",
    "asc_after_event",
    "asc_lower",
    "boo_before",
    "boo_non_monotonous",
    "boo_repeated_probe",
)
SPLITS: Final = (
    "src_per_split",
    "mux_deferred_waits",
    "mux_remove_highest",
    "mux_same_output_no_regress",
    "mux_zero_outputs",
)


def case_of(name: str) -> dict[str, Any]:
    """Reads a case."""
    case: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return case


def check(step: dict[str, Any], watermark_ms: int) -> None:
    """Compares our inclusive watermark with a step's (exclusive) expectation."""
    expected = step.get("expect", {})
    if "watermark_ms" in expected:
        wanted = expected["watermark_ms"]
        assert exclusive(watermark_ms) == (exclusive(NO_WATERMARK_MS) if wanted is None else wanted)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_emits_what_flinks_does(name: str) -> None:
    """Ascending and bounded, record by record, with Flink's own expectations."""
    case = case_of(name)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(
        case["params"].get("bound_ms", 0) / 1000
    )
    generator, output = strategy.create_generator(), HighestWatermark()
    for step in case["steps"]:
        if step["op"] == "event":
            generator.on_event({}, step["ts_ms"], output)
        else:
            generator.on_periodic_emit(output)
        check(step, output.watermark_ms)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_of_blocks_reaches_what_flinks_does(name: str) -> None:
    """The same by the vectorised callback."""
    case = case_of(name)
    strategy = WatermarkStrategy(bound_ms=case["params"].get("bound_ms", 0))
    generator = strategy.create_generator()
    times = [step["ts_ms"] for step in case["steps"] if step["op"] == "event"]
    generator.on_events(np.array(times, dtype=np.int64), np.zeros(len(times), dtype=np.bool_))
    check(case["steps"][-1], generator.watermark_ms)


@pytest.mark.parametrize("name", SPLITS)
def test_a_group_reports_what_flinks_multiplexer_does(name: str) -> None:
    """Deferred updates show at the next tick, the others at once."""
    splits, reported = SplitWatermarks(), NO_WATERMARK_MS
    for step in case_of(name)["steps"]:
        split = step.get("split", "")
        match step["op"]:
            case "add_split":
                splits.update(split, NO_WATERMARK_MS)
            case "remove_split":
                splits.remove(split)
            case "report":
                splits.update(split, step["watermark_ms"] - 1)
            case "event":  # this case's generator emits the largest time itself
                splits.update(split, step["ts_ms"])
            case "eof":  # the end of time is the engine's word, not the splits'
                continue
        if step["op"] != "event" and not step.get("deferred"):
            reported = splits.combined_ms
        check(step, reported)


def test_every_case_of_these_families_is_run_or_needs_idleness() -> None:
    """No case is left out by oversight."""
    for path in sorted(FOLDER.glob("*.json")):
        if path.stem.startswith(("asc_", "boo_", "src_", "mux_")):
            ops = {step["op"] for step in case_of(path.stem)["steps"]}
            run = path.stem in GENERATORS + SPLITS
            assert run != bool(ops & {"mark_idle", "mark_active"}), path.stem

"""The peers' watermark cases (`tests/cases/watermark`): each step's expectations, all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.alignment import AlignmentMember
from beam_lateness.transforms.watermarks.estimator import exclusive
from beam_lateness.transforms.watermarks.generators import BlockGenerator, HighestWatermark
from beam_lateness.transforms.watermarks.idleness import IdlenessTimer
from beam_lateness.transforms.watermarks.splits import SplitWatermarks
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.transforms.watermarks.policies import (
    BoundedWallForwarded,
    Clock,
    MaxTimestamp,
    ProcessingTime,
    Punctuated,
    PunctuatedOdd,
    see,
)

Case: TypeAlias = dict[str, Any]
Seen: TypeAlias = dict[str, object]

FOLDER: Final = Path(__file__).parents[2] / "cases" / "watermark"
CASES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
INF: Final = "inf"


def case_of(name: str) -> Case:
    """Reads a case."""
    case: Case = json.loads((FOLDER / f"{name}.json").read_text())
    return case


def shown(watermark_ms: int) -> int | None:
    """Writes an inclusive watermark of ours as the cases do."""
    return None if watermark_ms == NO_WATERMARK_MS else exclusive(watermark_ms)


def bounded(case: Case) -> WatermarkStrategy:
    """The built-in strategy of a case; ascending is bounded by 0."""
    return WatermarkStrategy.for_bounded_out_of_orderness(case["params"].get("bound_ms", 0) / 1000)


def by_callbacks(case: Case) -> Iterator[Seen]:
    """Runs a built-in generator by Flink's two callbacks."""
    generator, output = bounded(case).create_generator(), HighestWatermark()
    for step in case["steps"]:
        if step["op"] == "event":
            generator.on_event({}, step["ts_ms"], output)
        else:
            generator.on_periodic_emit(output)
        yield {"watermark_ms": shown(output.watermark_ms)}


def by_multiplexer(case: Case) -> Iterator[Seen]:
    """Combines splits as Flink's multiplexer does: what is deferred shows at the next tick."""
    splits, seen = SplitWatermarks(), Seen(watermark_ms=None, idle=False)
    deferred: list[Callable[[], None]] = []
    for step in case["steps"]:
        apply = partial(_tell, splits, step)
        # Flink's periodic generators emit on a tick too.
        if step.get("deferred") or step["op"] == "event":
            deferred.append(apply)
        else:
            while deferred and step["op"] == "tick":
                deferred.pop(0)()
            apply()
            seen = Seen(watermark_ms=shown(splits.combined_ms), idle=splits.all_idle)
            if step["op"] == "eof":  # none holds the end of time, which the engine announces
                for name in {each["split"] for each in case["steps"] if "split" in each}:
                    splits.remove(name)
                assert splits.minimum_known() is None
                seen["watermark_ms"] = INF
        yield seen


def _tell(splits: SplitWatermarks, step: dict[str, Any]) -> None:
    split = step.get("split", "")
    match step["op"]:
        case "add_split":
            splits.update(split, NO_WATERMARK_MS)
        case "remove_split":
            splits.remove(split)
        case "report":
            splits.update(split, step["watermark_ms"] - 1)
        case "event":  # these cases' generator emits the largest time itself
            splits.update(split, step["ts_ms"])
        case "mark_idle":
            splits.mark_idle(split)
        case "mark_active":
            splits.update(split, splits.of(split))
        case op:
            assert op in ("tick", "eof")


def by_idleness(case: Case) -> Iterator[Seen]:
    """Probes on each tick whether a record has come since the last one."""
    timer, came = IdlenessTimer(case["params"]["timeout_ms"]), False
    for step in case["steps"]:
        if step["op"] == "event":
            came = True
        else:
            timer.probe(came, step["wall_ms"])
            came = False
        yield {"idle": timer.idle}


def by_alignment(case: Case) -> Iterator[Seen]:
    """Aligns a reader with another one, which stands where the case's coordinator needs it."""
    params = case["params"]
    strategy = WatermarkStrategy.for_generator(
        {"punctuated": Punctuated, "punctuated_odd": PunctuatedOdd}[params["generator"]]
    ).with_watermark_alignment(
        case["id"], params["max_drift_ms"] / 1000, params["update_interval_ms"] / 1000
    )
    assert strategy.alignment is not None
    clock, splits = Clock(), SplitWatermarks()
    generators: dict[str, BlockGenerator] = {}
    reader, other = (AlignmentMember(strategy.alignment, clock) for _ in range(2))
    for step in case["steps"]:
        clock.seconds += 1  # longer than the update interval
        match step["op"]:
            case "event":
                name = step.get("split", "")
                generator = generators.setdefault(name, strategy.create_generator(clock=clock))
                see(generator, [step["ts_ms"]])
                splits.update(name, generator.watermark_ms)
            case "all_idle":
                for name in generators:
                    splits.mark_idle(name)
            case "eof":
                for name in generators:
                    splits.remove(name)
            case "max_allowed":  # Flink's coordinator has taken the lowest and added the drift
                other.max_allowed_ms(step["watermark_ms"] - 1 - params["max_drift_ms"])
        allowed_ms = reader.max_allowed_ms(splits.minimum_known())
        if step["op"] == "max_allowed":
            assert allowed_ms == step["watermark_ms"] - 1
        blocked = any(
            allowed_ms is not None and splits.of(name) > allowed_ms for name in generators
        )
        # A reader that holds nobody reports nothing; Flink's reports the end of time.
        reported = INF if reader.reported_ms is None else reader.reported_ms
        watermark = INF if step["op"] == "eof" else shown(splits.combined_ms)
        assert watermark != INF or reported == INF
        yield {"watermark_ms": watermark, "reported": reported, "blocked": blocked}


def by_policy(case: Case) -> Iterator[Seen]:
    """Runs a policy as a custom generator with a clock, in a live source."""
    clock, strategy = Clock(), policy_of(case)
    generator = strategy.create_generator(clock=clock, emit_each=False)
    for step in case["steps"]:
        clock.seconds = step.get("wall_ms", 0) / 1000
        if step["op"] == "event":
            see(generator, [step["ts_ms"]])
        else:
            generator.on_tick()
        yield {"watermark_ms": shown(generator.watermark_ms)}


def policy_of(case: Case) -> WatermarkStrategy:
    """The custom strategy of a case."""
    match case["strategy"]:
        case "max_timestamp":
            return WatermarkStrategy.for_generator(MaxTimestamp)
        case "processing_time":
            return WatermarkStrategy.for_generator(ProcessingTime)
        case _:
            factory = partial(BoundedWallForwarded, case["params"]["bound_ms"])
            return WatermarkStrategy.for_generator(factory)


def by_micro_batches(case: Case) -> Iterator[Seen]:
    """Combines two bounded splits once a batch, from Spark's own start."""
    splits = SplitWatermarks(case["params"]["initial_ms"] - 1)
    generators = {
        split: WatermarkStrategy.for_bounded_out_of_orderness(bound_ms / 1000).create_generator()
        for split, bound_ms in case["params"]["bounds_ms"].items()
    }
    for step in case["steps"]:
        match step["op"]:
            case "add_split":
                splits.update(step["split"], NO_WATERMARK_MS)
            case "event":
                see(generators[step["split"]], [step["ts_ms"]])
            case "tick":
                for split, generator in generators.items():
                    splits.update(split, generator.watermark_ms)
        yield {"watermark_ms": shown(splits.combined_ms)}


RUNNERS: Final[dict[str, Callable[[Case], Iterator[Seen]]]] = {
    "monotonous": by_callbacks,
    "bounded_out_of_orderness": by_callbacks,
    "min_over_splits": by_multiplexer,
    "max_timestamp_min_over_splits": by_multiplexer,
    "idleness": by_idleness,
    "alignment": by_alignment,
    "bounded_wall_forwarded": by_policy,
    "max_timestamp": by_policy,
    "processing_time": by_policy,
    "bounded_min_over_splits": by_micro_batches,
}
"""What runs a case, by its strategy."""


@pytest.mark.parametrize("name", CASES)
def test_each_step_of_a_peers_case_is_as_the_peer_expects(name: str) -> None:
    """Every key of every expectation; one that a runner does not see would be a KeyError."""
    case = case_of(name)
    for step, seen in zip(case["steps"], RUNNERS[case["strategy"]](case), strict=True):
        expected = dict(step.get("expect", {}))
        expected.pop("native_wm", None)  # the same, as the peer counts
        assert {key: seen[key] for key in expected} == expected, step


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("asc_", "boo_"))])
def test_a_generator_of_blocks_reaches_what_flinks_does(name: str) -> None:
    """The same by the vectorised callback."""
    case = case_of(name)
    generator = bounded(case).create_generator()
    see(generator, [step["ts_ms"] for step in case["steps"] if step["op"] == "event"])
    assert shown(generator.watermark_ms) == case["steps"][-1]["expect"]["watermark_ms"]


def test_no_case_is_left_out() -> None:
    """All 32 are there, each expects something, and each strategy has what runs it."""
    assert len(CASES) == 32  # as tests/cases/README.md counts them
    assert {case_of(name)["strategy"] for name in CASES} == set(RUNNERS)
    for name in CASES:
        assert any(step.get("expect") for step in case_of(name)["steps"]), name

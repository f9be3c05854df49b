"""The watermark's flags: the strategy that each makes, and what each mistake is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.options import StreamOptions
from beam_lateness.pipelines.strategies import WATERMARKS, find_generator, read_strategy
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests import model
from tests.jobs import (
    FLIGHT_FLAGS,
    FLIGHTS,
    PAYMENT_FLAGS,
    Outcome,
    read_events,
    run_job,
    write_lines,
)

TEN_MS: Final = 1_767_261_600_000
MINUTE_MS: Final = 60_000

MODULE: Final = '''
from dataclasses import dataclass

from beam_lateness import WatermarkGenerator


@dataclass
class Newest:
    """What a checkpoint holds."""

    event_time_ms: int = -(2**62) // 1000


class Behind(WatermarkGenerator):
    """A quarter of an hour behind, as `--bound=15m`."""

    def __init__(self):
        self.state = Newest()

    def on_event(self, record, event_time_ms, output):
        self.state.event_time_ms = max(self.state.event_time_ms, event_time_ms)

    def on_periodic_emit(self, output):
        output.emit_watermark(self.state.event_time_ms - 15 * 60_000 - 1)


class Kept:
    """A name to look in."""

    Inner = Behind

    class Needy(Behind):
        """Cannot be made without an argument."""

        def __init__(self, bound):
            super().__init__()


def make():
    """Makes one."""
    return Behind()


NUMBER = 5
FIELDS = dict
'''
"""A module of a user's own."""

_NUMBERS: Final = count()


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory of its own, from which no path and no module is left afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_watermarks_"):
            del sys.modules[name]


def write_module(text: str = MODULE) -> str:
    """Writes a module into the working directory, and gives its name, which is nobody else's."""
    name = f"my_watermarks_{next(_NUMBERS)}"
    Path(f"{name}.py").write_text(text)
    return name


def strategy_of(flags: str) -> WatermarkStrategy:
    """The strategy that flags make."""
    return read_strategy(PipelineOptions(flags.split()).view_as(StreamOptions))


def check_refused(flags: str, told: str) -> None:
    """The flags are refused in one line, in which stands every word that must be told."""
    with pytest.raises(ValueError, match="--") as refused:
        strategy_of(flags)
    message = str(refused.value)
    assert [word for word in told.split() if word not in message] == [], message
    assert "\n" not in message


BOUNDED: Final = WatermarkStrategy.for_bounded_out_of_orderness("10s")
ADJUSTING: Final = WatermarkStrategy.for_self_adjusting_bound("1s", "5m")
ADJUSTS: Final = "--watermark=adjusting --bound_floor=1s --bound_ceiling=5m"
FOLLOWED: Final = "--bound=10s --follow"

MADE: Final[dict[str, WatermarkStrategy]] = {
    "--bound=10s": BOUNDED,
    "--watermark=bounded --bound=10s": BOUNDED,
    "--watermark=monotonous": WatermarkStrategy.for_monotonous_timestamps(),
    "--watermark=punctuated --marker_field=end": WatermarkStrategy.for_markers("end"),
    ADJUSTS: ADJUSTING,
    f"{ADJUSTS} --bound_quantile=0.9 --bound_period=1h": (
        WatermarkStrategy.for_self_adjusting_bound("1s", "5m", 0.9, "1h")
    ),
    "--watermark=none": WatermarkStrategy.no_watermarks(),
    "--bound=10s --time_field=at --time_unit=s": (
        BOUNDED.with_timestamp_assigner(FieldTime("at", "s"))
    ),
    "--bound=10s --split_watermarks=per_split": BOUNDED,
    "--bound=10s --split_watermarks=merged": BOUNDED.with_merged_splits(),
    f"{FOLLOWED} --idle_timeout=1m": BOUNDED.with_idleness("1m"),
    f"{FOLLOWED} --idle_timeout=1m --on_all_idle=hold": BOUNDED.with_idleness("1m"),
    f"{ADJUSTS} --follow --idle_timeout=1m --on_all_idle=advance": (
        ADJUSTING.with_idleness("1m", "advance")
    ),
    f"{FOLLOWED} --split_watermarks=merged --idle_timeout=1m": (
        BOUNDED.with_merged_splits().with_idleness("1m")
    ),
}


@pytest.mark.parametrize(("flags", "strategy"), MADE.items(), ids=MADE)
def test_flags_make_the_strategy_that_the_library_makes(
    flags: str, strategy: WatermarkStrategy
) -> None:
    """And nothing else about it differs."""
    assert strategy_of(flags) == strategy


@pytest.mark.parametrize("more", ["", " --idle_timeout=1m"])
def test_a_drift_aligns_the_files(more: str) -> None:
    """Alone, and beside idleness."""
    alignment = strategy_of(f"{FOLLOWED} --max_drift=3m{more}").alignment
    assert alignment is not None
    assert alignment.max_drift_ms == 3 * MINUTE_MS


# Flags with a mistake, and the words that must be told: flag, value, rule and remedy.
MISTAKES: Final[dict[str, str]] = {
    "--watermark=best": f"--watermark 'best' {' '.join(WATERMARKS)} module:object",
    "--watermark=": "--watermark '' bounded module:object",
    "--watermark=:Behind": "--watermark ':Behind' module:object",
    "--watermark=mine:": "--watermark 'mine:' module:object",
    "--follow": "--watermark=bounded needs --bound",
    "--watermark=adjusting --bound_ceiling=5m": "--watermark=adjusting needs --bound_floor",
    "--watermark=adjusting --bound_floor=1s": "--watermark=adjusting needs --bound_ceiling",
    "--watermark=punctuated": "--watermark=punctuated needs --marker_field",
    "--watermark=punctuated --marker_field=": "--marker_field name ''",
    "--watermark=adjusting --bound_floor=6m --bound_ceiling=5m": (
        "--bound_floor --bound_ceiling '6m' '5m' above"
    ),
    "--watermark=adjusting --bound_floor=6 --bound_ceiling=5m": "--bound_floor '6' unit",
    f"{ADJUSTS} --bound_quantile=high": "--bound_quantile 'high' number 0.99",
    f"{ADJUSTS} --bound_quantile=99": "--bound_quantile 99.0 above 0 at most 0.9999",
    f"{ADJUSTS} --bound_quantile=nan": "--bound_quantile nan above 0",
    f"{ADJUSTS} --bound_quantile=": "--bound_quantile ''",
    f"{ADJUSTS} --bound_period=1ms": "--bound_period '1ms' 1s",
    f"{ADJUSTS} --bound_period=": "--bound_period ''",
    "--bound=10s --split_watermarks=one": "--split_watermarks 'one' per_split merged",
    "--bound=10s --idle_timeout=5s": "--idle_timeout --follow replay",
    "--bound=10s --max_drift=5s": "--max_drift --follow replay",
    "--bound=10s --on_all_idle=hold": "--on_all_idle=hold needs --idle_timeout",
    f"{FOLLOWED} --on_all_idle=advance": "--on_all_idle=advance needs --idle_timeout",
    f"{FOLLOWED} --idle_timeout=5s --on_all_idle=stop": "--on_all_idle 'stop' hold advance",
    f"{FOLLOWED} --idle_timeout=5s --on_all_idle=": "--on_all_idle '' hold advance",
    f"{FOLLOWED} --idle_timeout=0s": "--idle_timeout '0s' 1ms",
    f"{FOLLOWED} --idle_timeout=5": "--idle_timeout '5' unit",
    f"{FOLLOWED} --max_drift=0s": "--max_drift '0s' 1ms",
    "--watermark=none --follow --idle_timeout=5s --on_all_idle=advance": (
        "--on_all_idle advance no bound use hold"
    ),
    "--watermark=punctuated --marker_field=end --follow --idle_timeout=5s --on_all_idle=advance": (
        "--on_all_idle advance no bound use hold"
    ),
    f"{FOLLOWED} --split_watermarks=merged --max_drift=5s": "--split_watermarks=merged --max_drift",
}


@pytest.mark.parametrize(("flags", "told"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_told_by_its_flag(flags: str, told: str) -> None:
    """In one line."""
    check_refused(flags, told)


KINDS: Final = {
    "bounded": "--bound=10s",
    "monotonous": "--watermark=monotonous",
    "punctuated": "--watermark=punctuated --marker_field=end",
    "adjusting": ADJUSTS,
    "none": "--watermark=none",
    "module:object": "--watermark=mine:Behind",
}
OWNERS: Final = {
    "--bound=10s": ("bounded",),
    "--marker_field=end": ("punctuated", "module:object"),
    "--bound_floor=1s": ("adjusting",),
    "--bound_ceiling=1s": ("adjusting",),
    "--bound_quantile=0.9": ("adjusting",),
    "--bound_period=1h": ("adjusting",),
    "--emit_interval=1s": ("module:object",),
}
STRANGE: Final = [(flag, kind) for flag in OWNERS for kind in KINDS if kind not in OWNERS[flag]]


@pytest.mark.parametrize(("flag", "kind"), STRANGE, ids=map(" ".join, STRANGE))
def test_a_flag_of_another_kind_is_refused(flag: str, kind: str) -> None:
    """It would be ignored in silence."""
    name = flag.partition("=")[0]
    told = f"{name} has no meaning --watermark={kind}; leave it out"
    check_refused(f"{KINDS[kind]} {flag}", told)


def test_a_generator_is_found_in_the_working_directory() -> None:
    """By module and name; the class makes the generator of each split."""
    name = write_module()
    found: Any = find_generator(f"{name}:Behind")
    assert found is sys.modules[name].Behind
    assert strategy_of(f"--watermark={name}:Behind") == WatermarkStrategy.for_generator(found)


def test_the_path_names_the_working_directory_once() -> None:
    """However often a generator is looked for."""
    name = write_module()
    for _ in range(3):
        find_generator(f"{name}:Behind")
    assert sys.path.count(str(Path.cwd())) == 1


def test_a_generator_may_stand_inside_another_name() -> None:
    """`module:Outer.Inner`."""
    name = write_module()
    assert find_generator(f"{name}:Kept.Inner") is find_generator(f"{name}:Behind")


def test_a_function_that_makes_a_generator_will_do() -> None:
    """With its own flags."""
    name = write_module()
    flags = f"--watermark={name}:make --marker_field=end --emit_interval=1s"
    expected = WatermarkStrategy.for_generator(find_generator(f"{name}:make"), "end", "1s")
    assert strategy_of(flags) == expected
    assert (expected.marker_field, expected.emit_interval_ms) == ("end", 1_000)


@pytest.mark.parametrize("flag", ["--emit_interval=0ms", "--emit_interval=", "--marker_field="])
def test_a_wrong_flag_of_a_custom_generator_is_refused(flag: str) -> None:
    """No interval at all, and names and intervals left empty."""
    name, _, value = flag.partition("=")
    check_refused(f"--watermark={write_module()}:Behind {flag}", f"{name} {value!r}")


def test_a_module_that_is_missing_is_told_where_it_was_looked_for() -> None:
    """The flag, the module, and the folder."""
    flag = "--watermark=absent_:Behind"
    check_refused(flag, f"{flag} 'absent_' ModuleNotFoundError installed {Path.cwd()}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        ("def:", "SyntaxError"),
        ("import absent_", "ModuleNotFoundError absent_"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise RuntimeError('one\\ntwo')", "RuntimeError one two"),
    ],
    ids=["raises", "cannot be read", "lacks another", "exits", "raises several lines"],
)
def test_a_module_that_fails_is_told_with_its_error(text: str, told: str) -> None:
    """Whatever it raises, in one line."""
    flag = f"--watermark={write_module(text)}:Behind"
    check_refused(flag, f"{flag} {told}")


@pytest.mark.parametrize("path", ["Absent", "Kept.Absent", "Absent.Inner", "NUMBER.real.Absent"])
def test_an_object_that_is_missing_is_named(path: str) -> None:
    """At any depth."""
    flag = f"--watermark={write_module()}:{path}"
    check_refused(flag, f"{flag} has no {path!r}")


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("NUMBER", "a class or a function that makes a generator"),
        ("FIELDS", "must make a WatermarkGenerator, got dict"),
        ("Kept", "must make a WatermarkGenerator, got Kept"),
        ("Kept.Needy", "cannot be made"),
    ],
)
def test_what_makes_no_generator_is_refused_by_its_flag(path: str, rule: str) -> None:
    """A number, other classes, and a class that wants arguments."""
    flag = f"--watermark={write_module()}:{path}"
    check_refused(flag, f"{rule} --watermark {path}")


def test_a_job_runs_by_a_generator_of_the_users_own(tmp_path: Path) -> None:
    """One that imitates the built-in bound gives the very same panes and too late records."""
    flags = (*FLIGHT_FLAGS, "--allowed_lateness=60m")
    own = run_job(tmp_path / "own", [FLIGHTS], *flags, f"--watermark={write_module()}:Behind")
    built_in = run_job(tmp_path / "built in", [FLIGHTS], *flags, "--bound=15m")
    assert own.code == built_in.code == 0
    assert own.rows == built_in.rows
    assert own.too_late_ids == built_in.too_late_ids
    assert len(own.too_late_ids) == 129
    counts = ("input", "aggregated", "late", "too_late", "invalid", "panes", "watermark_ms")
    assert [own.report[name] for name in counts] == [built_in.report[name] for name in counts]


def write_payments(path: Path, start_ms: int, minutes: int) -> Path:
    """Writes a payment every 5 s, each third of them 15 s late."""
    lines = [
        {
            "account": "abc"[number % 3],
            "amount_cents": number,
            "event_time": start_ms + number * 5_000 - (number % 3 == 2) * 15_000,
            "event_id": f"{path.stem}-{number}",
        }
        for number in range(minutes * 12)
    ]
    return write_lines(path, lines)


@pytest.fixture
def an_hour_behind(tmp_path: Path) -> list[Path]:
    """Two files; the second starts an hour behind where the first ends, and comes a bit further."""
    first = write_payments(tmp_path / "a.jsonl", TEN_MS, 60)
    return [first, write_payments(tmp_path / "b.jsonl", TEN_MS, 62)]


def run_split_by(how: str, folder: Path, inputs: list[Path]) -> Outcome:
    """Runs the job with a watermark a split, or one for all."""
    flags = ("--bound=20s", "--allowed_lateness=1m", f"--split_watermarks={how}")
    return run_job(folder, inputs, *PAYMENT_FLAGS, *flags)


def test_merged_splits_make_the_second_file_too_late(
    tmp_path: Path, an_hour_behind: list[Path]
) -> None:
    """Exactly the records that the sequential rule names, over one file after the other."""
    events = [read_events(path, "account", "amount_cents") for path in an_hour_behind]
    one = model.bounded([*events[0], *events[1]], 20_000)
    expected = model.verdicts([one], MINUTE_MS, MINUTE_MS)
    merged = run_split_by("merged", tmp_path / "merged", an_hour_behind)
    assert merged.code == 0
    assert merged.too_late_ids == sorted(event.name for event in expected.too_late)
    assert merged.totals == expected.totals
    assert {event.name[0] for event in expected.too_late} == {"b"}
    assert 0.9 * len(events[1]) < len(expected.too_late) < len(events[1])


def test_splits_with_watermarks_of_their_own_lose_nothing_of_it(
    tmp_path: Path, an_hour_behind: list[Path]
) -> None:
    """The same files: none of either is too late."""
    apart = run_split_by("per_split", tmp_path / "apart", an_hour_behind)
    assert apart.code == 0
    assert apart.too_late_ids == []
    assert apart.report["aggregated"] == (60 + 62) * 12
    assert max(row.end for row in apart.rows) == TEN_MS + 62 * MINUTE_MS

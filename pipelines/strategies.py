"""The flags of the watermark, and the strategy they make."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any, Final

from beam_lateness.pipelines.inputs import has_messages, is_live
from beam_lateness.transforms.watermarks.custom import GeneratorFactory, check_factory
from beam_lateness.transforms.watermarks.strategy import HOLD, WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import (
    FieldTime,
    MessageTime,
    TimestampAssigner,
)

WATERMARKS: Final = ("bounded", "monotonous", "punctuated", "adjusting", "none")
CUSTOM: Final = "module:object"
TIME_SOURCES: Final = ("field", "attribute", "message")
FIELD, _, MESSAGE = TIME_SOURCES
PER_SPLIT, MERGED = "per_split", "merged"

_ALIGNMENT_GROUP: Final = "input"  # the command reads one source: the name meets no other
_QUANTILE: Final = "0.99"
_PERIOD: Final = "10m"
_EMIT_INTERVAL: Final = "200ms"

# What each watermark needs, and what else it may have.
_NEEDS: Final = {
    "bounded": ("bound",),
    "punctuated": ("marker_field",),
    "adjusting": ("bound_floor", "bound_ceiling"),
}
_MAY: Final = {
    "adjusting": ("bound_quantile", "bound_period"),
    CUSTOM: ("marker_field", "emit_interval"),
}


def add_watermark_flags(parser: argparse._ArgumentGroup) -> None:
    """Adds the flags that make a strategy."""
    add = parser.add_argument
    add(
        "--watermark",
        default="bounded",
        help=f"{', '.join(WATERMARKS)}, or {CUSTOM}: a WatermarkGenerator class of your own",
    )
    add("--bound", help="bounded: how far records may be behind the largest event time")
    add("--marker_field", help="punctuated: the field that is true in a marker")
    add("--bound_floor", help="adjusting: the bound is never below this")
    add("--bound_ceiling", help="adjusting: the bound is never above this")
    add(
        "--bound_quantile",
        help=f"adjusting: the share of records the bound is to cover ({_QUANTILE})",
    )
    add(
        "--bound_period",
        help=f"adjusting: the sliding period that lateness is measured in ({_PERIOD})",
    )
    add(
        "--emit_interval",
        help=f"{CUSTOM}: how often a live source calls on_periodic_emit ({_EMIT_INTERVAL})",
    )
    add(
        "--split_watermarks",
        default=PER_SPLIT,
        help=f"{PER_SPLIT}: a watermark a file, and the lowest counts; {MERGED}: one for all, "
        "files read one after the other",
    )
    add("--idle_timeout", help="live: a split silent for longer holds the others no more")
    add(
        "--on_all_idle",
        help="with --idle_timeout, when all splits are idle: hold the watermark, or advance it "
        f"by the clock ({HOLD})",
    )
    add(
        "--max_drift",
        help="live: a split further ahead of the lowest watermark is paused",
    )


def read_strategy(options: Any) -> WatermarkStrategy:
    """Makes the strategy that the flags describe.

    Raises:
        ValueError: For the first flag that is missing, wrong or without meaning.
    """
    kind = options.watermark
    if ":" in kind:
        kind = CUSTOM
    elif kind not in WATERMARKS:
        known = ", ".join(WATERMARKS)
        msg = f"--watermark must be one of {known} or {CUSTOM} (with a colon), got {kind!r}"
        raise ValueError(msg)
    _check_flags_of(kind, options)
    if kind == "none" and has_messages(options):
        msg = (
            "--watermark=none fires windows when the input ends, and a topic has no end: nothing "
            "would ever be written, nor acknowledged"
        )
        raise ValueError(msg)
    strategy = _base(kind, options).with_timestamp_assigner(_assigner(options))
    return _with_splits(strategy, options)


def _assigner(options: Any) -> TimestampAssigner:
    if options.time_source == FIELD:
        return FieldTime(options.time_field, options.time_unit)
    if options.time_source not in TIME_SOURCES:
        known = ", ".join(TIME_SOURCES)
        msg = f"--time_source must be one of {known}, got {options.time_source!r}"
        raise ValueError(msg)
    if not has_messages(options):
        msg = (
            f"--time_source={options.time_source} takes the event time from the message around a "
            "record, and files have none: name a field by --time_field"
        )
        raise ValueError(msg)
    if options.time_source == MESSAGE:
        return MessageTime()
    return MessageTime(options.time_field, options.time_unit)


def _check_flags_of(kind: str, options: Any) -> None:
    """Refuses flags that this kind lacks, and those that only another one has."""
    for flag in _NEEDS.get(kind, ()):
        if getattr(options, flag) is None:
            msg = f"--watermark={kind} needs --{flag}"
            raise ValueError(msg)
    own = {*_NEEDS.get(kind, ()), *_MAY.get(kind, ())}
    for flags in (*_NEEDS.values(), *_MAY.values()):
        for flag in flags:
            if flag not in own and getattr(options, flag) is not None:
                msg = f"--{flag} has no meaning with --watermark={kind}; leave it out"
                raise ValueError(msg)


def _base(kind: str, options: Any) -> WatermarkStrategy:
    if kind == "bounded":
        return WatermarkStrategy.for_bounded_out_of_orderness(options.bound)
    if kind == "monotonous":
        return WatermarkStrategy.for_monotonous_timestamps()
    if kind == "punctuated":
        return WatermarkStrategy.for_markers(options.marker_field)
    if kind == "adjusting":
        return WatermarkStrategy.for_self_adjusting_bound(
            options.bound_floor,
            options.bound_ceiling,
            _share(_given(options.bound_quantile, _QUANTILE)),
            _given(options.bound_period, _PERIOD),
        )
    if kind == CUSTOM:
        return WatermarkStrategy.for_generator(
            find_generator(options.watermark),
            options.marker_field,
            _given(options.emit_interval, _EMIT_INTERVAL),
        )
    return WatermarkStrategy.no_watermarks()


def _given(value: str | None, default: str) -> str:
    """Gives a flag's value; an empty one is a mistake, and no default."""
    return default if value is None else value


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        msg = f"--bound_quantile must be a number such as 0.99, got {text!r}"
        raise ValueError(msg) from None


def _with_splits(strategy: WatermarkStrategy, options: Any) -> WatermarkStrategy:
    if options.split_watermarks not in (PER_SPLIT, MERGED):
        msg = (
            f"--split_watermarks must be {PER_SPLIT} or {MERGED}, got {options.split_watermarks!r}"
        )
        raise ValueError(msg)
    for flag in ("idle_timeout", "max_drift"):
        if getattr(options, flag) is not None and not is_live(options):
            msg = (
                f"--{flag} needs --follow or a topic: a replay reads the file that is behind "
                "first, and has no idle ones"
            )
            raise ValueError(msg)
    if options.split_watermarks == MERGED:
        strategy = strategy.with_merged_splits()
    if options.max_drift is not None:
        strategy = strategy.with_watermark_alignment(_ALIGNMENT_GROUP, options.max_drift)
    if options.idle_timeout is not None:
        return strategy.with_idleness(options.idle_timeout, _given(options.on_all_idle, HOLD))
    if options.on_all_idle is not None:
        msg = f"--on_all_idle={options.on_all_idle} needs --idle_timeout: when is a file idle?"
        raise ValueError(msg)
    return strategy


def find_generator(name: str) -> GeneratorFactory:
    """Finds a class by `module:object`, in the working directory too.

    Raises:
        ValueError: If there is no such module or object, or the module fails.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        msg = (
            f"--watermark must be written {CUSTOM}, such as my_watermarks:EndOfBatch, got {name!r}"
        )
        raise ValueError(msg)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        cause = " ".join(str(error).split())
        msg = (
            f"--watermark={name}: module {module_name!r} cannot be imported: "
            f"{type(error).__name__}: {cause}; it must be installed or in {here}"
        )
        raise ValueError(msg) from error
    for part in path.split("."):
        if not hasattr(found, part):
            msg = f"--watermark={name}: {module_name!r} has no {path!r}"
            raise ValueError(msg)
        found = getattr(found, part)
    try:
        check_factory(found)
    except ValueError as error:
        msg = f"--watermark={name}: {error}"
        raise ValueError(msg) from error
    generator: GeneratorFactory = found
    return generator

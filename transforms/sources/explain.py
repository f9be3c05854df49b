"""`explain`: why there is no output. It says what holds the watermark back, and what helps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from beam_lateness.transforms.sources import status
from beam_lateness.transforms.sources.connector import AcknowledgingConnector, Connector
from beam_lateness.transforms.sources.group import Group
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.status import SplitStatus
from beam_lateness.transforms.times import Duration, duration_ms, format_duration
from beam_lateness.transforms.watermarks.strategy import HOLD, WatermarkStrategy

_TOPIC_S: Final = 20.0


@dataclass(frozen=True)
class Explanation:
    """Where the watermark of an input stands, and why.

    Args:
        watermark_ms: The watermark, exclusive, in ms; None before the first. Of a finite input: the
            last one before its end, at which all windows fire.
        splits: The splits, in the order of their names.
        held_by: The split that holds the watermark back; None where none does.
        behind_ms: How far that one's watermark is behind the highest of any split, in ms; None
            where it has none yet.
        standing_s: For how long the watermark has not moved while it was watched, in seconds.
        bound_ms: The bound, in ms (the widest, where splits have their own); None without one.
        invalid: How many lines are no records, by reason.
        reasons: The same in sentences: what holds the watermark, and what helps.
    """

    watermark_ms: int | None
    splits: tuple[SplitStatus, ...]
    held_by: str | None
    behind_ms: int | None
    standing_s: float
    bound_ms: int | None
    invalid: dict[str, int]
    reasons: list[str] = field(default_factory=list)


def explain(
    connector: Connector,
    strategy: WatermarkStrategy,
    settings: ReadSettings | None = None,
    watch: Duration | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Explanation:
    """Reads an input as a job would, and says what holds its watermark back and for how long.

    Args:
        connector: The input, such as `Files`.
        strategy: The watermark strategy.
        settings: How to read; the pace of a replay is left out.
        watch: How long to look at a live input; None to read once what is there (of a topic, for
            20 s at most: more may come all the time). A finite input is read to its end.
        sleep: Waits a number of seconds between polls of a live input.

    Returns:
        An `Explanation`.

    Raises:
        ValueError: If there is nothing to read, or a field or the time unit cannot be made out.

    Watermark: reports none; this runs no pipeline.

    Example:
        >>> from beam_lateness import Files, JsonLines
        >>> flights = Files(
        ...     ["examples/data/flights-2013-week1.jsonl"], JsonLines("origin", "distance")
        ... )
        >>> bounded = WatermarkStrategy.for_bounded_out_of_orderness("15m")
        >>> explain(flights, bounded).held_by
        'examples/data/flights-2013-week1.jsonl'
    """
    settings = replace(settings or ReadSettings(), replay_speed=None)
    watch_ms = None if watch is None else duration_ms(watch, name="watch (--watch)")
    reader = Group.bind(connector, strategy, settings).open()
    invalid: Counter[str] = Counter()
    topic = isinstance(connector, AcknowledgingConnector)  # which may never be caught up with
    ends_s = settings.clock() + (_TOPIC_S if watch_ms is None else watch_ms / 1000)
    try:
        while True:
            poll = reader.poll()
            invalid.update(record.reason for record in poll.invalid)
            looked = settings.clock() >= ends_s
            if watch is None:
                looked = poll.caught_up or (topic and looked)
            if poll.finished or (connector.follows and looked):
                break
            if poll.wait_s > 0:
                sleep(poll.wait_s)
    finally:
        reader.close()
    return _explained(poll.status, strategy, dict(invalid), connector.follows)


def _explained(
    found: status.GroupStatus, strategy: WatermarkStrategy, invalid: dict[str, int], live: bool
) -> Explanation:
    holder = next((each for each in found.splits if each.split == found.held_by), None)
    known = [each.watermark_ms for each in found.splits if each.watermark_ms is not None]
    watermark_ms, behind_ms = found.watermark_ms, None
    if holder is not None:
        if not live:  # the end of the input has lifted it since
            watermark_ms = holder.watermark_ms
        if holder.watermark_ms is not None:
            behind_ms = max(known) - holder.watermark_ms
    explanation = Explanation(
        watermark_ms,
        found.splits,
        found.held_by,
        behind_ms,
        found.standing_s,
        found.bound_ms,
        invalid,
    )
    return replace(explanation, reasons=list(_reasons(explanation, holder, strategy, live)))


def _reasons(
    found: Explanation, holder: SplitStatus | None, strategy: WatermarkStrategy, live: bool
) -> list[str]:
    reasons = []
    records = sum(each.records for each in found.splits)
    if not found.splits:
        reasons.append("there is nothing to read yet")
    elif holder is None and not live and not records:
        reasons.append("no record has been read")
    elif holder is not None and holder.watermark_ms is None:
        reasons.append(_why_none(holder, strategy, live, len(found.splits) == 1))
    elif holder is not None:
        reasons.append(_why_low(found, holder, live))
        if strategy.idle_timeout_ms is None and live and found.behind_ms:
            reasons.append(
                "a split that falls silent holds the others for ever: --idle_timeout "
                "(with_idleness) lets them go on"
            )
    elif strategy.merged:
        reasons.append("the splits are merged: all of them together move one watermark")
    elif all(each.state == status.IDLE for each in found.splits):
        rest = (
            "it stands until one speaks; --on_all_idle=advance lets it follow the clock"
            if strategy.on_all_idle == HOLD
            else "it follows the clock"
        )
        reasons.append(f"all splits are idle, so none holds the watermark: {rest}")
    empty = [each.split for each in found.splits if each.min_event_time_ms is None]
    if empty and records and not live and not strategy.reports_nothing:
        reasons.append(
            f"no record: {', '.join(empty)}; that holds nothing here, but a job that follows them "
            "waits for their first one (--idle_timeout)"
        )
    paused = [each.split for each in found.splits if each.state == status.PAUSED]
    if paused:
        reasons.append(f"paused, since they are too far ahead: {', '.join(paused)}")
    if _bound_too_long(found):
        reasons.append(
            f"the bound of {format_duration(found.bound_ms or 0)} is longer than all event times "
            "read so far span: no window that holds a record can have fired"
        )
    if found.invalid:
        lines = ", ".join(f"{count:,} {reason}" for reason, count in sorted(found.invalid.items()))
        none = "" if records else "no line is a record: "
        reasons.append(f"{none}invalid lines move no watermark: {lines}")
    return reasons


def _why_none(holder: SplitStatus, strategy: WatermarkStrategy, live: bool, alone: bool) -> str:
    """Says why a split has no watermark yet."""
    if strategy.reports_nothing:
        return "this strategy reports no watermark: windows fire when the input ends"
    if strategy.generator is not None and holder.records:
        return f"{holder.split} holds it back: its generator has emitted no watermark yet"
    if strategy.marker_field is not None and holder.records:
        return (
            f"{holder.split} holds it back: among {holder.records:,} records there was no marker "
            f"(field {strategy.marker_field!r} true)"
        )
    others = "everything waits" if alone else "the others wait"
    if live and strategy.idle_timeout_ms is None:
        return (
            f"{holder.split} holds it back: it has had no record yet, and without --idle_timeout "
            f"(with_idleness) {others} for its first one for ever"
        )
    timeout = format_duration(strategy.idle_timeout_ms or 0)
    return (
        f"{holder.split} holds it back: it has had no record yet; {others} until it has been "
        f"silent for more than {timeout} (look on for longer: --watch)"
    )


def _why_low(found: Explanation, holder: SplitStatus, live: bool) -> str:
    """Says how the lowest split holds the watermark."""
    if sum(each.watermark_ms is not None for each in found.splits) == 1:
        return f"{holder.split} alone moves the watermark"
    held = f"{holder.split} holds it back"
    if not found.behind_ms:
        return f"{holder.split} is lowest; no split is ahead of it"
    highest = max(found.splits, key=_watermark)
    text = f"{held}: it is {format_duration(found.behind_ms)} behind {highest.split}"
    if live and found.standing_s >= 1:
        text += f", and the watermark has stood for {found.standing_s:.0f} s"
    return text


def _watermark(split: SplitStatus) -> tuple[bool, int]:
    return split.watermark_ms is not None, split.watermark_ms or 0


def _bound_too_long(found: Explanation) -> bool:
    first = [s.min_event_time_ms for s in found.splits if s.min_event_time_ms is not None]
    last = [s.max_event_time_ms for s in found.splits if s.max_event_time_ms is not None]
    known = found.watermark_ms is not None and found.bound_ms and first
    return bool(known) and (found.bound_ms or 0) >= max(last) - min(first)

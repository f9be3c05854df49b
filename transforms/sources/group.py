"""Reads a group of splits and stamps each record: what the source does, without Beam.

A finite replay reads on from the split whose watermark is lowest. Then the group's watermark at
each record is that split's own, so verdicts equal each split's own sequential model, whatever the
block size and the order of the splits. "Lowest first" needs no record-by-record loop: the records
that precede all unread ones are those whose stamp is at most the smallest watermark that a split
with more to read has reached. A live input is taken as it comes, and stamped with the group's
minimum at that moment.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from beam_lateness.transforms.sources.connector import (
    AcknowledgingConnector,
    Connector,
    Positions,
    SplitPosition,
    SplitReader,
)
from beam_lateness.transforms.sources.formats import bind
from beam_lateness.transforms.sources.pace import Pace
from beam_lateness.transforms.sources.read_settings import LIVE_FUTURE_SKEW_MS, ReadSettings
from beam_lateness.transforms.sources.records import Line
from beam_lateness.transforms.sources.share import WHOLE, Share
from beam_lateness.transforms.sources.split import Poll, Split, Track, shown
from beam_lateness.transforms.sources.status import GroupStatus, holder_of
from beam_lateness.transforms.times import format_duration
from beam_lateness.transforms.watermarks.alignment import AlignmentMember
from beam_lateness.transforms.watermarks.estimator import GroupState, SplitState
from beam_lateness.transforms.watermarks.splits import SplitWatermarks
from beam_lateness.transforms.watermarks.strategy import ADVANCE, WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import MessageTime

_LOG = logging.getLogger(__name__)

MERGED: Final = ""
"""The name of the one watermark of merged splits."""

_HELD: Final = "\0held"  # stands in the minimum for a split that holds the watermark
_LEAST_BLOCK_BYTES: Final = 1 << 16
_IDLE_WAIT_S: Final = 0.2  # between polls of a live input that had nothing new


@dataclass(frozen=True)
class Group:
    """An input, and all that is settled before it is read.

    Args:
        connector: The input.
        strategy: The watermark strategy, its time unit settled.
        sample: The sample of the input, as `formats.bind` gave it.
        settings: How to read.
    """

    connector: Connector
    strategy: WatermarkStrategy
    sample: Sequence[Line]
    settings: ReadSettings

    @staticmethod
    def bind(
        connector: Connector, strategy: WatermarkStrategy, settings: ReadSettings | None = None
    ) -> Group:
        """Settles what the head of the input decides.

        Raises:
            ValueError: If there is nothing to read, or a field or the time unit cannot be made out.
        """
        if isinstance(strategy.timestamps, MessageTime) and not isinstance(
            connector, AcknowledgingConnector
        ):
            msg = (
                "MessageTime (--time_source=message or attribute) takes the event time from the "
                "message around a record; the lines of a file have none: name a field"
            )
            raise ValueError(msg)
        strategy, sample = bind(
            connector.line_format, strategy, connector.head(), follows=connector.follows
        )
        return Group(connector, strategy, sample, settings or ReadSettings())

    def open(
        self,
        positions: Positions | None = None,
        state: GroupState | None = None,
        *,
        hold: bool = False,
        share: Share = WHOLE,
    ) -> GroupReader:
        """Opens the input, at its start or where a checkpoint left it.

        Args:
            positions: Where every split stands; None for the start.
            state: The watermark state there.
            hold: Whether the watermark stands, until `end_hold`.
            share: Which of the splits that appear later are read too.
        """
        if positions is None:
            positions = share.of(self.connector.initial_positions())
        return GroupReader(self, positions, state or GroupState(), hold=hold, share=share)


class GroupReader:
    """Reads the splits of a connector on from where they stand.

    Args:
        group: The input.
        positions: Where every split stands.
        state: The watermark state at those positions.
        hold: Whether the watermark stands, until `end_hold`.
        share: Which of the splits that appear later are read too.
    """

    def __init__(
        self,
        group: Group,
        positions: Positions,
        state: GroupState,
        *,
        hold: bool = False,
        share: Share = WHOLE,
    ) -> None:
        connector, strategy, settings = group.connector, group.strategy, group.settings
        self._connector = connector
        self._strategy = strategy
        self._fields = connector.line_format.fields(strategy)
        self._sample = list(group.sample)
        self._settings = settings
        self._live = connector.follows
        self._share = share
        self._create = functools.partial(
            strategy.create_generator, clock=settings.clock, emit_each=not self._live
        )
        self._combined = SplitWatermarks(state.watermark_ms)
        self.holds = hold
        if hold:
            self._combined.update(_HELD, state.watermark_ms)
        self._ticked_ms = state.ticked_ms
        self._moved = (settings.clock(), state.watermark_ms)  # when the watermark moved last
        self._tracks: dict[str, Track] = {}
        self._splits: dict[str, Split] = {}
        speed = settings.replay_speed
        self._pace = None if speed is None else Pace(speed, settings.clock)
        self._alignment = None
        if strategy.alignment is not None and self._live:
            self._alignment = AlignmentMember(strategy.alignment, settings.clock)
        for name, position in positions.items():
            self._add(name, position, state.splits)

    def _add(self, name: str, position: SplitPosition, states: Mapping[str, SplitState]) -> None:
        known = MERGED if self._strategy.merged else name
        track = self._tracks.get(known)
        if track is None:
            timeout_ms = self._strategy.idle_timeout_ms if self._live else None
            track = Track(known, self._create, timeout_ms, states.get(known, SplitState()))
            self._tracks[known] = track
        self._splits[name] = Split(name, position, track)
        if not position.done:
            self._combined.update(known, track.generator.watermark_ms)
            if track.idle:
                self._combined.mark_idle(known)

    def end_hold(self) -> None:
        """Lets the watermark follow the splits again."""
        self.holds = False
        self._combined.remove(_HELD)

    def readers(self) -> dict[str, SplitReader]:
        """Gives the readers that are open, by split."""
        return {name: s.reader for name, s in self._splits.items() if s.reader is not None}

    @property
    def positions(self) -> dict[str, SplitPosition]:
        """Where every split stands."""
        return {name: split.position for name, split in self._splits.items()}

    @property
    def state(self) -> GroupState:
        """The watermark state: of the group, and of every split."""
        states = {name: track.state for name, track in self._tracks.items()}
        return GroupState(self._combined.combined_ms, states, self._ticked_ms)

    @property
    def status(self) -> GroupStatus:
        """Where the group stands."""
        splits = tuple(split.status for _, split in sorted(self._splits.items()))
        holder = holder_of(splits, finished=not self._unfinished())
        bounds = [track.generator.bound_ms for track in self._tracks.values()]
        watermark_ms = self._combined.combined_ms
        now = self._settings.clock()
        if watermark_ms > self._moved[1]:
            self._moved = (now, watermark_ms)
        shown_ms = shown(watermark_ms)
        return GroupStatus(
            shown_ms,
            splits,
            None if self._strategy.merged else holder,
            max(now - self._moved[0], 0.0),
            None if shown_ms is None else int(now * 1000) - shown_ms,
            max((bound for bound in bounds if bound is not None), default=None),
        )

    def close(self) -> None:
        """Closes the splits' readers, and holds no aligned reader any more."""
        if self._alignment is not None:
            self._alignment.leave()
        for split in self._splits.values():
            split.close()

    def poll(self) -> Poll:
        """Reads about one block and moves the watermark on."""
        poll = Poll()
        if self._live:
            self._poll_live(poll)
        else:
            self._poll_replay(poll)
        for name, change in poll.changes:
            before, after = format_duration(change.before_ms), format_duration(change.after_ms)
            at_ms = change.event_time_ms
            _LOG.info("%s: bound %s -> %s at event time %d ms", name, before, after, at_ms)
        poll.positions, poll.state, poll.status = self.positions, self.state, self.status
        poll.finished = not self._live and not self._unfinished()
        return poll

    def _unfinished(self) -> list[Split]:
        return [split for split in self._splits.values() if not split.position.done]

    def _poll_replay(self, poll: Poll) -> None:
        splits = self._unfinished()
        if self._strategy.merged:
            splits = splits[:1]  # one after the other, as they come
        size = max(_LEAST_BLOCK_BYTES, self._settings.block_bytes // max(1, len(splits)))
        size = min(size, self._settings.block_bytes)
        for split in splits:
            if split.drained and not split.at_end:
                self._read(split, size)
        reached = [split.reached_ms for split in splits if not split.at_end]
        limit = min(reached, default=None)
        horizon = None if self._pace is None else self._pace.horizon(splits)
        for split in splits:
            until = len(split.columns)
            if limit is not None:
                until = int(np.searchsorted(split.stamps, limit, side="right"))
            if horizon is not None:
                until = min(until, int(np.searchsorted(split.latest, horizon, side="right")))
            until = max(until, split.cursor)
            split.release(until, poll, split.stamps[split.cursor : until])
            self._combined.update(split.track.name, split.track.generator.watermark_ms)
            if split.at_end and split.drained:
                self._finish(split)
        if self._pace is not None and horizon is not None and not poll.batches:
            free = [split for split in splits if limit is None or split.is_free(limit)]
            poll.wait_s = self._pace.wait(free, horizon)

    def _read(self, split: Split, size: int) -> bool:
        """Reads and parses the next block of a split; says whether there was anything."""
        if split.reader is None:
            split.reader = self._connector.open(split.name, split.position)
        block = split.reader.read(size)
        split.at_end = block.at_end
        split.position = split.position._replace(offset=block.offset, base=block.base)
        split.caught_up = block.caught_up
        if block.empty:
            return False
        lines = block.lines(self._fields.timestamps)
        if split.parser is None or split.header != split.reader.header:
            split.header = split.reader.header
            if not self._sample:  # a live input that was empty when it was bound
                head = ((split.header, raw) for raw in lines)
                self._sample = self._connector.line_format.sample(self._fields, head)
            split.parser = self._connector.line_format.parser(
                self._fields, self._sample, split.header
            )
        columns, rejected = split.parser.parse(lines, self._latest_ms())
        split.load(lines, columns, rejected)
        return True

    def _latest_ms(self) -> int | None:
        skew = self._settings.max_future_skew_ms
        if skew == "live":
            skew = LIVE_FUTURE_SKEW_MS if self._live else None
        return None if skew is None else self._now_ms() + skew

    def _now_ms(self) -> int:
        return int(self._settings.clock() * 1000)

    def _finish(self, split: Split) -> None:
        split.position = split.position._replace(done=True)
        if not self._unfinished():
            ends = [track.generator.watermark_ms for track in self._tracks.values()]
            self._combined = SplitWatermarks(max(self._combined.combined_ms, *ends))
        elif not self._strategy.merged:
            self._combined.remove(split.track.name)
        split.close()

    def _poll_live(self, poll: Poll) -> None:
        for name, position in self._connector.initial_positions().items():
            if name not in self._splits and self._share.has(name):
                self._add(name, position, {})
        asked: dict[str, list[_Found]] = {}  # by track
        anything = False
        of = self._combined.of
        for split in sorted(self._splits.values(), key=lambda s: (of(s.track.name), s.name)):
            track = split.track
            split.paused = self._is_ahead(track)
            if split.paused:
                if track.timer is not None:
                    track.timer.pause()
                continue
            now_ms = self._now_ms()  # before a read that may block
            found = self._read(split, self._settings.block_bytes)
            records = len(split.columns) > 0
            if records:
                self._take(split, poll)
            elif found:  # lines that are no records move no watermark, and wake nobody
                split.release(0, poll, split.stamps)
            unknown = found or not split.caught_up
            asked.setdefault(track.name, []).append(_Found(records, unknown, now_ms))
            anything = anything or found
        self._probe(asked)
        self._tick()
        if self._strategy.on_all_idle == ADVANCE and self._combined.all_idle:
            bounds = [track.generator.bound_ms or 0 for track in self._tracks.values()]
            self._combined.advance(self._now_ms() - max(bounds) - 1)
        if not anything:
            poll.caught_up = all(split.caught_up for split in self._splits.values())
            poll.wait_s = min(_IDLE_WAIT_S, self._strategy.emit_interval_ms / 1000)

    def _take(self, split: Split, poll: Poll) -> None:
        """Releases what a live split gave, stamped with the group's watermark at each record."""
        combined, track = self._combined, split.track
        combined.update(track.name, track.generator.watermark_ms)  # active again, if it was idle
        stamps = split.stamps
        others = combined.minimum_of_others(track.name)
        if others is not None:
            stamps = np.minimum(stamps, others)
        stamps = np.maximum(stamps, combined.combined_ms)
        split.release(len(split.columns), poll, stamps)
        combined.update(track.name, track.generator.watermark_ms)

    def _is_ahead(self, track: Track) -> bool:
        """Says whether a split is too far ahead to be read on; an idle one is asked on."""
        if self._alignment is None or self.holds:
            return False
        allowed = self._alignment.max_allowed_ms(self._combined.minimum_known())
        ahead = allowed is not None and self._combined.of(track.name) > allowed
        return ahead and not track.idle

    def _probe(self, asked: Mapping[str, list[_Found]]) -> None:
        """Tells the idleness timers what the poll found.

        Where it found nothing but lines that are no records, or had no answer, it tells neither
        way: there may be more to come, and it is no sign of life.
        """
        for name, found in asked.items():
            timer = self._tracks[name].timer
            active = any(each.records for each in found)
            if timer is None or (not active and any(each.other for each in found)):
                continue
            if timer.probe(active, found[-1].asked_ms):
                self._combined.mark_idle(name)

    def _tick(self) -> None:
        """Calls the generators' periodic callback, if it is time; idle splits have none."""
        now_ms, interval_ms = self._now_ms(), self._strategy.emit_interval_ms
        if self._ticked_ms is not None and 0 <= now_ms - self._ticked_ms < interval_ms:
            return
        self._ticked_ms = now_ms
        for name, track in self._tracks.items():
            if not track.idle:
                track.generator.on_tick()
                self._combined.update(name, track.generator.watermark_ms)


class _Found(NamedTuple):
    """What a live poll found in a split, and when it asked.

    Args:
        records: Whether there were records.
        other: Whether there was anything else, or may be: the source did not answer.
        asked_ms: When it asked.
    """

    records: bool
    other: bool
    asked_ms: int

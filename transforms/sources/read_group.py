"""The splittable DoFn that reads a group of splits, a few polls a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.utils.timestamp import Duration as BeamDuration

from beam_lateness.transforms.sources.emit import emit
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.restriction import Restriction, Unbounded
from beam_lateness.transforms.sources.rhythm import PROMPT, Rhythm
from beam_lateness.transforms.sources.sessions import EngineSession
from beam_lateness.transforms.sources.share import Share
from beam_lateness.transforms.watermarks.estimator import GroupState


class ReadGroup(Unbounded):
    """Reads a group of splits, a few polls a call; its elements are the readers' shares.

    Args:
        group: The input.
        rhythm: How the calls follow each other.
    """

    def __init__(self, group: Group, rhythm: Rhythm = PROMPT) -> None:
        self._group = group
        self.rhythm = rhythm
        self._readers: dict[bytes, GroupReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def initial_restriction(self, element: bytes) -> Restriction:
        share = Share.decode(element)
        return Restriction(share.of(self._group.connector.initial_positions()))

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterable[Any]:
        yield from self._read(element, tracker, estimator)

    def _read(
        self, element: bytes, tracker: Any, estimator: Any, finalizer: Any = None
    ) -> Iterable[Any]:
        """Reads on from where the restriction stands.

        Args:
            element: The reader's share.
            tracker: The restriction's.
            estimator: The watermark's.
            finalizer: Told whom to call when the engine has kept what was read.
        """
        restriction = tracker.current_restriction()
        if restriction.all_read:
            self.close(element)
            if tracker.try_claim(restriction) and restriction.closing < self.rhythm.closing_calls:
                tracker.defer_remainder()
            return
        reader = self.reader_for(element, restriction, estimator.get_estimator_state())
        for poll in self.rhythm.polls(reader):
            if not tracker.try_claim(Restriction(poll.positions)):
                self.close(element)  # the pipeline drains
                return
            yield from emit(poll)
            estimator.advance(poll.state)
            delay_s = self.rhythm.delay_s(poll)
        kept = self.kept_by(reader)
        if kept is not None:
            tracker.try_claim(Restriction(poll.positions, unacknowledged=kept.unacknowledged()))
            finalizer.register(kept.finalizer())
        tracker.defer_remainder(BeamDuration.of(delay_s))

    def teardown(self) -> None:
        for element in list(self._readers):
            self.close(element)

    def reader_for(self, element: bytes, restriction: Restriction, state: GroupState) -> Any:
        """Gives what polls a share from where a restriction stands.

        That is the reader of the last call if it stands there (it holds parsed blocks), or a new
        one.
        """
        positions = restriction.positions
        reader = self._readers.get(element)
        if reader is None or reader.positions != positions or reader.state != state:
            self.close(element)
            share = Share.decode(element)
            reader = self._readers[element] = self._group.open(positions, state, share=share)
        return reader

    def kept_by(self, reader: Any) -> EngineSession | None:
        """Gives the session that the engine must tell what it has kept; None if there is none."""
        return None

    def close(self, element: bytes) -> None:
        """Closes the reader of a share."""
        reader = self._readers.pop(element, None)
        if reader is not None:
            reader.close()

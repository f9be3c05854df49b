"""Polls that are held back until the engine has kept them.

Pub/Sub does not deliver in the same order again: after a failure a message may come behind others
than before, and be judged too late where it was accepted. A row written before the failure would
hold it, and a dead letter as well. So what is read of such a source goes into the engine's state
first, its stamps with it, and into the pipeline when a checkpoint has that: then a record has one
verdict, for ever.
"""

from __future__ import annotations

import pickle
from collections import deque

from beam_lateness.transforms.batch import EventBatchCoder
from beam_lateness.transforms.results import InvalidRecord
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.watermarks.estimator import GroupState

_BATCHES = EventBatchCoder()


class HeldPolls:
    """Polls in their order, each with its number.

    Args:
        state: The watermark state of what has been given away before.
    """

    def __init__(self, state: GroupState) -> None:
        self._polls: deque[tuple[int, Poll]] = deque()
        self.state = state  # of what has been given away
        self.new = True  # whether there was none yet
        self.kept = 0  # the number of the last poll that the engine has kept

    def add(self, number: int, poll: Poll) -> None:
        """Holds a poll."""
        self.new = False
        self._polls.append((number, poll))

    def release(self) -> list[Poll]:
        """Gives away the polls that are kept, and such as hold nothing, as far as they follow."""
        released: list[Poll] = []
        while self._polls:
            number, poll = self._polls[0]
            if number > self.kept and holds_records(poll):
                break
            self._polls.popleft()
            self.state = poll.state
            released.append(poll)
        return released

    def encoded(self) -> list[bytes]:
        """Gives those that are held, for the engine's state."""
        return [encode(poll) for _, poll in self._polls if holds_records(poll)]


def holds_records(poll: Poll) -> bool:
    """Says whether anything would come again if the poll was lost."""
    return bool(poll.batches or poll.invalid or poll.markers)


def encode(poll: Poll) -> bytes:
    """Encodes the records of a poll."""
    batches = [_BATCHES.encode(batch) for batch in poll.batches]
    return pickle.dumps((batches, [tuple(record) for record in poll.invalid], poll.blank))


def decode(encoded: bytes) -> Poll:
    """Gives a poll with the records of one that `encode` was given."""
    # The engine's state is the job's own.
    batches, invalid, blank = pickle.loads(encoded)  # noqa: S301
    return Poll(
        [_BATCHES.decode(batch) for batch in batches],
        [InvalidRecord(*record) for record in invalid],
        blank=blank,
    )

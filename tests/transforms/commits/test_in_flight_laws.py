"""Whatever crashes when: each record ends in one place, and none is let go of before it is there.

The world checks at each acknowledgement, and at each checkpoint, that the store or the dead letters
have what may be forgotten then (`World.check_kept`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.commits.world import INVALID, MARKER, RECORD, CrashError, Run, World

KINDS: Final = [RECORD] * 8 + [INVALID, MARKER]
OPERATIONS: Final = [
    "tick",  # the least of them: what an example is simplified to
    *["publish"] * 4,
    *["poll", "work", "store", "bury", "commit"] * 2,
    *["round"] * 4,
    *["jump", "close", "crash", "crash", "begin", "wait no more"],
]


class Op(NamedTuple):
    """Something that happens; the process dies after `fuse` of its steps, if there are as many."""

    name: str
    split: int
    low: int
    high: int
    fuse: int | None


OPS = st.builds(
    Op,
    st.sampled_from(OPERATIONS),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 49),
    st.sampled_from([*[None] * 9, *range(9)]),
)
HISTORIES = st.lists(OPS, min_size=40, max_size=80)


class History:
    """Runs operations one after the other; a process that dies is followed by the next one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.run = Run(world)

    def play(self, op: Op) -> None:
        """Does one thing."""
        self.world.fuse = op.fuse
        try:
            self._do(op)
        except CrashError:
            self._begin(None)
        self.world.fuse = None

    def _begin(self, fuse: int | None) -> None:
        self.world.fuse = fuse
        try:
            self.run = Run(self.world)
        except CrashError:
            self.run = Run(self.world)

    def _do(self, op: Op) -> None:
        world, run = self.world, self.run
        split = world.splits[op.split % len(world.splits)]
        if op.name == "publish":
            ts = 2 * len(world.published) + op.high - 25  # out of order, but time goes on
            world.publish(split, KINDS[op.low], "ab"[op.high % 2], ts)
        elif op.name == "poll":
            run.poll(split, 1 + op.low % 4, op.high)
        elif op.name == "jump":
            run.jump(2 * len(world.published) + op.high - 25)
        elif op.name == "work":
            run.work(1 + op.low)
        elif op.name == "store":
            run.store(1 + op.low, op.high)
        elif op.name == "bury":
            run.bury(1 + op.low, op.high)
        elif op.name == "commit":
            run.commit(fail=op.high % 5 - 1)
        elif op.name == "round":
            run.poll(split, 5, op.high)
            run.work(len(run.elements))
            run.store(len(run.panes), op.high)
            run.bury(len(run.dead), op.high)
            run.commit()
        elif op.name == "tick":
            world.now_s += 1
        elif op.name == "close":
            run.commit(clean=True)
            self._begin(None)
        elif op.name == "wait no more":
            run.impatient = True
        else:
            self._begin(op.fuse)


def play(world: World, history: list[Op]) -> None:
    """Plays a history to its end, at which all is read, stored and settled."""
    player = History(world)
    for op in history:
        player.play(op)
    player.run.finish()
    world.check_all_is_in_one_place()
    world.check_all_is_acknowledged()
    assert player.run.in_flight.count() == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.sampled_from([0, 5, 15]), st.integers(0, 8), HISTORIES)
def test_each_record_of_a_log_ends_in_one_place(
    partitions: int, lateness: int, bound: int, history: list[Op]
) -> None:
    """Kafka: positions are offsets, and all from `resume` on is read again after a crash."""
    play(World(partitions, 0, lateness, bound), history)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2), st.sampled_from([0, 5, 15]), st.integers(0, 8), HISTORIES)
def test_each_message_of_a_queue_ends_in_one_place(
    subscriptions: int, lateness: int, bound: int, history: list[Op]
) -> None:
    """Pub/Sub: positions are ids; what is not acknowledged comes again, in any order and late."""
    play(World(0, subscriptions, lateness, bound), history)

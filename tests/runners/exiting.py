"""The command, but for this: it ends by `os._exit` at one of the places where that could do harm.

`EXIT_AT` names the place, `EXIT_AFTER` how often it is passed before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from beam_lateness.pipelines.cli import run
from beam_lateness.transforms.commits.checkpoints import Checkpoints
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.sinks import dead_letters
from beam_lateness.transforms.sinks.stale import RemoveStale
from beam_lateness.transforms.sinks.window_table import WindowTable
from beam_lateness.transforms.sources import kafka_reader, pubsub_reader

CODE: Final = 86

PLACES: Final[dict[str, tuple[tuple[Any, str], ...]]] = {
    "table": ((WindowTable, "write"),),
    "panes_written": ((CommitAfterStore, "panes_written"),),
    "letters": ((dead_letters._Append, "_flush"),),
    "letters_written": ((CommitAfterStore, "letters_written"),),
    "remove_stale": ((RemoveStale, "__call__"),),
    "checkpoint": ((Checkpoints, "write"),),
    "acknowledge": (
        (kafka_reader.KafkaReader, "acknowledge"),
        (pubsub_reader.PubSubReader, "acknowledge"),
    ),
}


def exit_at(place: str, after: int) -> None:
    """Makes this process end at a place (`NAME:before` or `NAME:after`)."""
    name, _, when = place.partition(":")
    left = [after]
    for owner, method in PLACES[name]:
        setattr(owner, method, _ending(getattr(owner, method), when, left))


def _ending(method: Callable[..., Any], when: str, left: list[int]) -> Callable[..., Any]:
    def ends(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if when == "before" and left[0] < 0:
            os._exit(CODE)
        result = method(*arguments, **named)
        if left[0] < 0:
            os._exit(CODE)
        return result

    return ends


if __name__ == "__main__":
    exit_at(os.environ["EXIT_AT"], int(os.environ["EXIT_AFTER"]))
    run()

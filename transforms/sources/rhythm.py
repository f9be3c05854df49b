"""How the calls of the source follow each other, which engines take differently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import Duration, duration_ms

LEAST_PAUSE_S: Final = 1.1
"""Flink's runner cuts the delay of a splittable DoFn to whole seconds, after it has taken off what
has passed meanwhile: 1.0 s becomes 0, and then no watermark leaves the source until its end."""

_LONG_CALL_S: Final = 1.0
_SHORT_CALL_S: Final = 0.2


@dataclass(frozen=True)
class Rhythm:
    """How long a call reads on, and how long the engine waits before the next.

    Args:
        call_s: A call reads polls for about so long, in seconds, while there is more; 0: one poll.
        pause_s: The least time between two calls, in seconds.
        idle_s: The least time after a call that found nothing more, in seconds.
        closing_calls: Calls between the last poll of a finite input and the one that ends it. Prism
            (2.77) may run a call before it has noted the watermark of the one before; if that call
            ends the source, the watermark noted late stands in for the end of time, and the job is
            stuck (seen in 1 of 200 sources). Each call that reports the same watermark again makes
            the engine look at it once more.
    """

    call_s: float = 0.0
    pause_s: float = 0.0
    idle_s: float = 0.0
    closing_calls: int = 3

    def polls(self, reader: Any) -> Iterator[Poll]:
        """Reads polls as long as a call lasts."""
        end = time.monotonic() + self.call_s
        while True:
            poll: Poll = reader.poll()
            yield poll
            if poll.finished or poll.wait_s > 0 or time.monotonic() >= end:
                return

    def delay_s(self, poll: Poll) -> float:
        """Gives how long to wait after a call whose last poll is given."""
        return max(poll.wait_s, self.idle_s if poll.wait_s > 0 else 0.0, self.pause_s)


PROMPT: Final = Rhythm()
"""One poll a call: the watermark moves after each, in Prism's splittable DoFn."""


def is_flink(runner: Any) -> bool:
    """Says whether a runner is Flink, or may be: what is behind a job server is not known here."""
    return isinstance(runner, PortableRunner) and not isinstance(runner, PrismRunner)


def rhythm_of(runner: Any, live: bool, poll_interval: Duration | None) -> Rhythm:
    """Gives the rhythm that suits an engine.

    Args:
        runner: Beam's runner.
        live: Whether the input is followed; on Flink it is read by a timer then.
        poll_interval: How long to wait after a call that found nothing more; None for the least.

    Raises:
        ValueError: If that is no duration.
    """
    idle_s = 0.0
    if poll_interval is not None:
        idle_s = duration_ms(poll_interval, name="poll_interval (--poll_interval)") / 1000
    if not is_flink(runner):
        return Rhythm(idle_s=idle_s)
    if live:
        return Rhythm(_SHORT_CALL_S, idle_s=idle_s)
    return Rhythm(_LONG_CALL_S, LEAST_PAUSE_S, idle_s, closing_calls=0)

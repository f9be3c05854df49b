"""Runs a pipeline to its end, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Final

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult, PipelineState

from beam_lateness.pipelines.causes import TRACEBACK, cause_of
from beam_lateness.pipelines.ended import Ended
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.interrupts import interrupts
from beam_lateness.pipelines.runners import Engine
from beam_lateness.transforms import metrics

OK, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

_LOG = logging.getLogger(__name__)

_END_WITHIN_S: Final = 5.0


def outcome(program: str, act: Callable[[], int]) -> int:
    """Runs a command; what it raises becomes a line on stderr and an exit code.

    Args:
        program: Its name, for the line.
        act: The command; it gives an exit code.
    """
    try:
        return act()
    except (ValueError, EngineError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        print(f"{program}: interrupted before the job ran", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # by a function of the user's: its code is not the job's
        print(f"{program}: the job failed: something in it called exit({error})", file=sys.stderr)
        return FAILED
    except Exception as error:  # a runner raises what it likes
        _LOG.info("%s", error)
        print(f"{program}: the job failed: {cause_of(str(error))}", file=sys.stderr)
        return FAILED


def run_to_end(pipeline: beam.Pipeline, engine: Engine) -> Ended:
    """Runs a pipeline whose workers are in this process."""
    result = None
    try:
        with interrupts():
            result = pipeline.run()
        with interrupts():  # once more: Beam has set its own handler meanwhile
            _await_end(result)
    except KeyboardInterrupt:
        # Neither cancelling nor stopping is sure to come back once threads are cut off.
        ending = threading.Thread(target=_end, args=[result, engine], daemon=True)
        ending.start()
        ending.join(_END_WITHIN_S)
        return Ended(_counts(result, engine, True), interrupted=True)
    if result.state != PipelineState.DONE:
        msg = f"the job ended in state {result.state}"
        raise RuntimeError(msg)
    return Ended(_counts(result, engine, False))


def _await_end(result: PipelineResult) -> None:
    """Waits for the end of a pipeline; a failure names its cause.

    Beam names the last error that its engine told. Prism tells another one after a bundle that
    failed, if it finds that nothing goes on any more before it has ended the job.
    """
    try:
        result.wait_until_finish()
    except RuntimeError as error:
        told = [each.message_response for each in getattr(result, "_messages", ())]
        causes = [each.message_text for each in told if TRACEBACK in each.message_text]
        if not causes or TRACEBACK in str(error):
            raise
        raise RuntimeError(causes[-1]) from error


def _end(result: PipelineResult | None, engine: Engine) -> None:
    try:
        if result is not None:
            result.cancel()
    except Exception:  # a runner raises what it likes
        _LOG.debug("while cancelling", exc_info=True)
    engine.stop()


def _counts(result: PipelineResult | None, engine: Engine, interrupted: bool) -> dict[str, int]:
    if engine.embedded or interrupted or result is None:
        return metrics.tally()
    return metrics.committed(result.metrics())

"""Custom generators at work: record by record, on a tick, their declared state checkpointed."""

from __future__ import annotations

import copy
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from beam_lateness.transforms.times import NO_WATERMARK_MS, Flags, Millis
from beam_lateness.transforms.watermarks.generators import (
    BlockGenerator,
    HighestWatermark,
    NotAWatermarkError,
    WatermarkGenerator,
    WatermarkOutput,
)

GeneratorFactory: TypeAlias = Callable[[], WatermarkGenerator]
"""What makes a custom generator: its class, or a function without arguments."""

_UNDO_RECORDS: Final = 256  # the state is saved this often, to go back to where a record fails


def name_of(factory: GeneratorFactory) -> str:
    """Names a factory as a user wrote it."""
    return getattr(factory, "__qualname__", None) or repr(factory)


def check_factory(factory: GeneratorFactory) -> None:
    """Tries a factory once, before anything runs.

    Raises:
        ValueError: If it makes no `WatermarkGenerator`, or one whose state no checkpoint can hold.
    """
    name = name_of(factory)
    if not callable(factory):
        msg = f"generator must be a class or a function that makes a generator, got {factory!r}"
        raise ValueError(msg)
    try:
        generator = factory()
    except (Exception, SystemExit) as error:  # a user's class may raise anything
        msg = f"generator {name} cannot be made: {name}() raised {_told(error)}"
        raise ValueError(msg) from error
    if not isinstance(generator, WatermarkGenerator):
        msg = (
            f"generator {name} must make a WatermarkGenerator, got {type(generator).__name__}, "
            "which is no subclass of it"
        )
        raise ValueError(msg)
    state = generator.state
    try:
        restore_state(state, save_state(state))
    except (TypeError, ValueError) as error:
        msg = f"generator {name}: {error}"
        raise ValueError(msg) from error
    if state is not None and factory().state is state:
        msg = (
            f"generator {name}: its state is one object for all splits; make it in __init__ "
            "(self.state = ...), so that each has its own"
        )
        raise ValueError(msg)


def save_state(state: Any) -> Any:
    """Turns a declared state into JSON values.

    Raises:
        TypeError: If it is no dataclass, or holds what JSON does not give back as it was.
    """
    if state is None:
        return None
    if not is_dataclass(state) or isinstance(state, type):
        msg = f"its state must be a dataclass (made in __init__) or None, got {_shown(state)}"
        raise TypeError(msg)
    saved = {field.name: getattr(state, field.name) for field in fields(state)}
    try:
        read_back = json.loads(json.dumps(saved))
    except (TypeError, ValueError) as error:
        msg = f"its state {_shown(state)} cannot be checkpointed: {error}"
        raise TypeError(msg) from error
    if read_back != saved:
        msg = (
            f"its state {_shown(state)} is not the same after a checkpoint; use finite numbers, "
            "text, lists, and dictionaries with text as keys (no tuples)"
        )
        raise TypeError(msg)
    return read_back


def restore_state(declared: Any, saved: Any) -> Any:
    """Makes a state of the declared type from what was saved.

    A field that was not saved, since the class was changed, keeps its declared value.

    Raises:
        ValueError: If what was saved has fields that the declared type lacks.
    """
    if saved is None:
        return declared
    known = set() if declared is None else {field.name for field in fields(declared)}
    if unknown := sorted(saved.keys() - known):
        msg = f"the checkpoint holds {', '.join(unknown)}, which its state no longer declares"
        raise ValueError(msg)
    restored = copy.copy(declared)
    for name, value in saved.items():
        object.__setattr__(restored, name, value)  # frozen ones, too
    return restored


def _shown(state: Any) -> str:
    """Shows a state in an error, however large it is."""
    return textwrap.shorten(repr(state), 200)


def _told(error: BaseException) -> str:
    """Tells an error in one line, whatever its text does."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a user's class again
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}"


class PerRecordGenerator(BlockGenerator):
    """Runs a custom generator, a record at a time.

    A record on which `on_event` raises is no record: it moves no watermark, leaves no trace in the
    state, and goes to `invalid`.

    Args:
        factory: Makes the custom generator.
        clock: Gives the time in seconds since the epoch.
        emit_each: Whether a tick follows each record (a replay), not the clock.
        state: The `state` of an earlier one, to go on from it.
    """

    needs_records = True

    def __init__(
        self,
        factory: GeneratorFactory,
        clock: Callable[[], float],
        *,
        emit_each: bool,
        state: Any = None,
    ) -> None:
        self._name = name_of(factory)
        self._generator = factory()
        self._emit_each = emit_each
        self._newest_ms = NO_WATERMARK_MS  # in a replay, the clock
        self._generator.clock = self._replay_clock if emit_each else clock
        self._output = HighestWatermark()
        self._declared = type(self._generator.state)
        self._attributes = _attributes_of(self._generator)
        if state is not None:
            self._restore(state)
        self.failures: dict[int, str] = {}

    def _replay_clock(self) -> float:
        """The largest event time so far: the clock of a live source would depend on the machine."""
        return self._newest_ms / 1000

    @property
    def state(self) -> Any:
        """The watermark, the largest event time (of a replay), and the generator's own state.

        Raises:
            TypeError: If that is no longer what it declared, or no checkpoint can hold it.
        """
        own = self._generator.state
        try:
            if type(own) is not self._declared:
                msg = f"its state was a {self._declared.__name__}, and is now {_shown(own)}"
                raise TypeError(msg)
            return [self._output.watermark_ms, self._newest_ms, save_state(own)]
        except TypeError as error:
            msg = f"generator {self._name}: {error}"
            raise TypeError(msg) from error

    def _restore(self, saved: Any) -> None:
        self._output.watermark_ms, self._newest_ms, own = saved
        self._generator.state = restore_state(self._generator.state, own)

    @property
    def watermark_ms(self) -> int:
        """The highest watermark it has emitted."""
        return self._output.watermark_ms

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Hands a record on."""
        if self._emit_each:
            self._newest_ms = max(self._newest_ms, event_time_ms)
        self._generator.on_event(record, event_time_ms, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Hands a tick on.

        Raises:
            RuntimeError: If it raises: no record is at fault, so the job fails.
        """
        try:
            self._generator.on_periodic_emit(output)
        except (Exception, SystemExit) as error:  # a user's class may raise anything
            msg = f"generator {self._name}.on_periodic_emit raised {_told(error)}"
            raise RuntimeError(msg) from error

    def on_events(
        self,
        event_times_ms: Millis,
        markers: Flags,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> Millis:
        """Sees records one by one; `failures` then names those that it failed on, and why.

        Raises:
            TypeError: If it emits what is no watermark, or keeps state that it has not declared.
        """
        self.failures = {}
        after = np.empty(len(event_times_ms), dtype=np.int64)
        times = event_times_ms.tolist()
        safe, saved = 0, self.state  # what it was before row `safe`
        for row in range(len(times)):
            if row - safe == _UNDO_RECORDS:
                safe, saved = row, self.state
            try:
                self.on_event(records[row], times[row], self._output)
            except NotAWatermarkError as error:
                msg = f"generator {self._name}: {error}"
                raise TypeError(msg) from error
            except (Exception, SystemExit) as error:  # one record is at fault
                self.failures[row] = f"{self._name}.on_event raised {_told(error)}"
                self._restore(saved)
                for before in range(safe, row):
                    self.on_event(records[before], times[before], self._output)
                    self._tick_if_each()
                safe, saved = row + 1, self.state
            else:
                self._tick_if_each()
            after[row] = self._output.watermark_ms
        self._refuse_undeclared_state()
        return after

    def on_tick(self) -> None:
        """Calls `on_periodic_emit`, unless that follows each record."""
        if not self._emit_each:
            self.on_periodic_emit(self._output)
            self._refuse_undeclared_state()

    def _tick_if_each(self) -> None:
        if self._emit_each:
            self.on_periodic_emit(self._output)

    def _refuse_undeclared_state(self) -> None:
        """Refuses what a checkpoint would lose: it would change verdicts from block to block."""
        now = _attributes_of(self._generator)
        if now == self._attributes:
            return
        changed = sorted(
            name
            for name in now.keys() | self._attributes.keys()
            if now.get(name, _ABSENT) != self._attributes.get(name, _ABSENT)
        )
        msg = (
            f"generator {self._name} changed its attribute {', '.join(changed)}; what it must "
            "remember belongs into its state, a dataclass: checkpoints keep nothing else"
        )
        raise TypeError(msg)


_ABSENT: Final = object()


def _attributes_of(generator: WatermarkGenerator) -> dict[str, Any]:
    """What a generator holds beside its state: plain values, and other objects by identity."""
    plain = (int, float, str, bool, bytes, type(None), list, dict, set, tuple)
    return {
        name: copy.copy(value) if isinstance(value, plain) else id(value)
        for name, value in getattr(generator, "__dict__", {}).items()
        if name not in ("state", "clock")
    }

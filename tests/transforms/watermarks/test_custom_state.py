"""The state of custom generators: declared, checked before anything runs, checkpointed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.custom import (
    PerRecordGenerator,
    check_factory,
    restore_state,
    save_state,
)
from beam_lateness.transforms.watermarks.generators import WatermarkGenerator, WatermarkOutput
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.transforms.watermarks.policies import (
    BoundedWallForwarded,
    Clock,
    Forwarded,
    LimitedDelay,
    Punctuated,
    see,
)

FEW = settings(max_examples=60, deadline=None)


@dataclass
class Rich:
    """Everything that a state may hold."""

    count: int = 0
    share: float = 0.5
    name: str = ""
    seen: bool = False
    nothing: int | None = None
    newest: list[int] = field(default_factory=list)
    by_key: dict[str, int] = field(default_factory=dict)


@dataclass
class Holds:
    """A state that holds one thing."""

    value: Any


class WithState(Punctuated):
    """A generator with any state."""

    def __init__(self, state: Any) -> None:
        self.state = state


class Remembers(Punctuated):
    """A generator whose state is what a record holds."""

    def __init__(self) -> None:
        self.state = Holds(0)

    def on_event(
        self, record: Mapping[str, Any], event_time_ms: int, output: WatermarkOutput
    ) -> None:
        """Remembers it."""
        self.state.value = record["remember"]


class Raises(Punctuated):
    """A generator that cannot be made."""

    def __init__(self) -> None:
        msg = "no configuration"
        raise OSError(msg)


class Abstract(WatermarkGenerator):
    """A generator whose author has not finished."""


def make_limited() -> WatermarkGenerator:
    """Makes a generator: a function is a factory too."""
    return LimitedDelay(60_000)


def make_nothing() -> Any:
    """Forgets to return what it makes."""


@pytest.mark.parametrize(
    "factory", [make_limited, partial(LimitedDelay, 60_000), Punctuated, lambda: Punctuated()]
)
def test_anything_without_arguments_that_makes_a_generator_is_a_factory(
    factory: Callable[[], WatermarkGenerator],
) -> None:
    """A class, a function, a partial: each split gets a generator of its own."""
    strategy = WatermarkStrategy.for_generator(factory)
    assert strategy.generator is factory
    first, second = strategy.create_generator(), strategy.create_generator()
    see(first, [1_000_000])
    assert second.watermark_ms == NO_WATERMARK_MS


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Punctuated(), r"must be a class or a function that makes a generator, got <.*Punctuated"),
        (None, "must be a class or a function that makes a generator, got None"),
        ("EndOfBatch", "must be a class or a function that makes a generator, got 'EndOfBatch'"),
        (Raises, r"Raises cannot be made: Raises\(\) raised OSError: no configuration"),
        (Abstract, r"Abstract cannot be made: Abstract\(\) raised TypeError: .*on_event"),
        (LimitedDelay, r"LimitedDelay cannot be made: .* missing .* 'max_delay_ms'"),
        (make_nothing, "make_nothing must make a WatermarkGenerator, got NoneType"),
        (Clock, "Clock must make a WatermarkGenerator, got Clock"),
    ],
)
def test_a_factory_that_makes_no_generator_is_refused_by_name(factory: Any, message: str) -> None:
    """Before anything runs, with what to mend."""
    with pytest.raises(ValueError, match=f"^generator .*{message}"):
        WatermarkStrategy.for_generator(factory)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (5, r"its state must be a dataclass \(made in __init__\) or None, got 5"),
        ({"count": 5}, r"its state must be a dataclass .*got \{'count': 5\}"),
        (Rich, r"its state must be a dataclass \(made in __init__\) or None, got <class"),
        (Holds({1, 2}), r"its state Holds\(value=\{1, 2\}\) cannot be checkpointed: .* set"),
        (Holds(b"raw"), "cannot be checkpointed: .* bytes"),
        (Holds(Clock().__call__), "cannot be checkpointed"),
        (Holds((1, 2)), r"its state Holds\(value=\(1, 2\)\) is not the same .*no tuples"),
        (Holds({1: "a"}), r"is not the same after a checkpoint; use .*text as keys"),
        (Holds(Forwarded()), "cannot be checkpointed: .* Forwarded"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_with_what_to_use(
    state: Any, message: str
) -> None:
    """The generator's name first: a job may have several."""
    with pytest.raises(ValueError, match=rf"^generator .*WithState.*: .*{message}"):
        check_factory(partial(WithState, state))


def test_an_empty_marker_field_is_refused_by_its_flag() -> None:
    """None is what says that there are no markers."""
    with pytest.raises(ValueError, match=r"^marker_field \(--marker_field\) must name .*got ''"):
        WatermarkStrategy.for_generator(Punctuated, marker_field="")
    assert WatermarkStrategy.for_generator(Punctuated).marker_field is None
    assert WatermarkStrategy.for_generator(Punctuated, "end").marker_field == "end"


@pytest.mark.parametrize("interval", [0, "0ms", "-1s", "often"])
def test_an_emit_interval_is_a_duration_of_at_least_a_millisecond(interval: str | int) -> None:
    """The error names the parameter and the flag."""
    with pytest.raises(ValueError, match=r"^emit_interval \(--emit_interval\)"):
        WatermarkStrategy.for_generator(Punctuated, emit_interval=interval)


@FEW
@given(
    st.builds(
        Rich,
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.booleans(),
        st.none() | st.integers(),
        st.lists(st.integers(), max_size=3),
        st.dictionaries(st.text(), st.integers(), max_size=3),
    )
)
def test_a_declared_state_survives_a_checkpoint(state: Rich) -> None:
    """Numbers, text, lists and dictionaries, as JSON, whatever they hold by then."""
    saved = json.loads(json.dumps(save_state(state)))
    assert restore_state(Rich(), saved) == state


def test_what_was_saved_does_not_change_any_more() -> None:
    """A checkpoint is a copy, and so is what is made of it."""
    state = Rich(newest=[1], by_key={"a": 1})
    saved = save_state(state)
    state.newest.append(2)
    state.by_key["a"] = 2
    assert restore_state(Rich(), saved) == Rich(newest=[1], by_key={"a": 1})


def test_a_generator_without_a_state_has_nothing_but_its_watermark() -> None:
    """That is restored, so it does not go back."""
    first = WatermarkStrategy.for_generator(Punctuated).create_generator()
    assert first.state == [NO_WATERMARK_MS, NO_WATERMARK_MS, None]
    see(first, [7])
    second = WatermarkStrategy.for_generator(Punctuated).create_generator(first.state)
    assert second.watermark_ms == 7
    assert see(second, [5, 9]) == [7, 9]


@FEW
@given(
    st.sampled_from([partial(LimitedDelay, 10), partial(BoundedWallForwarded, 10), Punctuated]),
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9)), max_size=12),
    st.integers(0, 12),
    st.booleans(),
)
def test_a_generator_goes_on_from_its_checkpoint_at_any_record(
    factory: Callable[[], WatermarkGenerator],
    stream: list[tuple[int, int]],
    cut: int,
    emit_each: bool,
) -> None:
    """Its state through JSON, its clock going on: no watermark is another one."""
    clock = Clock()
    whole = PerRecordGenerator(factory, clock, emit_each=emit_each)
    part = PerRecordGenerator(factory, clock, emit_each=emit_each)
    for index, (event_time_ms, moved_ms) in enumerate(stream):
        clock.seconds += moved_ms / 1000
        if index == cut:
            saved = json.loads(json.dumps(part.state))
            part = PerRecordGenerator(factory, clock, emit_each=emit_each, state=saved)
        assert see(part, [event_time_ms]) == see(whole, [event_time_ms])
        for generator in (part, whole):
            generator.on_tick()
        assert part.watermark_ms == whole.watermark_ms
        assert part.state == whole.state


def test_a_field_that_was_added_later_keeps_its_declared_value() -> None:
    """Old checkpoints go on with a newer class."""
    declared = Rich(name="declared", newest=[1])
    assert restore_state(declared, {"count": 7}) == Rich(count=7, name="declared", newest=[1])


def test_a_field_that_is_gone_is_an_error_that_names_it() -> None:
    """What a checkpoint holds is not dropped without a word."""
    message = "^the checkpoint holds amount, total, which its state no longer declares$"
    with pytest.raises(ValueError, match=message):
        restore_state(Rich(), {"total": 1, "count": 7, "amount": 2})


def test_what_was_never_saved_leaves_the_state_as_declared() -> None:
    """Before the class had a state, there was none to save."""
    declared = Rich(count=3)
    assert restore_state(declared, None) is declared


@pytest.mark.parametrize("value", [{1, 2}, (1, 2), {"p": (1, 2)}, {1: 5}])
def test_a_state_that_went_bad_while_running_is_an_error_that_names_the_generator(
    value: object,
) -> None:
    """A check at the start cannot see it: a dictionary is empty then, and later has its keys."""
    generator = WatermarkStrategy.for_generator(Remembers).create_generator()
    see(generator, [1], [{"remember": value}])
    with pytest.raises(TypeError, match=r"^generator Remembers: its state Holds\(.*checkpoint"):
        _ = generator.state

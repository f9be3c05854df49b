"""Checks of flags that several commands have in common."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.transforms.database import without_login


def one_of(options: Any, name: str, values: Sequence[str]) -> str:
    """Gives the value of a flag that has few.

    Raises:
        ValueError: If it is none of them.
    """
    value = getattr(options, name)
    if value not in values:
        msg = f"--{name} must be one of {', '.join(values)}, got {value!r}"
        raise ValueError(msg)
    return str(value)


def whole(name: str, text: str, least: int = 1) -> int:
    """Reads a whole number.

    Args:
        name: The flag or setting, for the error message.
        text: Its value.
        least: The least that it may be.

    Raises:
        ValueError: If it is none.
    """
    if not text.isdecimal() or int(text) < least:
        msg = f"{name} must be a whole number of at least {least}, got {text!r}"
        raise ValueError(msg)
    return int(text)


def refuse_unknown(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Refuses flags that a parser did not know.

    Raises:
        ValueError: If there is one; it names the nearest known flag.
    """
    if unknown:
        flag = unknown[0].split("=")[0]
        near = difflib.get_close_matches(flag, parser._option_string_actions, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see --help"
        msg = f"unknown flag {without_login(unknown[0])!r}{hint}"
        raise ValueError(msg)


def refuse_strange(argv: Sequence[str], own: Sequence[type[Any]]) -> None:
    """Refuses flags that neither this command nor Beam knows; Beam itself would ignore them.

    Args:
        argv: The flags.
        own: The command's own options.

    Raises:
        ValueError: If there is one; it names the nearest known flag.
    """
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, conflict_handler="resolve", exit_on_error=False
    )
    beams = [
        each
        for each in PipelineOptions.__subclasses__()
        if not each.__module__.startswith("beam_lateness.")
    ]
    for options in (*beams, *own):
        options._add_argparse_args(parser)
    try:
        _, unknown = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from error
    refuse_unknown(parser, unknown)


def help_of(program: str, description: str, *own: type[Any]) -> str:
    """Gives the help text of a command's own flags.

    Args:
        program: Its name.
        description: What it does.
        own: Its options.
    """
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    for options in own:
        options._add_argparse_args(parser)
    return parser.format_help()


def truth(name: str, text: str) -> bool:
    """Reads `true` or `false`.

    Args:
        name: The flag, for the error message.
        text: Its value.

    Raises:
        ValueError: If it is neither.
    """
    if text not in ("true", "false"):
        msg = f"{name} must be true or false, got {text!r}"
        raise ValueError(msg)
    return text == "true"

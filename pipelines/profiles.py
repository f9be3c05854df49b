"""Profiles: default flags of `stream`, by what a result is for."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from beam_lateness.pipelines.flags import refuse_unknown
from beam_lateness.pipelines.flink.options import FlinkOptions
from beam_lateness.pipelines.options import StreamOptions
from beam_lateness.transforms.database import without_login
from beam_lateness.transforms.times import duration_ms, format_duration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

KnownFlags: TypeAlias = Mapping[str, bool]
"""The flags that a profile may set: by name, whether the flag takes a value (or is a switch)."""

BUILT_IN: Final = "built in"

_PROGRAM: Final = "beam-lateness profiles"
_FILE: Final = Path(__file__).with_name("profiles.toml")
_OF_FILE: Final = re.compile(r"(?P<file>.*\.toml)(?::(?P<name>.*))?", re.DOTALL)
_KEYS: Final[Mapping[str, tuple[type, str]]] = {
    **dict.fromkeys(("description", "protects", "costs"), (str, "text, in quotes")),
    "must_balance": (bool, "true or false, without quotes"),
    "flags": (dict, "a table: write [NAME.flags], and a flag a line"),
}
_DURATIONS: Final = ("window", "bound", "allowed_lateness")

# Said on the command line, by who runs the job: what a file confirms is soon forgotten.
_NOT_IN_PROFILES: Final = ("profile", "confirm")

# What these begin is of one kind of watermark (see `strategies`), without meaning for another.
_OF_A_WATERMARK: Final = ("bound", "marker_field", "emit_interval")
_WATERMARK: Final = "bounded"

# What a job needs besides, and no profile can know.
_YOURS: Final = ("input", "key_field", "value_field", "output")


@dataclass(frozen=True)
class Profile:
    """A named set of default flags, and what it is for.

    Args:
        name: The name.
        source: The file it is from, or `BUILT_IN`.
        flags: Values by flag, as text; those of a switch are true or false.
        description: What results are for.
        protects: What it protects.
        costs: What that costs.
        must_balance: Whether no record may be missing from what the job writes.
    """

    name: str
    source: str
    flags: Mapping[str, str]
    description: str = ""
    protects: str = ""
    costs: str = ""
    must_balance: bool = True

    def costs_ms(self) -> dict[str, int | None]:
        """Gives what its flags cost, ms of event time; None where they do not say.

        A first result comes about the bound after its window's end, is corrected for the allowed
        lateness, and state is kept for about window and lateness.
        """
        window, bound, lateness = (
            duration_ms(self.flags[flag], name=f"--{flag}") if flag in self.flags else None
            for flag in _DURATIONS
        )
        state = None if window is None else window + (lateness or 0)
        return {"result_delay_ms": bound, "corrections_ms": lateness or 0, "state_ms": state}

    def arguments(self, known: KnownFlags) -> list[str]:
        """Gives the flags as arguments; a switch that is off is left out."""
        return [
            f"--{flag}={value}" if known.get(flag, True) else f"--{flag}"
            for flag, value in self.flags.items()
            if known.get(flag, True) or value == "true"
        ]


def stream_flags() -> dict[str, bool]:
    """Gives the flags of `stream` that a profile may set."""
    parser = argparse.ArgumentParser(add_help=False)
    StreamOptions._add_argparse_args(parser)
    FlinkOptions._add_argparse_args(parser)
    found = {action.dest: action.nargs != 0 for action in parser._actions}
    return {name: found[name] for name in found if name not in _NOT_IN_PROFILES}


def load_profile(text: str, known: KnownFlags | None = None) -> Profile:
    """Loads the profile that `--profile` names.

    Args:
        text: The name of one built in, `FILE.toml` with one profile in it, or `FILE.toml:NAME`.
        known: The flags that it may set; None does not check them.

    Raises:
        ValueError: If there is none, or it is wrong; it names file, key, value, rule and remedy.

    Example:
        >>> load_profile("settlement").flags["allowed_lateness"]
        '2m'
    """
    found = load_profiles(text, known)
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        msg = f"--profile={text} holds several profiles ({names}): name one, {text}:{found[0].name}"
        raise ValueError(msg)
    return found[0]


def load_profiles(text: str | None = None, known: KnownFlags | None = None) -> list[Profile]:
    """Loads the profiles that `text` names, as in `load_profile`; None: all that are built in.

    Raises:
        ValueError: If there is none, or one is wrong.
    """
    of_file = _OF_FILE.fullmatch(text or "")
    source, name = (BUILT_IN, text) if of_file is None else of_file.group("file", "name")
    found = _read(source, None if source == BUILT_IN else known)  # a test checks those built in
    if name is None:
        return list(found.values())
    if name not in found:
        msg = (
            f"--profile={text}: no profile is called {name!r}{_near(name, found)}: there are "
            f"{', '.join(found)}; one of your own is given as FILE.toml or FILE.toml:NAME"
        )
        raise ValueError(msg)
    return [found[name]]


def _read(source: str, known: KnownFlags | None) -> dict[str, Profile]:
    try:
        with (_FILE if source == BUILT_IN else Path(source)).open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        msg = f"--profile={source} cannot be read: {error.strerror}; name a TOML file"
        raise ValueError(msg) from error
    except ValueError as error:  # no TOML, or no UTF-8
        msg = f"--profile={source} is no TOML: {error}; correct the file"
        raise ValueError(msg) from error
    if not tables:
        msg = f"--profile={source} holds no profile: write [NAME] and [NAME.flags] tables"
        raise ValueError(msg)
    return {name: _profile(name, table, source, known) for name, table in tables.items()}


def _profile(name: str, table: Any, source: str, known: KnownFlags | None) -> Profile:
    where = f"{source}: [{name}]"
    if not isinstance(table, dict):
        msg = f"{source}: {name} = {table!r} is in no profile: put it under a [NAME] table"
        raise ValueError(msg)
    for key, value in table.items():
        if key not in _KEYS:
            msg = (
                f"{where} {key} = {value!r}: unknown key{_near(key, _KEYS)}; a profile has "
                f"{', '.join(_KEYS)}: take it out, or move a flag to [{name}.flags]"
            )
            raise ValueError(msg)
        kind, rule = _KEYS[key]
        if not isinstance(value, kind):
            msg = f"{where} {key} = {value!r}: must be {rule}"
            raise ValueError(msg)
    if not table.get("flags"):
        msg = f"{where} sets no flags: write [{name}.flags], and a line such as bound = '5s'"
        raise ValueError(msg)
    flags = {
        flag: _value(flag, value, f"{source}: [{name}.flags] {flag}", known)
        for flag, value in table["flags"].items()
    }
    return Profile(name, source, flags, **{key: table[key] for key in table if key != "flags"})


def _value(flag: str, value: Any, where: str, known: KnownFlags | None) -> str:
    """Checks a flag of a profile, and gives its value as text."""
    if flag in _NOT_IN_PROFILES:
        msg = f"{where} = {value!r}: --{flag} is for the command line only: take it out"
        raise ValueError(msg)
    if known is not None and flag not in known:
        near = _near(flag, known)
        shown = without_login(str(value))
        msg = f"{where} = {shown!r}: unknown flag{near}; `beam-lateness stream --help` lists them"
        raise ValueError(msg)
    if not isinstance(value, (str, int, float)):  # bool is an int
        msg = f"{where} = {value!r}: must be a text, a number, or true or false"
        raise ValueError(msg)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if known is not None and not known[flag] and text not in ("true", "false"):
        msg = f"{where} = {value!r}: --{flag} takes no value: write true, or false to leave it out"
        raise ValueError(msg)
    if flag in _DURATIONS:
        duration_ms(text, name=where)
    return text


def _near(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def apply_profile(argv: Sequence[str], known_flags: KnownFlags) -> tuple[list[str], Profile | None]:
    """Puts the flags of the profile that `--profile` names before those of the command line.

    A flag that the command line has, in whatever form, is not put in. Nor are the profile's bound
    and its like where the command line has a `--watermark` other than the profile's.

    Args:
        argv: The flags; `--profile` stays among them, and the last one counts.
        known_flags: What a profile may set, by name: whether the flag takes a value.

    Returns:
        The flags, and the profile; None if no `--profile` is given.

    Raises:
        ValueError: If the profile is not there or wrong.

    Example:
        >>> apply_profile(["--profile=hybrid", "--bound", "5s"], {"bound": True})[0][:2]
        ['--window=1m', '--allowed_lateness=30s']
    """
    given = _given(argv, known_flags)
    if "profile" not in given:
        return list(argv), None
    if not given["profile"]:
        msg = "--profile needs a value: a built-in profile's name, FILE.toml or FILE.toml:NAME"
        raise ValueError(msg)
    profile = load_profile(given["profile"], known_flags)
    own = profile.flags.get("watermark", _WATERMARK)
    hidden = () if given.get("watermark", own) == own else _OF_A_WATERMARK
    rest = {
        flag: value
        for flag, value in profile.flags.items()
        if flag not in given and not flag.startswith(hidden)
    }
    return [*replace(profile, flags=rest).arguments(known_flags), *argv], profile


def _given(argv: Sequence[str], known_flags: KnownFlags) -> dict[str, Any]:
    """Gives the flags that the command line has; a value that lacks is for others to refuse."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for flag in {*known_flags, "profile"}:
        parser.add_argument(f"--{flag}", dest=flag, nargs="?")
    return vars(parser.parse_known_args(list(argv))[0])


def _described(profile: Profile, known: KnownFlags) -> dict[str, Any]:
    """Gives a profile as JSON values, with what it costs and the command that it stands for."""
    command = shlex.join(["beam-lateness", "stream", *profile.arguments(known)])
    return {**asdict(profile), **profile.costs_ms(), "command": command}


def _costs(profile: Profile) -> str:
    """Says what a profile costs: its own words, and what its flags tell."""
    delay, corrections, state = (
        None if ms is None else format_duration(ms) for ms in profile.costs_ms().values()
    )
    after = f"about {delay} after the window's end" if delay else "when the watermark passes"
    corrected = f"corrected for {corrections}" if corrections != "0s" else "never corrected"
    kept = f"; state of about {state}" if state else ""
    return f"{profile.costs} Results {after}, {corrected}{kept}.".strip()


def _table(profiles: Sequence[Profile], known: KnownFlags) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for column in ("profile", "flags", "protects", "costs"):
        table.add_column(column, overflow="fold", no_wrap=column in ("profile", "flags"))
    for each in profiles:
        flags = "\n".join(each.arguments(known))
        # No markup: a file of the user's may hold anything.
        table.add_row(*map(Text, (each.name, flags, each.protects, _costs(each))))
    return table


def _whole(profile: Profile, known: KnownFlags) -> str:
    needed = (*_YOURS, "dead_letters") if profile.flags.get("too_late") == "emit" else _YOURS
    yours = ", ".join(f"--{flag}" for flag in needed if flag not in profile.flags)
    return f"""{profile.name} ({profile.source}): {profile.description}

protects: {profile.protects}
costs: {_costs(profile)}
must balance: {"yes" if profile.must_balance else "no"}

The same as this, to which you add {yours}:
{_described(profile, known)["command"]}"""


def main(argv: Sequence[str]) -> int:
    """Shows profiles, and turns a wrong one into one line and an exit code."""
    about = "Shows profiles of `stream`: what each sets, protects and costs."
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=about, allow_abbrev=False)
    parser.add_argument("profile", nargs="?", help="a name, FILE.toml or FILE.toml:NAME (all)")
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    if "--help" in argv or "-h" in argv:
        print(parser.format_help())
        return 0
    try:
        options, unknown = parser.parse_known_args(list(argv))
        refuse_unknown(parser, unknown)
        known = stream_flags()
        profiles = load_profiles(options.profile, known)
    except ValueError as error:
        print(f"{_PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([_described(each, known) for each in profiles], indent=1))
    else:
        one = len(profiles) == 1
        shown = Text(_whole(profiles[0], known)) if one else _table(profiles, known)
        Console().print(shown, soft_wrap=one)
    return 0

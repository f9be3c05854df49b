"""Profiles: what they put in, what they are refused for, and what may not stand together."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.pipelines import strategies
from beam_lateness.pipelines.contradictions import CONFIRMABLE, check_contradictions
from beam_lateness.pipelines.flink.options import FlinkOptions, truth
from beam_lateness.pipelines.options import StreamOptions, read_config
from beam_lateness.pipelines.profiles import (
    Profile,
    apply_profile,
    load_profile,
    load_profiles,
    main,
    stream_flags,
)
from tests.jobs import write_lines

NAMES: Final = ("fraud_alerts", "ops_dashboard", "settlement", "regulatory_audit", "hybrid")

# Flags of `stream` that profiles rest on, here too while the job's own options are without them.
NEW: Final = ("profile", "mode", "audit", "confirm", "table")
KNOWN: Final = {**stream_flags(), "mode": True, "audit": True, "table": True}

MINE: Final = """
[mine]
description = "Mine."
must_balance = false

[mine.flags]
bound = "7s"
num_shards = 4
follow = true
watermark = "bounded"
"""

# What may be said on the command line, with values that no profile has.
SAID: Final[Mapping[str, tuple[str, ...]]] = {
    "window": ("5m", "10s"),
    "bound": ("1s", "3s"),
    "allowed_lateness": ("1h", "7s"),
    "too_late": ("emit", "drop"),
    "num_shards": ("2", "8"),
    "key_field": ("account", "a b"),
    "mode": ("upsert", "append"),
    "audit": ("true", "false"),
}

Capture = pytest.CaptureFixture[str]


def parser_of(**defaults: str) -> argparse.ArgumentParser:
    """The parser of the job's flags, and those to come, with other defaults."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    StreamOptions._add_argparse_args(parser)
    for name in NEW:
        if f"--{name}" not in parser._option_string_actions:
            parser.add_argument(f"--{name}", type=truth if name == "audit" else str)
    parser.set_defaults(**defaults)
    return parser


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a profile of the user's own."""
    path = tmp_path_factory.mktemp("profiles") / "mine.toml"
    path.write_text(MINE)
    return str(path)


def written(folder: Path, text: str) -> str:
    """Writes a file of profiles."""
    path = folder / "own.toml"
    path.write_text(text)
    return str(path)


def forms(flag: str) -> st.SearchStrategy[list[str]]:
    """A flag with one of its values, in one of its two forms."""
    values = st.sampled_from(SAID[flag])
    return st.one_of(
        values.map(lambda value: [f"--{flag}={value}"]),
        values.map(lambda value: [f"--{flag}", value]),
    )


command_lines: Final = st.lists(st.sampled_from(sorted(SAID)).flatmap(forms), max_size=8)


@settings(deadline=None)
@given(data=st.data(), said=command_lines, name=st.sampled_from((*NAMES, "mine")))
def test_the_command_lines_flags_count_and_elsewhere_the_profiles(
    mine: str, data: st.DataObject, said: list[list[str]], name: str
) -> None:
    """As if they were the defaults of argparse; the last of repeated ones wins, of profiles too."""
    text = mine if name == "mine" else name
    said.insert(data.draw(st.integers(0, len(said))), ["--profile", text])
    argv = ["--profile=hybrid", *(word for words in said for word in words)]
    parsed = parser_of().parse_args(apply_profile(argv, KNOWN)[0])
    defaults: dict[str, Any] = dict(load_profile(text).flags)
    if "follow" in defaults:
        defaults["follow"] = True
    assert parsed == parser_of(**defaults).parse_args(argv)


@settings(deadline=None)
@given(said=command_lines, name=st.sampled_from(NAMES))
def test_a_profile_applied_twice_is_applied_once(said: list[list[str]], name: str) -> None:
    """What it has put in is on the command line then."""
    argv = [f"--profile={name}", *(word for words in said for word in words)]
    once, profile = apply_profile(argv, KNOWN)
    assert apply_profile(once, KNOWN) == (once, profile)


@given(said=command_lines)
def test_without_a_profile_the_command_line_stays_as_it_is(said: list[list[str]]) -> None:
    """Nothing is put in."""
    argv = [word for words in said for word in words]
    assert apply_profile(argv, KNOWN) == (argv, None)


def test_an_input_on_the_command_line_is_not_added_to_the_profiles(tmp_path: Path) -> None:
    """A repeatable flag overrides too."""
    own = written(tmp_path, '[own.flags]\ninput = "theirs.jsonl"\n')
    flags = apply_profile([f"--profile={own}", "--input", "a.jsonl", "--input=b.jsonl"], KNOWN)[0]
    assert parser_of().parse_args(flags).input == ["a.jsonl", "b.jsonl"]


def test_another_watermark_on_the_command_line_takes_the_profiles_bound_away() -> None:
    """Else the job would refuse a bound that nobody gave."""
    argv = ["--profile=settlement", "--watermark", "monotonous"]
    flags = apply_profile(argv, KNOWN)[0]
    assert "bound" not in {word.lstrip("-").split("=")[0] for word in flags}
    assert "--allowed_lateness=2m" in flags
    assert "--bound=30s" in apply_profile([*argv, "--watermark=bounded"], KNOWN)[0]


def test_every_flag_of_one_kind_of_watermark_is_taken_away_with_it(tmp_path: Path) -> None:
    """A new one must be named in `profiles` too."""
    own_flags = {*sum((*strategies._NEEDS.values(), *strategies._MAY.values()), ())}
    lines = "".join(f'{flag} = "1s"\n' for flag in own_flags)
    own = written(tmp_path, f"[own.flags]\n{lines}")
    argv = [f"--profile={own}", "--watermark=none"]
    assert apply_profile(argv, KNOWN)[0] == argv


def test_a_switch_that_is_off_is_left_out(tmp_path: Path) -> None:
    """It takes no value."""
    own = written(tmp_path, "[own.flags]\nfollow = false\naudit = false\n")
    assert apply_profile([f"--profile={own}"], KNOWN)[0] == ["--audit=false", f"--profile={own}"]


@pytest.mark.parametrize("argv", [["--profile"], ["--profile="], ["--profile", "--bound=1s"]])
def test_a_profile_without_a_value_is_refused(argv: list[str]) -> None:
    """It is not taken for none."""
    with pytest.raises(ValueError, match=r"--profile needs a value: .*FILE\.toml:NAME"):
        apply_profile(argv, KNOWN)


def test_a_file_of_several_profiles_needs_a_name(tmp_path: Path) -> None:
    """And gives the one that is named."""
    own = written(tmp_path, "[a.flags]\nbound = '1s'\n[b.flags]\nbound = '2s'\n")
    assert load_profile(f"{own}:b") == Profile("b", own, {"bound": "2s"})
    with pytest.raises(ValueError, match=r"several profiles \(a, b\): name one, .*own\.toml:a"):
        load_profile(own)
    with pytest.raises(ValueError, match=r"called 'c': there are a, b; "):
        load_profile(f"{own}:c")


def test_a_profile_must_balance_unless_it_says_not(tmp_path: Path, mine: str) -> None:
    """What is left out is read on the safe side."""
    assert load_profile(written(tmp_path, "[a.flags]\nbound = '1s'\n")).must_balance
    assert not load_profile(mine).must_balance


def test_what_a_profile_may_set_are_flags_of_the_job_but_those_of_who_runs_it() -> None:
    """Neither another profile nor a confirmation."""
    parser = parser_of()
    FlinkOptions._add_argparse_args(parser)
    spelt = {name.removeprefix("--") for name in parser._option_string_actions}
    assert {"bound", "input", "follow"} <= stream_flags().keys() <= spelt
    assert {"help", "profile", "confirm"}.isdisjoint(stream_flags())


FLAGS: Final = "\n[own.flags]\nbound = '1s'\n"

# A file, and what its one error line must tell: file, key, value, rule or near match, remedy.
WRONG: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "no TOML": ("bound = 5s", ("is no TOML", "line 1", "correct")),
    "nothing": ("", ("holds no profile", "[NAME.flags]")),
    "no table": ("bound = '1s'", ("bound = '1s'", "[NAME] table")),
    "no flags": ("[own]\ndescription = 'x'", ("[own]", "sets no flags", "[own.flags]")),
    "unknown key": (
        f"[own]\ndescripton = 'x'{FLAGS}",
        ("[own] descripton = 'x'", "unknown key", "did you mean description?", "take it out"),
    ),
    "number as text": (f"[own]\ncosts = 7{FLAGS}", ("[own] costs = 7", "text, in quotes")),
    "text as truth": (
        f"[own]\nmust_balance = 'no'{FLAGS}",
        ("[own] must_balance = 'no'", "true or false", "without quotes"),
    ),
    "flags that are none": ("[own]\nflags = 'x'", ("[own] flags = 'x'", "[NAME.flags]")),
    "unknown flag": (
        "[own.flags]\nalowed_lateness = '1s'",
        ("[own.flags] alowed_lateness = '1s'", "did you mean allowed_lateness?", "--help"),
    ),
    "list": ("[own.flags]\ninput = ['a']", ("[own.flags] input = ['a']", "text, a number")),
    "switch with a value": (
        "[own.flags]\nfollow = 'yes'",
        ("[own.flags] follow = 'yes'", "takes no value", "write true"),
    ),
    "duration without unit": ("[own.flags]\nbound = 5", ("[own.flags] bound", "'5'", "unit")),
    "profile in a profile": ("[own.flags]\nprofile = 'x'", ("profile = 'x'", "take it out")),
    "confirmed by a file": ("[own.flags]\nconfirm = 'x'", ("confirm = 'x'", "command line")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_profile_is_refused_with_file_key_value_and_remedy(
    tmp_path: Path, wrong: str
) -> None:
    """In one line."""
    text, told = WRONG[wrong]
    own = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"own\.toml") as caught:
        apply_profile([f"--profile={own}"], KNOWN)
    assert [part for part in told if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("setlement", ("'setlement'", "did you mean settlement?", "hybrid", "FILE.toml")),
        ("absent.toml", ("absent.toml cannot be read", "No such file")),
    ],
)
def test_a_profile_that_is_not_there_is_refused(name: str, told: Sequence[str]) -> None:
    """The message names those that are."""
    with pytest.raises(ValueError, match="--profile=") as caught:
        apply_profile(["--profile", name], KNOWN)
    assert [part for part in told if part not in str(caught.value)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_built_in_profile_sets_flags_of_the_job_and_makes_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With input, key, value and outputs of the user's."""
    monkeypatch.chdir(tmp_path)
    write_lines(Path("in.jsonl"), [{"account": "a", "amount": 5, "event_time": 1}])
    yours = ["--input=in.jsonl", "--key_field=account", "--value_field=amount"]
    yours += ["--output=sqlite:///w.db", "--dead_letters=dead"]
    flags, profile = apply_profile([f"--profile={name}", *yours], KNOWN)
    assert profile is not None
    assert set(profile.flags) <= set(KNOWN)
    assert all((profile.description, profile.protects, profile.costs))
    parsed = parser_of().parse_args(flags)
    old = [flag for flag in flags if flag.split("=")[0].lstrip("-") not in NEW]
    config = read_config(PipelineOptions(old).view_as(StreamOptions))
    assert config.windows.size_ms == 60_000
    assert config.windows.allowed_lateness_ms == profile.costs_ms()["corrections_ms"]
    lateness = config.windows.allowed_lateness_ms
    given = (parsed.mode, lateness, config.emit_too_late, str(parsed.audit).lower() == "true")
    assert check_contradictions(profile, *given, True, set()) == []


def test_the_three_decisions_of_one_stream_are_three_profiles() -> None:
    """Worked case W3: settlement, dashboard and audit."""
    told = ("allowed_lateness", "too_late", "mode", "audit")
    assert {
        name: tuple(load_profile(name).flags.get(flag) for flag in told)
        for name in ("settlement", "ops_dashboard", "regulatory_audit")
    } == {
        "settlement": ("2m", "emit", "upsert", None),
        "ops_dashboard": ("0s", "drop", "append", None),
        "regulatory_audit": ("5m", "emit", "upsert", "true"),
    }


def judge(
    name: str | None = None,
    mode: str = "upsert",
    lateness_ms: int = 0,
    emit: bool = True,
    audit: bool = False,
    database: bool = True,
    confirmed: Collection[str] = (),
) -> list[str]:
    """Checks settings that are free of contradictions but for what is given."""
    profile = None if name is None else load_profile(name)
    return check_contradictions(profile, mode, lateness_ms, emit, audit, database, set(confirmed))


def test_append_with_lateness_is_refused_unless_it_is_confirmed() -> None:
    """Worked case W2: the sum over the rows is too large then."""
    with pytest.raises(ValueError, match="--mode=append with --allowed_lateness=2m") as caught:
        judge("settlement", mode="append", lateness_ms=120_000)
    told = ("(profile settlement)", "twice", "--mode=upsert", "--allowed_lateness=0s")
    assert all(part in str(caught.value) for part in (*told, "--confirm=append_double_counts"))
    warnings = judge(mode="append", lateness_ms=1, confirmed=["append_double_counts"])
    assert len(warnings) == 1
    assert warnings[0].startswith("WARNING: --mode=append with --allowed_lateness=1ms")


def test_dropping_where_the_profile_must_balance_is_refused_unless_confirmed() -> None:
    """Without such a profile it is the user's choice."""
    with pytest.raises(ValueError, match=r"--too_late=drop .*must balance") as caught:
        judge("hybrid", emit=False)
    told = ("hybrid", "--too_late=emit", "--dead_letters", "--confirm=drops_too_late")
    assert all(part in str(caught.value) for part in told)
    assert "missing" in judge("hybrid", emit=False, confirmed=["drops_too_late"])[0]
    assert judge("fraud_alerts", emit=False) == judge(emit=False) == []


def test_each_contradiction_is_confirmed_by_itself() -> None:
    """One word does not confirm the other."""
    both = {"name": "hybrid", "mode": "append", "lateness_ms": 1, "emit": False}
    for word, other in zip(CONFIRMABLE, reversed(CONFIRMABLE), strict=True):
        with pytest.raises(ValueError, match=f"--confirm={other}"):
            judge(**both, confirmed=[word])  # type: ignore[arg-type]
    assert len(judge(**both, confirmed=CONFIRMABLE)) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "database"), [("append", True), ("upsert", False)])
def test_an_audit_needs_upserts_into_a_database_whatever_is_confirmed(
    mode: str, database: bool
) -> None:
    """There would be no trail."""
    to = "a database" if database else "a topic"
    with pytest.raises(ValueError, match=f"--audit=true .*--mode={mode} to {to}") as caught:
        judge(mode=mode, lateness_ms=1, audit=True, database=database, confirmed=CONFIRMABLE)
    assert "give --mode=upsert and --output=sqlite:///FILE, or --audit=false" in str(caught.value)


@pytest.mark.parametrize("word", [*CONFIRMABLE, "everything", ""])
def test_a_word_that_confirms_nothing_is_refused(word: str) -> None:
    """It would confirm what comes later, unseen."""
    with pytest.raises(ValueError, match=f"--confirm={word} confirms nothing") as caught:
        judge("hybrid", confirmed=[word])
    assert all(known in str(caught.value) for known in (*CONFIRMABLE, "leave it out"))


def test_the_table_shows_what_each_profile_sets_protects_and_costs(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that are built in."""
    monkeypatch.setenv("COLUMNS", "1000")
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert tuple(each.name for each in load_profiles()) == NAMES
    for each in load_profiles():
        assert all(text in shown for text in (each.name, each.protects, each.costs))
        assert all(flag in shown for flag in each.arguments(KNOWN))
    assert "about 30s after the window's end, corrected for 2m; state of about 3m" in shown
    assert "about 200ms after the window's end, never corrected; state of about 1m" in shown


@pytest.mark.parametrize("name", [*NAMES, "mine"])
def test_one_profile_is_shown_whole_with_the_command_that_it_stands_for(
    capsys: Capture, mine: str, name: str
) -> None:
    """The command's flags are those that the profile puts in; JSON tells the same."""
    text = mine if name == "mine" else name
    put_in = apply_profile([f"--profile={text}"], KNOWN)[0][:-1]
    assert main([text]) == 0
    shown = capsys.readouterr().out
    assert shlex.split(shown.splitlines()[-1]) == ["beam-lateness", "stream", *put_in]
    assert ("--dead_letters" in shown) == ("--too_late=emit" in put_in)
    assert main([text, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    profile = load_profile(text)
    assert told["name"] == profile.name
    assert told["flags"] == profile.flags
    assert shlex.split(told["command"])[2:] == put_in
    assert all(told[key] in shown for key in ("description", "protects", "costs", "source"))


@pytest.mark.parametrize("argv", [["nobody"], ["--jsn"], ["absent.toml"], ["a", "b"]])
def test_a_wrong_command_is_one_line_and_exit_code_2(capsys: Capture, argv: list[str]) -> None:
    """Nothing is shown."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("beam-lateness profiles: error: ")
    assert captured.err.count("\n") == 1

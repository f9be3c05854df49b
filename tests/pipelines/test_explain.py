"""The command `explain`: what it shows of an input, what it leaves alone, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apache_beam as beam
import pytest

from beam_lateness.pipelines import explain as command
from beam_lateness.pipelines.cli import main
from beam_lateness.transforms.sources.connector import SplitPosition
from beam_lateness.transforms.sources.files import Files
from tests.jobs import HOUR_MS, write_lines

TEN_MS: Final = 1_767_261_600_000  # 2026-01-01 10:00
FLAGS: Final = ("--key_field=account", "--value_field=amount", "--bound=10s")
BOTH: Final = ("--input=ahead.jsonl", "--input=behind.jsonl", *FLAGS)

Capture = pytest.CaptureFixture[str]


class Shown(NamedTuple):
    """What the command printed: the table's rows by split, the watermark, and the reasons."""

    rows: dict[str, list[str]]
    watermark: str
    reasons: list[str]


def record(at_ms: int) -> dict[str, Any]:
    """A record."""
    return {"account": "a", "amount": 5, "event_time": at_ms}


def write(name: str, *at_ms: int) -> None:
    """Writes a file of records into the working directory."""
    write_lines(Path(name), [record(each) for each in at_ms])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two files an hour apart, and a wide terminal; no pipeline runs."""

    def refuse(self: object, *args: object) -> None:
        pytest.fail("a pipeline ran")

    monkeypatch.setattr(beam.Pipeline, "run", refuse)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write("ahead.jsonl", *range(TEN_MS, TEN_MS + 60_000, 1_000))
    write("behind.jsonl", *range(TEN_MS - HOUR_MS, TEN_MS - HOUR_MS + 60_000, 2_000))
    return tmp_path


def read(printed: str) -> Shown:
    """Reads what was printed."""
    table, _, rest = printed.partition("\n\n")
    watermark, *reasons = rest.splitlines()
    lines = table.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("split "))
    rows = [line.split("  ") for line in lines[head + 1 :]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return Shown({row[0]: row[1:] for row in cells}, watermark, reasons)


def shown(capsys: Capture, flags: Sequence[str]) -> Shown:
    """Runs the command, which must succeed, and reads what it printed."""
    assert main(["explain", *flags]) == 0
    return read(capsys.readouterr().out)


def refused(capsys: Capture, flags: Sequence[str]) -> str:
    """Runs the command, which must refuse its flags in one line, and gives that line."""
    assert main(["explain", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("beam-lateness explain: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_split_that_holds_the_watermark_is_marked(capsys: Capture) -> None:
    """Each has its state, records, largest event time, watermark, and how far it is behind."""
    found = shown(capsys, BOTH)
    assert found.rows == {
        "ahead.jsonl": [
            "finished",
            "60",
            "10:00:59.000Z",
            "10:00:49.000Z",
            "0s",
        ],
        "behind.jsonl *": [
            "finished",
            "30",
            "09:00:58.000Z",
            "09:00:48.000Z",
            "1h1s",
        ],
    }
    assert found.watermark == "watermark: 2026-01-01 09:00:48.000Z (bound 10s)"
    assert found.reasons == ["- behind.jsonl holds it back: it is 1h1s behind ahead.jsonl"]


def test_one_split_alone_moves_the_watermark(capsys: Capture) -> None:
    """Nothing is wrong with that."""
    found = shown(capsys, ["--input=ahead.jsonl", *FLAGS])
    assert list(found.rows) == ["ahead.jsonl *"]
    assert found.reasons == ["- ahead.jsonl alone moves the watermark"]


def test_a_bound_longer_than_the_input_is_a_reason(capsys: Capture) -> None:
    """No window can have fired."""
    flags = ["--input=ahead.jsonl", *FLAGS[:2], "--bound=1h"]
    (_, reason) = shown(capsys, flags).reasons
    assert "bound of 1h is longer than all event times read so far span" in reason


def test_a_strategy_without_a_watermark_has_none_to_show(capsys: Capture) -> None:
    """Dashes, and the reason."""
    found = shown(capsys, [*BOTH[:4], "--watermark=none"])
    assert {tuple(row[3:]) for row in found.rows.values()} == {("-", "-")}
    assert found.watermark == "watermark: -"
    assert found.reasons == [
        "- this strategy reports no watermark: windows fire when the input ends"
    ]


def test_a_split_without_a_marker_holds_the_watermark(capsys: Capture) -> None:
    """It is named with its records and the field that was looked for."""
    write_lines(
        Path("marked.jsonl"),
        [record(TEN_MS), {"end": True, "event_time": TEN_MS}, record(TEN_MS + 1)],
    )
    flags = ["--input=marked.jsonl", "--input=behind.jsonl", *FLAGS[:2]]
    found = shown(capsys, [*flags, "--watermark=punctuated", "--marker_field=end"])
    assert found.rows["marked.jsonl"][3] == "10:00:00.001Z"
    assert found.rows["behind.jsonl *"][3] == "-"
    (reason,) = found.reasons
    assert "behind.jsonl holds it back: among 30 records there was no marker" in reason
    assert "'end'" in reason


def test_merged_splits_have_no_holder(capsys: Capture) -> None:
    """All of them together move one watermark."""
    found = shown(capsys, [*BOTH, "--split_watermarks=merged"])
    assert set(found.rows) == {"ahead.jsonl", "behind.jsonl"}
    assert found.watermark == "watermark: 2026-01-01 10:00:49.000Z (bound 10s)"
    assert found.reasons == ["- the splits are merged: all of them together move one watermark"]


def test_invalid_lines_are_a_reason(capsys: Capture) -> None:
    """Counted by reason, since they move no watermark."""
    lines: list[bytes | Mapping[str, Any]] = [b"bad", b"{", record(TEN_MS), b'{"account": "a"}']
    write_lines(Path("bad.jsonl"), lines)
    found = shown(capsys, ["--input=bad.jsonl", *FLAGS])
    assert found.rows["bad.jsonl *"][1] == "1"
    assert found.reasons[-1] == (
        "- invalid lines move no watermark: 2 malformed_json, 1 missing_event_time"
    )


@pytest.mark.parametrize("name", ["[bold]x.jsonl", "[x].jsonl", ":x:.jsonl", "x y.jsonl"])
def test_names_are_shown_as_they_are(capsys: Capture, name: str) -> None:
    """Brackets are no markup, and colons no emoji."""
    write(name, TEN_MS - 2 * HOUR_MS, TEN_MS - HOUR_MS)
    found = shown(capsys, ["--input=*x*.jsonl", "--input=ahead.jsonl", *FLAGS])
    assert set(found.rows) == {f"{name} *", "ahead.jsonl"}
    assert found.reasons == [f"- {name} holds it back: it is 1h59s behind ahead.jsonl"]


def test_a_terminal_of_80_columns_shows_everything_whole(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what a pipe is taken for: no word of the table is cut or broken."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", *BOTH]) == 0
    printed = capsys.readouterr().out
    whole = ("ahead.jsonl", "behind.jsonl *", "finished", "records", "10:00:49.000Z", "1h1s")
    assert [word for word in whole if word not in printed.partition("\n\n")[0]] == []


def test_the_report_holds_what_the_table_shows(capsys: Capture, folder: Path) -> None:
    """As JSON, times in ms."""
    found = shown(capsys, [*BOTH, "--report=why.json"])
    report = json.loads((folder / "why.json").read_text())
    assert report["held_by"] == "behind.jsonl"
    assert report["watermark_ms"] == TEN_MS - HOUR_MS + 48_000
    assert report["behind_ms"] == HOUR_MS + 1_000
    assert report["bound_ms"] == 10_000
    assert report["invalid"] == {}
    assert [f"- {reason}" for reason in report["reasons"]] == found.reasons
    assert report["splits"][1] == {
        "split": "behind.jsonl",
        "state": "finished",
        "records": 30,
        "min_event_time_ms": TEN_MS - HOUR_MS,
        "max_event_time_ms": TEN_MS - HOUR_MS + 58_000,
        "watermark_ms": TEN_MS - HOUR_MS + 48_000,
    }
    states = {split["split"]: split["state"] for split in report["splits"]}
    assert states == {name.removesuffix(" *"): row[0] for name, row in found.rows.items()}


def test_the_flags_of_stream_are_taken_and_no_output_is_touched(
    capsys: Capture, folder: Path
) -> None:
    """The same line, another command: no table, no dead letters, and no pipeline."""
    files = set(folder.iterdir())
    outputs = ("--output=sqlite:///windows.db", "--dead_letters=dead", "--too_late=emit")
    windows = ("--window=1m", "--allowed_lateness=2m", "--aggregate=sum,max", "--num_shards=2")
    flags = [*BOTH, *outputs, *windows, "--runner=PrismRunner", "--prism_location=nowhere"]
    assert shown(capsys, flags) == shown(capsys, BOTH)
    assert set(folder.iterdir()) == files


def test_a_paced_replay_is_read_at_once(capsys: Capture) -> None:
    """Who asks why does not wait a minute for the answer."""
    assert shown(capsys, [*BOTH, "--replay_speed=1"]) == shown(capsys, BOTH)


def test_a_followed_input_is_read_once_without_a_watch(capsys: Capture) -> None:
    """What is there, and that a silent file would hold the others."""
    found = shown(capsys, [*BOTH, "--follow"])
    assert {row[0] for row in found.rows.values()} == {"active"}
    assert found.reasons[0] == "- behind.jsonl holds it back: it is 1h1s behind ahead.jsonl"
    assert "--idle_timeout" in found.reasons[1]


def test_a_watched_folder_shows_the_silent_file_as_idle(
    capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another one speaks, and holds the watermark alone. A real watch of a second."""
    inputs = folder / "inputs"
    inputs.mkdir()
    write("inputs/silent.jsonl", TEN_MS - HOUR_MS)
    write("inputs/speaks.jsonl", TEN_MS)
    look = Files.initial_positions

    def spoken(self: Files) -> dict[str, SplitPosition]:
        with (inputs / "speaks.jsonl").open("a") as file:  # at every poll
            file.write(json.dumps(record(TEN_MS + 60_000)) + "\n")
        return look(self)

    monkeypatch.setattr(Files, "initial_positions", spoken)
    flags = ("--input=inputs", "--follow", "--idle_timeout=300ms", "--watch=1s")
    found = shown(capsys, [*FLAGS, *flags, "--report=why.json"])
    assert found.rows["silent.jsonl"][:2] == ["idle", "1"]
    assert found.rows["speaks.jsonl *"][0] == "active"
    assert found.watermark == "watermark: 2026-01-01 10:00:50.000Z (bound 10s)"
    report = json.loads((folder / "why.json").read_text())
    assert report["held_by"] == "inputs/speaks.jsonl"
    assert 0 < report["standing_s"] < 1.5
    assert not any("holds it back" in reason for reason in found.reasons)


def test_a_watch_of_a_finite_input_is_refused(capsys: Capture) -> None:
    """It is read to its end anyway."""
    error = refused(capsys, [*BOTH, "--watch=1m"])
    assert "--watch=1m needs --follow" in error


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((*BOTH, "--follow", "--watch=soon"), ("--watch", "'soon'", "unit")),
        ((*BOTH, "--wach=1m"), ("unknown flag '--wach=1m'", "--watch?")),
        ((*BOTH, "--bond=10s"), ("unknown flag '--bond=10s'", "--bound?")),
        ((*BOTH, "--watch"), ("--watch",)),
        (BOTH[:4], ("--watermark=bounded", "--bound")),
        (FLAGS, ("--input", "required")),
        (("--input=ahead.jsonl", "--bound=1s"), ("--key_field", "required")),
        (("--input=absent.jsonl", *FLAGS), ("--input", "'absent.jsonl'", "no file")),
        (("--input=ahead.jsonl", "--key_field=acount", "--bound=1s"), ("'acount'", "account")),
        ((*BOTH, "--report=absent/why.json"), ("--report", "absent/why.json", "folder")),
        ((*BOTH, "--report=."), ("--report", "'.'")),
    ],
    ids=[
        "watch without unit",
        "misspelt watch",
        "misspelt bound",
        "watch without value",
        "no bound",
        "no input",
        "no key",
        "no file",
        "unknown field",
        "report nowhere",
        "report to a folder",
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: Capture, flags: tuple[str, ...], told: tuple[str, ...]
) -> None:
    """Flag, value, rule and remedy, and nothing is shown."""
    error = refused(capsys, flags)
    assert [word for word in told if word not in error] == [], error


def test_stream_does_not_know_the_watch(capsys: Capture) -> None:
    """A flag of `explain` alone is an unknown one of `stream`."""
    assert main(["stream", *BOTH, "--follow", "--watch=1m"]) == 2
    assert "unknown flag '--watch=1m'" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--help"], ["-h"], [*BOTH, "--help"]])
def test_help_lists_the_flags(capsys: Capture, flags: list[str]) -> None:
    """Its own and those of `stream`."""
    assert main(["explain", *flags]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: beam-lateness explain")
    for flag in ("--watch ", "--input ", "--bound ", "--idle_timeout ", "--report "):
        assert flag in printed


def test_the_command_is_in_the_usage(capsys: Capture) -> None:
    """Beside `stream`."""
    assert main(["--help"]) == 0
    assert "\n  explain " in capsys.readouterr().out


def test_an_interrupt_ends_it_with_its_code(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it ends `stream`."""

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "explain", interrupted)
    assert main(["explain", *BOTH]) == 130
    assert capsys.readouterr().err == ""

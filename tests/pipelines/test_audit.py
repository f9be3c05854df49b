"""`beam-lateness audit`: verifies a job's trail, and shows how a window came to its value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import text

from beam_lateness import Pane
from beam_lateness.pipelines.cli import main
from beam_lateness.transforms.database import open_database
from beam_lateness.transforms.sinks.window_table import WindowTable
from tests.jobs import EMBEDDED, write_lines
from tests.pipelines.test_timeline import FLAGS, TEN, TIMELINE

if TYPE_CHECKING:
    from services.postgres_server import PostgresServer

STORES: Final = ["sqlite", pytest.param("postgresql", marks=pytest.mark.live)]
_NUMBERS: Final = itertools.count()

Capture = pytest.CaptureFixture[str]
Run = Callable[..., int]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'windows.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_database(f"audit_{next(_NUMBERS)}")


def stream(url: str, folder: Path, *flags: str) -> int:
    """Runs the timeline (W1) into an audited table, line by line."""
    path = write_lines(folder / "w1.jsonl", TIMELINE)
    own = [f"--input={path}", f"--output={url}", f"--dead_letters={folder / 'dead'}"]
    own += [f"--runner={EMBEDDED}", "--block_bytes=1", "--too_late=emit"]
    return main(["stream", *own, *FLAGS, "--allowed_lateness=2m", "--audit=true", *flags])


def audit(url: str, action: str, *flags: str) -> int:
    """Runs the command."""
    return main(["audit", action, f"--output={url}", *flags])


def change(url: str, sql: str) -> None:
    """Changes the database by hand."""
    engine = open_database(url, "output")
    with engine.begin() as connection:
        connection.execute(text(sql))
    engine.dispose()


def test_a_trail_that_nobody_touched_is_whole(url: str, tmp_path: Path, capsys: Capture) -> None:
    """Exit code 0, how many entries there are, and the head; the job told the same head."""
    assert stream(url, tmp_path) == 0
    told = capsys.readouterr().out
    assert audit(url, "verify") == 0
    printed = capsys.readouterr().out
    first, second = printed.splitlines()
    count, _, head = first.partition(" entries, whole; head: ")
    assert (count, head.partition(":")[0]) == ("3", "3")
    assert "keep the head elsewhere" in second
    assert f"audit trail: {head}" in told
    assert audit(url, "verify", f"--head={head}") == 0


EDITS: Final = {
    "entry 2 was changed": "update windows_audit set new_value = '1' where seq = 2",
    "entries 2 to 2 are gone": "delete from windows_audit where seq = 2",
    "ends with entry 2": "delete from windows_audit where seq = 3",
    "the head of the audit trail is gone": "delete from windows_audit_head",
    "the row has 7 of 4 records": "update windows set value = 7",
    "the row is gone": "delete from windows",
    "the table 'windows' is gone": "drop table windows",
}


@pytest.mark.parametrize(("told", "sql"), EDITS.items(), ids=EDITS)
def test_what_was_changed_by_hand_is_exit_code_1(
    url: str, tmp_path: Path, capsys: Capture, told: str, sql: str
) -> None:
    """Each problem is a line."""
    stream(url, tmp_path)
    change(url, sql)
    capsys.readouterr()
    assert audit(url, "verify") == 1
    *problems, verdict = capsys.readouterr().out.splitlines()
    assert any(told in problem for problem in problems)
    assert " entries, NOT whole; head: " in verdict


def test_a_trail_that_goes_not_through_a_noted_head_is_exit_code_1(
    tmp_path: Path, capsys: Capture
) -> None:
    """Though it is whole by itself."""
    url = f"sqlite:///{tmp_path / 'windows.db'}"
    stream(url, tmp_path)
    capsys.readouterr()
    for number, told in (("2", "entry 2 is not the one that was noted"), ("9", "is gone")):
        assert audit(url, "verify", f"--head={number}:{'a' * 64}") == 1
        assert told in capsys.readouterr().out


def test_a_second_run_goes_on_with_the_trail(url: str, tmp_path: Path) -> None:
    """It replaces the rows of the first one, and each replacement is an entry."""
    assert [stream(url, tmp_path), stream(url, tmp_path), audit(url, "verify")] == [0, 0, 0]


def shown(url: str, capsys: Capture, *flags: str) -> list[str]:
    """Gives the lines that are shown."""
    capsys.readouterr()
    assert audit(url, "show", *flags) == 0
    return capsys.readouterr().out.splitlines()


def test_how_a_window_came_to_its_value_is_shown(url: str, tmp_path: Path, capsys: Capture) -> None:
    """A line a change: values, records, cause, watermark, run and the late records' ids."""
    stream(url, tmp_path)
    lines = shown(url, capsys)
    window = "ACC-001 [2026-01-01 10:00:00.000Z, 2026-01-01 10:01:00.000Z): "
    for line, number, told, watermark in (
        (lines[0], 1, "- -> 80000 (0 -> 2 records; on_time, ", "10:01:00.000Z"),
        (lines[1], 2, "80000 -> 85000 (2 -> 3 records; late, ", "10:01:00.001Z"),
        (lines[2], 3, "85000 -> 86000 (3 -> 4 records; late, ", "10:02:30.001Z"),
    ):
        assert line.startswith(f"#{number} ")
        assert f"{window}{told}2026-01-01 {watermark}, run " in line
    assert "record_ids" not in lines[0]
    assert [line.rpartition(" ")[2] for line in lines[1:]] == [
        '{"record_ids":["late"]}',
        '{"record_ids":["later"]}',
    ]


def test_only_a_key_and_a_window_are_shown_if_they_are_given(
    tmp_path: Path, capsys: Capture
) -> None:
    """Nothing where there is none; a key may be anything."""
    url = f"sqlite:///{tmp_path / 'windows.db'}"
    odd = "[red]'x'; --"
    more = {"id": "odd", "account": odd, "amount": 1, "event_time": TEN + 60_000}
    path = write_lines(tmp_path / "more.jsonl", [more])
    stream(url, tmp_path, f"--input={path}")
    for flags, count in (
        ((), 4),
        (("--key=ACC-001",), 3),
        ((f"--key={odd}",), 1),
        ((f"--window_start_ms={TEN}",), 3),
        (("--key=ACC-001", f"--window_start_ms={TEN}"), 3),
        (("--key=ACC-001", f"--window_start_ms={TEN + 60_000}"), 0),
        (("--key=nobody",), 0),
    ):
        assert len(shown(url, capsys, *flags)) == count, flags
    assert odd in shown(url, capsys, f"--key={odd}")[0]


@pytest.mark.parametrize("action", ["verify", "show"])
def test_a_table_without_a_trail_is_exit_code_2(
    url: str, tmp_path: Path, capsys: Capture, action: str
) -> None:
    """With the remedy, for a table that is there and for one that is not."""
    stream(url, tmp_path, "--audit=false")
    for flags in ((), ("--table=other",)):
        capsys.readouterr()
        assert audit(url, action, *flags) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("beam-lateness audit: error: ")
        assert "has no audit trail" in line
        assert "--audit=true" in line


WRONG: Final[Sequence[tuple[tuple[str, ...], str]]] = [
    (("--head=5",), "head (--head) must be SEQ:HASH"),
    (("--hed=5",), "--hed"),
    (("--output=windows.db",), "output (--output) must be a database URL"),
    (("--output=sqlite:////no/such/folder/db",), "is not there"),
]


@pytest.mark.parametrize(("flags", "told"), WRONG, ids=str)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: Capture, flags: tuple[str, ...], told: str
) -> None:
    """Nothing is shown."""
    url = f"sqlite:///{tmp_path / 'windows.db'}"
    stream(url, tmp_path)
    capsys.readouterr()
    assert audit(url, "verify", *flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("action", ["verify", "show"])
def test_a_file_that_is_no_database_is_exit_code_2(
    tmp_path: Path, capsys: Capture, action: str
) -> None:
    """By the flag's name."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, but a text of some length " * 99)
    assert audit(f"sqlite:///{path}", action) == 2
    assert "output (--output)" in capsys.readouterr().err


def test_a_table_with_a_trail_is_not_written_without_one(
    url: str, tmp_path: Path, capsys: Capture
) -> None:
    """Exit code 2 before anything runs; table and trail stay as they were."""
    stream(url, tmp_path)
    before = shown(url, capsys)
    assert stream(url, tmp_path, "--audit=false") == 2
    assert "has an audit trail" in capsys.readouterr().err
    assert shown(url, capsys) == before
    assert audit(url, "verify") == 0


def test_a_late_record_without_an_id_is_named_by_its_place(tmp_path: Path, capsys: Capture) -> None:
    """In a file whose name is no UTF-8 too."""
    url = f"sqlite:///{tmp_path / 'windows.db'}"
    lines = [{key: x for key, x in line.items() if key != "id"} for line in TIMELINE]
    write_lines(tmp_path / "kept.jsonl", lines)
    (tmp_path / "kept.jsonl").rename(tmp_path / "odd-\udcff.jsonl")
    path = tmp_path / "odd-\udcff.jsonl"
    own = [f"--input={path}", f"--output={url}", f"--dead_letters={tmp_path / 'dead'}"]
    own += [f"--runner={EMBEDDED}", "--too_late=emit", "--allowed_lateness=2m", "--audit=true"]
    flags = [flag for flag in FLAGS if not flag.startswith("--id_field")]
    assert main(["stream", *own, *flags]) == 0
    assert r"odd-\\udcff.jsonl:" in shown(url, capsys)[-1]
    assert audit(url, "verify") == 0


def test_a_trail_begins_with_an_empty_table(url: str, tmp_path: Path, capsys: Capture) -> None:
    """Rows that no entry explains would make it look tampered with for ever."""
    table = WindowTable(url)
    table.write([Pane("a", 0, 60_000, 1, 1, 0, "ON_TIME")], "run-1")
    table.close()
    assert stream(url, tmp_path) == 2
    assert "begins with an empty table" in capsys.readouterr().err
    assert stream(url, tmp_path, "--table=audited") == 0
    WindowTable(url).close()  # the refusal has left nothing behind that would refuse it


@pytest.mark.parametrize("action", ["verify", "show"])
def test_looking_at_a_file_that_is_not_there_makes_none(
    action: str, tmp_path: Path, capsys: Capture
) -> None:
    """A mistyped name is no empty trail."""
    assert audit(f"sqlite:///{tmp_path}/no.db", action) == 2
    assert "is not there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("action", "flag"),
    [("show", "--head=1:a"), ("verify", "--key=a"), ("verify", "--window_start_ms=0")],
)
def test_a_flag_of_the_other_action_is_refused(
    action: str, flag: str, tmp_path: Path, capsys: Capture
) -> None:
    """It would be silently without effect."""
    assert audit(f"sqlite:///{tmp_path}/no.db", action, flag) == 2
    assert "has no meaning" in capsys.readouterr().err

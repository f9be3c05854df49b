"""Bad input: nothing is lost, and each bad line is a dead letter with reason, place and payload."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.jobs import Outcome, run_job

TEN = 1_767_261_600_000
FLAGS = (
    "--key_field=k",
    "--value_field=v",
    "--id_field=id",
    "--time_field=t",
    "--window=1m",
    "--bound=1h",
    "--time_unit=ms",
)


def line(**changes: Any) -> bytes:
    """A line that is good but for some fields; None of `...` leaves a field out."""
    fields = {"id": "x1", "k": "a", "v": 1, "t": TEN} | changes
    return json.dumps({name: x for name, x in fields.items() if x is not ...}).encode()


class Bad(NamedTuple):
    """A line that is no record, the reason it must be given, and its own id if one can be read."""

    raw: bytes
    reason: str
    own_id: str | None = None


BAD: Final = {
    "text": Bad(b"hello", "malformed_json"),
    "cut off": Bad(line()[:-4], "malformed_json"),
    "trailing comma": Bad(b'{"id": "x1", "k": "a", "v": 1, "t": 1767261600000,}', "malformed_json"),
    "two objects": Bad(line() + line(), "malformed_json"),
    "object and null": Bad(line() + b" null", "malformed_json"),
    "single quotes": Bad(line().replace(b'"', b"'"), "malformed_json"),
    "a lone brace": Bad(b"{", "malformed_json"),
    "NaN": Bad(line().replace(b'"v": 1', b'"v": NaN'), "malformed_json"),
    "Infinity": Bad(line().replace(b'"v": 1', b'"v": -Infinity'), "malformed_json"),
    "deep nesting": Bad(b'{"d":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "malformed_json"),
    "invalid UTF-8": Bad(line(k="q").replace(b'"q"', b'"\xff\xfe"'), "invalid_utf8"),
    "half a character": Bad(line(k="q").replace(b'"q"', b'"\xc3"'), "invalid_utf8"),
    "array": Bad(b"[1, 2]", "not_an_object"),
    "number": Bad(b"17", "not_an_object"),
    "null": Bad(b"null", "not_an_object"),
    "empty object": Bad(b"{}", "missing_event_time"),
    "no time": Bad(line(t=...), "missing_event_time", "x1"),
    "null time": Bad(line(t=None), "missing_event_time", "x1"),
    "time as text": Bad(line(t=str(TEN)), "bad_event_time", "x1"),
    "true as time": Bad(line(t=True), "bad_event_time", "x1"),
    "nested time": Bad(line(t={"ms": TEN}), "bad_event_time", "x1"),
    "time in ns": Bad(line(t=TEN * 10**6), "event_time_out_of_range", "x1"),
    "time before year 1": Bad(line(t=-62_135_596_800_001), "event_time_out_of_range", "x1"),
    "huge time": Bad(line(t=10**40), "event_time_out_of_range", "x1"),
    "no key": Bad(line(k=...), "missing_key", "x1"),
    "null key": Bad(line(k=None), "missing_key", "x1"),
    "nested key": Bad(line(k={"a": 1}), "bad_key", "x1"),
    "fraction as key": Bad(line(k=1.5), "bad_key", "x1"),
    "true as key": Bad(line(k=True), "bad_key", "x1"),
    "half a surrogate": Bad(line(k="\ud800"), "bad_key", "x1"),
    "no value": Bad(line(v=...), "missing_value", "x1"),
    "null value": Bad(line(v=None), "missing_value", "x1"),
    "number as text": Bad(line(v="1"), "bad_value", "x1"),
    "true as value": Bad(line(v=True), "bad_value", "x1"),
    "nested value": Bad(line(v={"amount": 1}), "bad_value", "x1"),
    "list as value": Bad(line(v=[1]), "bad_value", "x1"),
    "infinite value": Bad(line().replace(b'"v": 1', b'"v": 1e999'), "bad_value", "x1"),
    "huge integer": Bad(line(v=2**63), "value_out_of_range", "x1"),
    "vast integer": Bad(
        line().replace(b'"v": 1', b'"v": ' + b"9" * 4000), "value_out_of_range", "x1"
    ),
    "key twice": Bad(line().replace(b'"k": "a"', b'"k": "a", "k": "b"'), "duplicate_field"),
    "value twice": Bad(line().replace(b'"v": 1', b'"v": 1, "v": 1'), "duplicate_field"),
}

# Odd, but records all the same.
ODD: Final = {
    "a nested field of no interest": line(more={"deep": [1, {"k": 2}]}),
    "a field of no interest twice": b'{"z":1,"z":2,"id":"x1","k":"a","v":1,"t":1767261600000}',
    "an integer as key": line(k=17),
    "the largest integer": line(v=2**63 - 1),
    "the smallest integer": line(v=-(2**63)),
    "a float that is whole": line(v=1.0),
    "an empty key": line(k=""),
    "an escaped name": line().replace(b'"k"', b'"\\u006b"'),
    "white space around": b"  " + line() + b"\t ",
    "a key of other scripts": line(k="\u00e4\u4e2d\U0001f600"),
    "no id": line(id=...),
    "a null id": line(id=None),
}


def good(number: int) -> bytes:
    """A good line, which must survive its neighbours."""
    return line(id=f"g{number}", k="good", v=1, t=TEN + number)


def offsets(lines: list[bytes]) -> list[int]:
    """Byte offset of each line."""
    found, at = [], 0
    for each in lines:
        found.append(at)
        at += len(each) + 1
    return found


def check_letter(letter: dict[str, Any], bad: Bad, split: Path, position: int) -> None:
    """A dead letter must tell reason, place and payload, and lose no byte."""
    assert letter["reason"] == bad.reason
    assert letter["split"] == str(split)
    assert letter["position"] == position
    assert letter["record_id"] == (bad.own_id or f"{split}:{position}")
    assert letter["detail"]
    if "payload_base64" in letter:
        assert base64.b64decode(letter["payload_base64"]) == bad.raw
    else:
        assert letter["payload"].encode() == bad.raw
    unknown = ("key", "value", "event_time_ms", "window_start_ms", "window_end_ms")
    assert {letter[name] for name in (*unknown, "watermark_ms", "late_by_ms")} == {None}


def interleaved() -> tuple[list[bytes], dict[int, Bad]]:
    """Good lines with each bad one between them; the bad ones by their line."""
    lines: list[bytes] = []
    bad: dict[int, Bad] = {}
    for number, each in enumerate(BAD.values()):
        lines += [good(3 * number), good(3 * number + 1)]
        bad[len(lines)] = each
        lines += [each.raw, good(3 * number + 2)]
    return lines, bad


def check_interleaved(outcome: Outcome, split: Path) -> None:
    """All good lines aggregated, all bad ones dead letters in their place."""
    lines, bad = interleaved()
    at = offsets(lines)
    assert outcome.code == 0
    assert outcome.report["input"] == len(lines)
    assert outcome.report["invalid"] == len(BAD)
    assert outcome.finals == {("good", TEN): (len(lines) - len(BAD), len(lines) - len(BAD))}
    for letter, (number, each) in zip(outcome.invalid, bad.items(), strict=True):
        check_letter(letter, each, split, at[number])


@pytest.mark.parametrize("block_bytes", [2_000, 8 << 20])
def test_each_bad_line_is_a_dead_letter_and_its_neighbours_are_aggregated(
    tmp_path: Path, block_bytes: int
) -> None:
    """With reason, payload, file and byte offset, however the blocks fall."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(interleaved()[0]) + b"\n")
    check_interleaved(run_job(tmp_path, [path], *FLAGS, f"--block_bytes={block_bytes}"), path)


def test_offsets_in_a_compressed_file_are_those_of_its_text(tmp_path: Path) -> None:
    """Whoever unpacks it finds the lines there."""
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(interleaved()[0])))
    check_interleaved(run_job(tmp_path, [path], *FLAGS), path)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_alone_in_its_file_is_a_dead_letter(tmp_path: Path, name: str) -> None:
    """Exit code 0: bad input is no failure of the job."""
    bad, fine = tmp_path / "bad.jsonl", tmp_path / "fine.jsonl"
    bad.write_bytes(BAD[name].raw)
    fine.write_bytes(good(0))
    outcome = run_job(tmp_path, [bad, fine], *FLAGS)
    assert outcome.code == 0
    assert outcome.report["aggregated"] == 1
    (letter,) = outcome.letters
    check_letter(letter, BAD[name], bad, 0)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_line_is_a_record_all_the_same(tmp_path: Path, name: str) -> None:
    """Alone in its file, and in the middle of regular ones."""
    alone, among = tmp_path / "alone.jsonl", tmp_path / "among.jsonl"
    alone.write_bytes(ODD[name])
    among.write_bytes(b"\n".join([*map(good, range(99)), ODD[name], *map(good, range(99, 200))]))
    outcome = run_job(tmp_path, [alone, among], *FLAGS)
    assert outcome.report["aggregated"] == 202
    assert outcome.letters == []


def test_a_file_of_invalid_lines_only_balances(tmp_path: Path) -> None:
    """With the unit left to be detected, where there is nothing to detect it by."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"one\ntwo\n\xff\n")
    outcome = run_job(tmp_path, [path], *(f for f in FLAGS if not f.startswith("--time_unit")))
    assert outcome.code == 0
    assert outcome.report["invalid"] == 3
    assert [letter["position"] for letter in outcome.letters] == [0, 4, 8]


def test_blank_lines_are_no_records_and_are_counted(tmp_path: Path) -> None:
    """Empty, of white space, with Windows line ends, at the ends."""
    path = tmp_path / "in.jsonl"
    blank = [b"", b"  ", b"\t", b"\r", b" \r"]
    path.write_bytes(b"\n".join([*blank, good(0), *blank, b"bad", *blank, good(1), *blank, b""]))
    outcome = run_job(tmp_path, [path], *FLAGS)
    assert outcome.report["input"] == 3
    assert outcome.report["aggregated"] == 2
    assert outcome.report["blank_lines"] == 20
    (letter,) = outcome.letters
    assert path.read_bytes()[letter["position"] :].startswith(b"bad")


def test_a_last_line_without_its_end_is_read(tmp_path: Path) -> None:
    """If it is whole it is a record."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(good(0) + b"\n" + good(1))
    assert run_job(tmp_path, [path], *FLAGS).report["aggregated"] == 2


def test_a_truncated_last_line_is_invalid_and_the_rest_stands(tmp_path: Path) -> None:
    """Cut in the middle of a number it is no record either."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(good(0) + b"\n" + good(1)[:-1])
    outcome = run_job(tmp_path, [path], *FLAGS)
    assert outcome.report["aggregated"] == 1
    (letter,) = outcome.letters
    check_letter(letter, Bad(good(1)[:-1], "malformed_json"), path, len(good(0)) + 1)


@pytest.mark.parametrize("whole", [True, False], ids=["record", "no record"])
def test_a_line_of_50_mb_is_one_line(tmp_path: Path, whole: bool) -> None:
    """Aggregated if it is a record, else a dead letter with its whole payload."""
    long = line(id="long", more="x" * 50_000_000)
    if not whole:
        long = long[:-1]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([good(0), long, good(1)]))
    outcome = run_job(tmp_path, [path], *FLAGS, "--block_bytes=1000000")
    assert outcome.report["aggregated"] == 2 + whole
    if not whole:
        (letter,) = outcome.letters
        check_letter(letter, Bad(long, "malformed_json"), path, len(good(0)) + 1)


def test_a_truncated_gzip_fails_the_job_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read is not passed over as if it were the end."""
    path = tmp_path / "in.jsonl.gz"
    packed = gzip.compress(b"\n".join(map(good, range(20_000))))
    path.write_bytes(packed[: len(packed) // 2])
    outcome = run_job(tmp_path, [path], *FLAGS)
    assert outcome.code != 0
    error = capsys.readouterr().err
    assert str(path) in error
    assert error.count("\n") == 1


def test_invalid_lines_under_drop_are_counted_and_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a folder for dead letters they are not silent."""
    from beam_lateness.pipelines.streaming import main

    path = tmp_path / "in.jsonl"
    path.write_bytes(good(0) + b"\nbad\n")
    code = main(
        [
            *FLAGS,
            f"--input={path}",
            "--too_late=drop",
            f"--output=sqlite:///{tmp_path / 'w.db'}",
            "--runner=BundleBasedDirectRunner",
        ]
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert "1 invalid" in printed
    assert "1 invalid lines were only counted: no --dead_letters" in printed


def test_a_record_from_the_future_is_invalid_where_a_skew_is_set(tmp_path: Path) -> None:
    """And does not move the watermark: the next record is not too late."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([good(0), line(t=TEN + 10**12), good(1)]))
    flags = [flag for flag in FLAGS if not flag.startswith("--bound")]
    outcome = run_job(tmp_path, [path], *flags, "--bound=0s", "--max_future_skew=1d")
    assert outcome.report["aggregated"] == 2
    assert [letter["reason"] for letter in outcome.letters] == ["future_event_time"]

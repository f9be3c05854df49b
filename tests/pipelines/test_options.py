"""The flags: each mistake is one clear error before anything runs, and each good set a job."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines import streaming
from beam_lateness.pipelines.explain import ExplainOptions
from beam_lateness.pipelines.options import (
    StreamConfig,
    StreamOptions,
    check_flags,
    read_config,
    read_source,
)
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from tests.jobs import write_lines

GOOD = {"account": "a", "amount": 5, "event_time": 1_357_035_300_000}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Flags of a job that would run, in a folder of its own; no pipeline may run here."""

    def refuse(self: object, *args: object) -> None:
        pytest.fail("a pipeline ran")

    monkeypatch.setattr(beam.Pipeline, "run", refuse)
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in.jsonl", [GOOD])
    return {
        "input": "in.jsonl",
        "key_field": "account",
        "value_field": "amount",
        "window": "1m",
        "bound": "10s",
        "allowed_lateness": "2m",
        "too_late": "emit",
        "dead_letters": "dead",
        "output": "sqlite:///windows.db",
        "runner": "BundleBasedDirectRunner",
    }


def as_flags(flags: dict[str, str | None]) -> list[str]:
    """Spells flags; None leaves one out, an empty text gives it no value."""
    return [
        f"--{name}={value}" if value != "(bare)" else f"--{name}"
        for name, value in flags.items()
        if value is not None
    ]


def config(flags: dict[str, str | None]) -> StreamConfig:
    """Reads flags as the job does."""
    return read_config(PipelineOptions(as_flags(flags)).view_as(StreamOptions))


Change = dict[str, str | None]

# What is changed in good flags, and what the one error line must tell: flag, value, rule, remedy.
MISTAKES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "no key field": ({"key_field": None}, ("--key_field", "required")),
    "no window": ({"window": None}, ("--window", "required", "1m")),
    "no policy": ({"too_late": None}, ("--too_late", "required", "emit", "drop")),
    "no output": ({"output": None}, ("--output", "required", "sqlite:///FILE")),
    "no input": ({"input": None}, ("--input", "required")),
    "empty input": ({"input": ""}, ("--input", "nothing")),
    "no value field": ({"value_field": None}, ("--value_field", "required", "sum")),
    "no value field for several": (
        {"value_field": None, "aggregate": "count,max"},
        ("--value_field", "required", "count,max"),
    ),
    "no bound": ({"bound": None}, ("--watermark=bounded", "--bound")),
    "no dead letters": ({"dead_letters": None}, ("--too_late=emit", "--dead_letters", "drop")),
    "unknown policy": ({"too_late": "keep"}, ("--too_late", "'keep'", "emit, drop")),
    "window without unit": ({"window": "60"}, ("--window", "'60'", "unit")),
    "unknown unit": ({"window": "1w"}, ("--window", "'1w'", "1h30m")),
    "no window at all": ({"window": "0s"}, ("--window", "'0s'", "1ms")),
    "negative lateness": (
        {"allowed_lateness": "-1m"},
        ("--allowed_lateness", "'-1m'", "negative"),
    ),
    "negative bound": ({"bound": "-5s"}, ("--bound", "'-5s'", "negative")),
    "half a millisecond": ({"bound": "0.5ms"}, ("--bound", "'0.5ms'", "whole milliseconds")),
    "endless lateness": ({"allowed_lateness": "80000d"}, ("--allowed_lateness", "200 years")),
    "offset beyond window": ({"window_offset": "1m"}, ("--window_offset", "1m", "less than")),
    "unknown watermark": ({"watermark": "best"}, ("--watermark", "'best'", "punctuated")),
    "bound with monotonous": (
        {"watermark": "monotonous"},
        ("--bound", "--watermark=monotonous", "leave it out"),
    ),
    "bound with none": ({"watermark": "none"}, ("--bound", "--watermark=none", "leave it out")),
    "bound with markers": (
        {"watermark": "punctuated", "marker_field": "m"},
        ("--bound", "--watermark=punctuated", "leave it out"),
    ),
    "markers without field": (
        {"watermark": "punctuated", "bound": None},
        ("--watermark=punctuated", "--marker_field"),
    ),
    "marker field with bound": ({"marker_field": "m"}, ("--marker_field", "bounded")),
    "floor with bound": ({"bound_floor": "1s"}, ("--bound_floor", "bounded", "leave it out")),
    "adjusting without ceiling": (
        {"watermark": "adjusting", "bound": None, "bound_floor": "1s"},
        ("--watermark=adjusting", "--bound_ceiling"),
    ),
    "absent generator": (
        {"watermark": "absent_:Mine", "bound": None},
        ("--watermark=absent_:Mine", "'absent_'", "installed or in"),
    ),
    "unknown splits": (
        {"split_watermarks": "one"},
        ("--split_watermarks", "'one'", "per_split", "merged"),
    ),
    "idleness in a replay": ({"idle_timeout": "5s"}, ("--idle_timeout", "--follow", "replay")),
    "drift in a replay": ({"max_drift": "5s"}, ("--max_drift", "--follow", "replay")),
    "all idle without timeout": (
        {"on_all_idle": "advance", "follow": "(bare)"},
        ("--on_all_idle=advance", "--idle_timeout"),
    ),
    "watch": ({"watch": "1m"}, ("unknown flag", "--watch=1m")),
    "unknown time unit": ({"time_unit": "min"}, ("--time_unit", "'min'", "iso")),
    "unknown aggregate": ({"aggregate": "median"}, ("--aggregate", "median", "mean")),
    "aggregate twice": ({"aggregate": "sum,sum"}, ("--aggregate", "sum, sum", "once")),
    "no aggregate": ({"aggregate": ""}, ("--aggregate", "mean")),
    "unknown format": ({"format": "xml"}, ("--format", "'xml'", "jsonl, csv")),
    "no block": ({"block_bytes": "0"}, ("--block_bytes", "'0'", "at least 1")),
    "block with unit": ({"block_bytes": "8MB"}, ("--block_bytes", "'8MB'", "whole number")),
    "no shard": ({"num_shards": "0"}, ("--num_shards", "'0'", "at least 1")),
    "no speed": ({"replay_speed": "0"}, ("--replay_speed", "'0'", "above 0")),
    "negative speed": ({"replay_speed": "-1"}, ("--replay_speed", "'-1'", "above 0")),
    "speed in words": ({"replay_speed": "fast"}, ("--replay_speed", "'fast'", "above 0")),
    "speed of a live input": (
        {"replay_speed": "60", "follow": "(bare)"},
        ("--replay_speed", "--follow"),
    ),
    "wrong skew": ({"max_future_skew": "soon"}, ("--max_future_skew", "'soon'", "unit")),
    "follow a gzip": ({"input": "in.jsonl.gz", "follow": "(bare)"}, ("--follow", "in.jsonl.gz")),
    "empty glob": ({"input": "none-*.jsonl"}, ("--input", "none-*.jsonl", "no file")),
    "missing file": ({"input": "absent.jsonl"}, ("--input", "absent.jsonl", "no file")),
    "unknown field": ({"key_field": "acount"}, ("'acount'", "account", "--key_field")),
    "unknown value field": ({"value_field": "sum"}, ("'sum'", "amount", "--value_field")),
    "unknown id field": ({"id_field": "uid"}, ("'uid'", "account", "--id_field")),
    "unknown time field": ({"time_field": "ts"}, ("'ts'", "event_time", "--time_field")),
    "other database": (
        {"output": "mysql://h/d"},
        ("--output", "mysql", "postgresql", "sqlite:///"),
    ),
    "no URL": ({"output": "windows.db"}, ("--output", "'windows.db'", "sqlite:///FILE")),
    "no database file": ({"output": "sqlite://"}, ("--output", "'sqlite://'", "sqlite:///FILE")),
    "output nowhere": ({"output": "sqlite:///no/w.db"}, ("--output", "no/w.db", "folder")),
    "letters in a file": ({"dead_letters": "in.jsonl"}, ("--dead_letters", "'in.jsonl'")),
    "letters below a file": ({"dead_letters": "in.jsonl/d"}, ("--dead_letters", "in.jsonl/d")),
    "letters elsewhere": ({"dead_letters": "s3://b/d"}, ("--dead_letters", "s3://b/d", "local")),
    "report nowhere": ({"report": "no/r.json"}, ("--report", "no/r.json", "folder")),
    "report to a folder": ({"report": "."}, ("--report", "'.'")),
    "unknown flag": ({"alowed_lateness": "2m"}, ("--alowed_lateness", "--allowed_lateness?")),
    "far from any flag": ({"zzzzqq": "1"}, ("--zzzzqq", "--help")),
    "short for a flag": ({"allowed": "2m"}, ("unknown flag", "--allowed")),
    "value of a switch": ({"follow": "yes"}, ("--follow",)),
    "Beam's batch engine": ({"runner": "FnApiRunner"}, ("--runner", "FnApiRunner", "PrismRunner")),
    "Dataflow": ({"runner": "DataflowRunner"}, ("--runner", "DataflowRunner", "DirectRunner")),
    "embedded live": ({"follow": "(bare)"}, ("--runner", "--follow", "PrismRunner")),
    "embedded paced": ({"replay_speed": "2"}, ("--runner", "--replay_speed", "PrismRunner")),
}


@pytest.mark.parametrize(("change", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_flags_is_one_line_and_exit_code_2_before_anything_runs(
    base: dict[str, str | None],
    change: Change,
    told: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Flag, value, rule and remedy stand in the one line on stderr."""
    code = streaming.main(as_flags({**base, **change}))
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("beam-lateness stream: error: ")
    assert error.count("\n") == 1
    assert [word for word in told if word not in error] == []


def test_good_flags_pass_the_checks(base: dict[str, str | None]) -> None:
    """The flags that the mistakes are made in have none themselves."""
    check_flags(as_flags(base))
    assert config(base).windows.size_ms == 60_000


def test_beams_own_flags_pass_beside_ours(base: dict[str, str | None]) -> None:
    """A flag of Beam is no unknown flag."""
    check_flags([*as_flags(base), "--experiments=x", "--prism_location=/p", "--streaming"])


def test_a_value_that_beam_cannot_read_is_a_value_error(base: dict[str, str | None]) -> None:
    """Not argparse's exit."""
    with pytest.raises(ValueError, match="--num_workers"):
        check_flags([*as_flags(base), "--num_workers=many"])


def test_a_flag_without_its_value_is_a_value_error(base: dict[str, str | None]) -> None:
    """Not argparse's exit either."""
    with pytest.raises(ValueError, match="--report"):
        check_flags([*as_flags(base), "--report"])


def test_a_table_of_another_shape_is_refused_and_left_alone(
    base: dict[str, str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names both shapes; the table stays as it was."""
    with sqlite3.connect("windows.db") as connection:
        connection.execute("create table windows (key text primary key, total integer)")
        connection.execute("insert into windows values ('mine', 7)")
    connection.close()
    assert streaming.main(as_flags(base)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(r"--output.*another shape.*key, total.*window_start_ms.*another table", error)
    connection = sqlite3.connect("windows.db")
    assert connection.execute("select * from windows").fetchall() == [("mine", 7)]
    connection.close()


def test_a_table_with_another_primary_key_is_refused(
    base: dict[str, str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, upserts would double rows."""
    connection = sqlite3.connect("windows.db")
    connection.execute(
        "create table windows (key text, window_start_ms bigint, window_end_ms bigint, value, "
        "count bigint, pane_index bigint, timing text, run text)"
    )
    connection.close()
    assert streaming.main(as_flags(base)) == 2
    assert "primary key none" in capsys.readouterr().err


def test_a_file_that_is_no_database_is_refused_and_left_alone(
    base: dict[str, str | None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is somebody's file."""
    (tmp_path / "windows.db").write_text("dear diary, " * 200)
    assert streaming.main(as_flags(base)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--output" in error
    assert "windows.db" in error
    assert (tmp_path / "windows.db").read_text() == "dear diary, " * 200


def test_csv_and_json_lines_are_not_read_as_one(
    base: dict[str, str | None], tmp_path: Path
) -> None:
    """The error names one of each."""
    (tmp_path / "b.csv").write_text("account,amount,event_time\n")
    flags = [*as_flags(base), "--input=b.csv"]
    with pytest.raises(ValueError, match=r"--input mixes CSV(?=.*in\.jsonl)(?=.*b\.csv)"):
        read_config(PipelineOptions(flags).view_as(StreamOptions))


def test_an_unreadable_file_is_an_error(
    base: dict[str, str | None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A gzip that is none cannot be read, and the job says so before it runs."""
    (tmp_path / "in.jsonl.gz").write_bytes(b"this is no gzip")
    assert streaming.main(as_flags({**base, "input": "in.jsonl.gz"})) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--input" in error
    assert "in.jsonl.gz" in error


def test_a_refused_job_leaves_no_report(base: dict[str, str | None], tmp_path: Path) -> None:
    """Whoever waits for the report must not find one."""
    assert streaming.main(as_flags({**base, "report": "r.json", "key_field": "no"})) == 2
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("change", "strategy"),
    [
        ({}, WatermarkStrategy.for_bounded_out_of_orderness("10s")),
        (
            {"watermark": "monotonous", "bound": None},
            WatermarkStrategy.for_monotonous_timestamps(),
        ),
        (
            {"watermark": "punctuated", "bound": None, "marker_field": "end"},
            WatermarkStrategy.for_markers("end"),
        ),
        ({"watermark": "none", "bound": None}, WatermarkStrategy.no_watermarks()),
    ],
    ids=["bounded", "monotonous", "punctuated", "none"],
)
def test_each_watermark_flag_makes_its_strategy(
    base: dict[str, str | None], change: Change, strategy: WatermarkStrategy
) -> None:
    """With the time field's default."""
    assert config({**base, **change}).strategy == strategy


def test_the_source_needs_no_window_and_no_output(base: dict[str, str | None]) -> None:
    """`explain` reads the input and the watermark of the job without them; a key it needs."""
    names = ("window", "allowed_lateness", "too_late", "dead_letters", "output")
    flags = {**base, **dict.fromkeys(names)}
    source = read_source(PipelineOptions(as_flags(flags)).view_as(StreamOptions))
    job = config(base)
    assert source == (job.connector, job.strategy, job.settings)
    without = PipelineOptions(as_flags({**flags, "key_field": None})).view_as(StreamOptions)
    with pytest.raises(ValueError, match="--key_field is required"):
        read_source(without)


def test_a_flag_is_known_to_the_commands_that_have_it(base: dict[str, str | None]) -> None:
    """`--watch` to `explain`, which knows those of `stream` too."""
    flags = [*as_flags(base), "--watch=1m"]
    check_flags(flags, (StreamOptions, ExplainOptions))
    with pytest.raises(ValueError, match="unknown flag '--watch=1m'"):
        check_flags(flags)


def test_a_replay_lets_the_future_in_and_a_live_input_does_not(
    base: dict[str, str | None],
) -> None:
    """The reader decides by the input, unless it is told."""
    skew = "max_future_skew"
    assert config(base).settings.max_future_skew_ms == "live"
    assert config({**base, "follow": "(bare)"}).settings.max_future_skew_ms == "live"
    assert config({**base, skew: "1h"}).settings.max_future_skew_ms == 3_600_000


def test_the_size_of_the_input_is_known_unless_some_is_compressed(
    base: dict[str, str | None], tmp_path: Path
) -> None:
    """It decides whether the embedded engine may hold it."""
    assert config(base).input_bytes() == (tmp_path / "in.jsonl").stat().st_size
    (tmp_path / "in.jsonl.gz").write_bytes(b"")
    assert config({**base, "input": str(tmp_path / "in.*")}).input_bytes() is None


def test_a_glob_is_looked_up_in_the_current_folder_too(base: dict[str, str | None]) -> None:
    """`--input='in*'` finds what the shell would, under the name of `--input=in.jsonl`."""
    names = config({**base, "input": "in*"}).connector.initial_positions()
    assert list(names) == ["in.jsonl"]


def test_a_followed_or_paced_input_is_endless(base: dict[str, str | None]) -> None:
    """Both need an engine that reads as time goes by."""
    assert not config(base).endless
    assert config({**base, "follow": "(bare)"}).endless
    assert config({**base, "replay_speed": "60"}).endless

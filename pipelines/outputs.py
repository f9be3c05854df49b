"""Where the results of the streaming job go: its flags, and the steps that write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from apache_beam.pvalue import PCollection

from beam_lateness.pipelines.flags import one_of, truth
from beam_lateness.transforms.commits.store import CommitAfterStore
from beam_lateness.transforms.database import is_database
from beam_lateness.transforms.results import Pane, RefusedPane
from beam_lateness.transforms.sinks import append, window_table
from beam_lateness.transforms.sinks.append import AppendPanes
from beam_lateness.transforms.sinks.append_files import FILE_FORMATS, JSONL, AppendPanesToFiles
from beam_lateness.transforms.sinks.bigquery import BIGQUERY, UpsertPanesToBigQuery
from beam_lateness.transforms.sinks.dead_letters import WriteDeadLetters
from beam_lateness.transforms.sinks.stale import RemoveStale
from beam_lateness.transforms.sinks.topic_urls import KAFKA, is_topic
from beam_lateness.transforms.sinks.topics import PublishDeadLetters, PublishPanes
from beam_lateness.transforms.sinks.upsert import UpsertPanes
from beam_lateness.transforms.sinks.window_values import JSON, NUMBER

UPSERT, APPEND = "upsert", "append"
MODES: Final = (UPSERT, APPEND)


def add_output_flags(add: Callable[..., Any]) -> None:
    """Adds the flags of the results to a group of an argument parser."""
    add(
        "--output",
        help="sqlite:///FILE or postgresql://USER@HOST/DATABASE; a topic, "
        "pubsub://projects/P/topics/T or kafka://HOST:PORT/TOPIC; "
        "bigquery://PROJECT/DATASET/TABLE; with --mode=append also a folder for files",
    )
    add(
        "--mode",
        default=UPSERT,
        help=f"{UPSERT}: a row a key and window, the last pane; {APPEND}: a row a pane "
        "(%(default)s)",
    )
    add(
        "--table",
        help=f"table of a database ({window_table.TABLE_NAME}; append: {append.TABLE_NAME})",
    )
    add("--file_format", help=f"of the files in a folder: {', '.join(FILE_FORMATS)} ({JSONL})")
    add(
        "--audit",
        default="false",
        help="true: keep each change of a window in an audit trail (see `audit`); false",
    )
    add("--dead_letters", help="folder or topic for too late and invalid records, as JSON")


@dataclass(frozen=True)
class Outputs:
    """Where results go, checked.

    Args:
        url: `--output`.
        mode: `upsert` or `append`.
        table: The table of a database.
        file_format: Of files in a folder.
        audit: Whether there is an audit trail.
        dead_letters: The folder or topic of dead letters; None if there is none.
        values: The kind of the panes' values: `number` or `json`.
        kafka_options: For Kafka topics.
    """

    url: str = field(repr=False)  # may hold a password
    mode: str
    table: str
    file_format: str
    audit: bool
    dead_letters: str | None
    values: str
    kafka_options: Mapping[str, str] = field(repr=False)

    @property
    def in_folder(self) -> bool:
        """Whether panes go into files."""
        return self.mode == APPEND and "://" not in self.url


def read_outputs(
    options: Any, aggregate: Sequence[str], kafka_options: Mapping[str, str]
) -> Outputs:
    """Checks the flags.

    Raises:
        ValueError: For the first flag that is wrong or has no meaning beside the others.
    """
    mode = one_of(options, "mode", MODES)
    default = window_table.TABLE_NAME if mode == UPSERT else append.TABLE_NAME
    found = Outputs(
        url=options.output,
        mode=mode,
        table=options.table or default,
        file_format=options.file_format or JSONL,
        audit=truth("--audit", options.audit),
        dead_letters=options.dead_letters,
        values=NUMBER if len(aggregate) == 1 else JSON,
        kafka_options=kafka_options,
    )
    if options.table is not None and not is_database(found.url):
        msg = f"--table={options.table} is of databases, and --output is none: leave it out"
        raise ValueError(msg)
    if options.file_format is not None:
        one_of(options, "file_format", FILE_FORMATS)
        if not found.in_folder:
            msg = (
                f"--file_format={options.file_format} is of files: give --mode=append and a folder "
                "as --output, or leave it out"
            )
            raise ValueError(msg)
    if mode == APPEND and re.match(r"\w+:/", found.url) and "://" not in found.url:
        msg = "--output must be a folder or a URL with ://, got one slash after its first word"
        raise ValueError(msg)
    if mode == APPEND and options.num_readers != "1":
        msg = (
            f"--mode=append needs --num_readers=1, got {options.num_readers}: with several, a "
            "window may have a second pane though --allowed_lateness is 0, and a sum over the rows "
            "counts records twice; give --mode=upsert"
        )
        raise ValueError(msg)
    if mode == APPEND and found.url.startswith(BIGQUERY):
        msg = "--mode=append is not for bigquery://, whose rows are upserted: leave it out"
        raise ValueError(msg)
    return found


def remove_stale(outputs: Outputs) -> RemoveStale | None:
    """Gives what removes the rows that only a broken off run wrote, where that can be."""
    if not is_database(outputs.url):
        return None
    return RemoveStale(
        outputs.url, outputs.table, audit=outputs.audit, appended=outputs.mode == APPEND
    )


def dead_letters(outputs: Outputs, run: str, commits: CommitAfterStore | None) -> Any:
    """Gives what writes dead letters; None if they go nowhere."""
    return _letters(outputs, run, None if commits is None else commits.letters_written)


def _letters(outputs: Outputs, run: str, written: Any) -> Any:
    where = outputs.dead_letters
    if where is None:
        return None
    if is_topic(where):
        return PublishDeadLetters(where, run, _options(outputs, where), written)
    return WriteDeadLetters(where, run, written)


def write_panes(
    panes: PCollection[Pane], outputs: Outputs, run: str, commits: CommitAfterStore | None
) -> None:
    """Adds the step that writes panes, and the one for those that the store refuses."""
    url, keeps = outputs.url, outputs.dead_letters is not None
    written = None if commits is None else commits.panes_written
    if is_topic(url):
        _ = panes | "PublishPanes" >> PublishPanes(url, run, _options(outputs, url), written)
        return
    if outputs.in_folder:
        kind = cast("Any", outputs.file_format)
        _ = panes | "AppendPanes" >> AppendPanesToFiles(url, run, kind, written)
        return
    refused: PCollection[RefusedPane]
    if url.startswith(BIGQUERY):
        refused = panes | "UpsertPanes" >> UpsertPanesToBigQuery(
            url,
            run,
            "JSON" if outputs.values == JSON else "BIGNUMERIC",
            written,
            emit_refused=keeps,
        )
    elif outputs.mode == APPEND:
        refused = panes | "AppendPanes" >> AppendPanes(
            url, run, written, outputs.table, outputs.values, keeps
        )
    else:
        refused = panes | "UpsertPanes" >> UpsertPanes(
            url, run, written, outputs.table, outputs.values, outputs.audit, keeps
        )
    told = None if written is None else _RefusedWritten(written)
    keep = _letters(outputs, run, told)
    if keep is not None:
        _ = refused | "WriteRefused" >> keep


class _RefusedWritten:
    """Tells that refused panes are kept as dead letters."""

    def __init__(self, written: Callable[[Sequence[Pane]], None]) -> None:
        self._written = written

    def __call__(self, refused: Sequence[RefusedPane]) -> None:
        self._written([each.pane for each in refused])


def _options(outputs: Outputs, url: str) -> Mapping[str, str]:
    return outputs.kafka_options if url.startswith(KAFKA) else {}

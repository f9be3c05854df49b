"""A live group: records as they arrive, judged by the group's watermark at that moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.transforms.sources.files import Files
from beam_lateness.transforms.sources.formats import Csv, LineFormat
from beam_lateness.transforms.sources.group import Group, GroupReader
from beam_lateness.transforms.sources.read_settings import ReadSettings
from beam_lateness.transforms.sources.split import Poll
from beam_lateness.transforms.times import NO_WATERMARK_MS
from beam_lateness.transforms.watermarks.estimator import GroupState, exclusive
from beam_lateness.transforms.watermarks.strategy import WatermarkStrategy
from beam_lateness.transforms.watermarks.timestamps import FieldTime
from tests.model import Event
from tests.transforms.sources.memory import BEAM_MINIMUM, JSON, Stamped, line_of, stamped, written

FEW = settings(max_examples=50, deadline=None)
ZERO = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(FieldTime("t", "ms"))
# What is appended to each split before each poll.
ROUNDS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 60), max_size=5), max_size=3),
    min_size=1,
    max_size=6,
)


class Arrivals:
    """Judges arrivals one at a time: the group is the minimum over the splits known so far."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.own: dict[str, int] = {}
        self.group = BEAM_MINIMUM

    def know(self, splits: list[str]) -> None:
        """New splits hold the group until they speak."""
        for split in splits:
            self.own.setdefault(split, BEAM_MINIMUM)
        if self.own:
            self.group = max(self.group, min(self.own.values()))

    def take(self, record: Stamped) -> int:
        """Gives the watermark at a record's arrival, and moves it on."""
        before = self.group
        self.own[record.split] = max(self.own[record.split], record.ts - self.bound)
        self.know([])
        return before


@FEW
@given(ROUNDS, st.sampled_from([0, 7]), st.integers(0, 6))
def test_live_stamps_are_the_groups_minimum_at_arrival(
    rounds: list[dict[str, list[int]]], bound: int, restart: int
) -> None:
    """In the order in which the records came out; a restart changes nothing."""
    source = written({}, follows=True)
    strategy = WatermarkStrategy(bound_ms=bound)
    reader, arrivals, count = source.reader(strategy), Arrivals(bound), 0
    for number, appended in enumerate(rounds):
        for split, times in appended.items():
            lines = [line_of(Event("k", 1, ts, f"{split}{number}")) for ts in times]
            source.texts[split] = source.texts.get(split, b"") + b"".join(lines)
            count += len(times)
        if number == restart:
            reader = source.reader(strategy, None, reader.positions, reader.state)
        arrivals.know(sorted(source.texts))
        poll = reader.poll()
        assert not poll.finished
        for record in stamped([poll]):
            assert record.stamp == arrivals.take(record)
            count -= 1
        assert exclusive(poll.state.watermark_ms) == arrivals.group
    assert count == 0, "every record comes out in the poll after it was written"


def test_a_live_input_that_has_nothing_new_waits() -> None:
    """And says so; it is never finished."""
    source = written({"a": [Event("k", 1, 5, "x")]}, follows=True)
    reader = source.reader(ZERO)
    busy, idle = reader.poll(), reader.poll()
    assert (busy.wait_s, len(busy.batches)) == (0, 1)
    assert idle.wait_s > 0
    assert not idle.batches
    assert not idle.finished


def test_a_live_input_may_be_empty_at_first() -> None:
    """C35: polls of nothing, then records: no watermark before them."""
    source = written({}, follows=True)
    reader = source.reader(ZERO)
    assert [reader.poll().state.watermark_ms for _ in range(3)] == [NO_WATERMARK_MS] * 3
    source.texts["a"] = line_of(Event("k", 1, 10, "x")) + line_of(Event("k", 1, 70, "y"))
    assert [record.stamp for record in stamped([reader.poll()])] == [BEAM_MINIMUM, 10]


def test_a_split_that_appears_later_does_not_pull_the_watermark_back() -> None:
    """Its old records are judged by the group's watermark."""
    source = written({"a": [Event("k", 1, 100, "x")]}, follows=True)
    reader = source.reader(ZERO)
    assert reader.poll().state.watermark_ms == 99
    source.texts["b"] = line_of(Event("k", 1, 5, "y"))
    poll = reader.poll()
    assert stamped([poll]) == [Stamped("b", "y", 5, 100)]
    assert poll.state.watermark_ms == 99


@contextmanager
def live(path: Path, line_format: LineFormat, after: Poll | None = None) -> Iterator[GroupReader]:
    """Follows the files of a folder, from their starts or on from a poll."""
    files = Files([str(path)], line_format, follow=True)
    positions = after.positions if after else files.initial_positions()
    state = after.state if after else GroupState()
    reader = Group(files, ZERO, [], ReadSettings()).open(positions, state)
    with closing(reader):
        yield reader


def names(poll: Poll) -> list[str]:
    """The records' own names."""
    return [record.name for record in stamped([poll])]


def test_followed_files_give_their_lines_once_whole(tmp_path: Path) -> None:
    """A growing file, an unfinished line and a new file, poll by poll."""
    path = tmp_path / "a.jsonl"
    line = line_of(Event("k", 1, 5, "one"))
    with path.open("ab", buffering=0) as file, live(tmp_path, JSON) as reader:
        assert names(reader.poll()) == []
        file.write(line[:9])
        assert names(reader.poll()) == []
        file.write(line[9:])
        assert names(reader.poll()) == ["one"]
        (tmp_path / "b.jsonl").write_bytes(line_of(Event("k", 1, 6, "two")))
        assert names(reader.poll()) == ["two"]
        assert names(reader.poll()) == []


def test_followed_files_go_on_after_a_restart(tmp_path: Path) -> None:
    """From the positions of a checkpoint, an unfinished line among them."""
    path = tmp_path / "a.jsonl"
    second = line_of(Event("k", 1, 6, "two"))
    path.write_bytes(line_of(Event("k", 1, 5, "one")) + second[:9])
    with live(tmp_path, JSON) as reader:
        poll = reader.poll()
    with path.open("ab") as file:
        file.write(second[9:])
    with live(tmp_path, JSON, after=poll) as reader:
        assert stamped([reader.poll()]) == [Stamped(str(path), "two", 6, 5)]


def test_a_replaced_csv_file_is_read_under_its_own_header(tmp_path: Path) -> None:
    """A writer that was changed may write its columns in another order."""
    path = tmp_path / "log.csv"
    path.write_bytes(b"k,v,id,t\na,1,one,5\n")
    with live(tmp_path, Csv("k", "v", "id")) as reader:
        assert names(reader.poll()) == ["one"]
        path.unlink()
        path.write_bytes(b"t,id,v,k\n6,two,2,b\n9,three,3,c\n")
        poll = reader.poll()
    assert not poll.invalid
    assert names(poll) == ["two", "three"]


def test_records_of_a_file_and_of_the_one_that_replaced_it_have_ids_of_their_own(
    tmp_path: Path,
) -> None:
    """Reconciliation applies each id once: two records must not share one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"k":"a","v":1,"t":5}\n')
    with live(tmp_path, JSON) as reader:
        first = reader.poll()
        (tmp_path / "next").write_bytes(b'{"k":"a","v":2,"t":6}\n')
        (tmp_path / "next").rename(path)
        second = reader.poll()
    ids = [row["record_id"] for p in (first, second) for b in p.batches for row in b.to_pylist()]
    assert len(set(ids)) == len(ids) == 2


def test_rotation_within_a_followed_folder_gives_each_line_once(tmp_path: Path) -> None:
    """The old file is read to its end, and not again under its new name; then the new one."""
    path = tmp_path / "app.log"
    lines = {name: line_of(Event("k", 1, 5, name)) for name in ("one", "two", "three", "four")}
    path.write_bytes(lines["one"])
    with live(tmp_path, JSON) as reader:
        seen = names(reader.poll())
        with path.open("ab") as file:
            file.write(lines["two"])
        path.rename(tmp_path / "app.log.1")
        path.write_bytes(lines["three"])
        for _ in range(3):
            seen += names(reader.poll())
        with path.open("ab") as file:
            file.write(lines["four"])
        seen += names(reader.poll())
    assert seen == ["one", "two", "three", "four"]


def test_a_restart_after_rotation_keeps_ids_apart(tmp_path: Path) -> None:
    """Positions count on from what was read under the name before, across a checkpoint too."""
    path = tmp_path / "app.log"
    path.write_bytes(b'{"k":"a","v":1,"t":5}\n')
    with live(tmp_path, JSON) as reader:
        polls = [reader.poll()]
        path.rename(tmp_path / "app.log.1")
        path.write_bytes(b'{"k":"b","v":1,"t":5}\n')
        polls += [reader.poll(), reader.poll()]
    with path.open("ab") as file:
        file.write(b'{"k":"c","v":1,"t":5}\n')
    (tmp_path / "app.log.1").unlink()
    with live(tmp_path, JSON, after=polls[-1]) as reader:
        polls.append(reader.poll())
    rows = [row for poll in polls for batch in poll.batches for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == ["a", "b", "c"]
    assert len({row["record_id"] for row in rows}) == 3

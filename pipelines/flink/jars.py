"""The jars of Flink: Beam's job server, and Flink itself; where they are, and how they are got."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from apache_beam.runners.portability.flink_runner import FlinkJarJobServer

from beam_lateness.pipelines.cache import build_once, cache_folder, digest, run_tool
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.java import find_maven

FLINK_VERSION: Final = "1.19"
FLINK_PATCH: Final = "1.19.3"
JOB_SERVER_VERSION: Final = "2.62.0"
"""The job server that this package is tested with: a Beam release, older than Beam's client."""

FLINK_HOME: Final = "FLINK_HOME"
_POM: Final = Path(__file__).with_name("job_server.xml")
_JAR: Final = "job-server.jar"
_LIBRARIES: Final = "apache-flink-libraries"
_NEEDED: Final = ("flink-dist-", "log4j-")

Say = Callable[[str], None]


def job_server_jar(named: str | None, flink_version: str, job_server_version: str, say: Say) -> str:
    """Gives Beam's job server for Flink: a jar that was named, or one from the cache.

    If it is not in the cache it is resolved with Maven, or else downloaded as Beam does.

    Args:
        named: A path or URL (`--flink_job_server_jar`).
        flink_version: Of which Flink, such as 1.19.
        job_server_version: The Beam release to resolve with Maven.
        say: Told what is being done.

    Raises:
        ValueError: If the named jar is not there.
        EngineError: If it cannot be had; it names the ways out.
    """
    if named is not None:
        if "://" not in named and not os.path.isfile(named):
            msg = f"--flink_job_server_jar={named!r} is no file; name the jar, or a URL of it"
            raise ValueError(msg)
        return named
    name = _cached(flink_version, job_server_version)
    found = cache_folder() / name / _JAR
    if found.is_file():
        return str(found)
    if found.parent.is_dir():  # somebody has tidied up: a folder alone would be taken for built
        shutil.rmtree(found.parent)
    failures = []
    try:
        what = f"Beam's job server {job_server_version} for Flink {flink_version}"
        say(f"Resolving {what} with Maven; this takes a minute or two, once.")
        build_once(name, partial(_resolve, flink_version, job_server_version))
    except EngineError as error:
        failures.append(str(error))
    else:
        return str(found)
    say("Downloading it as Beam does.")
    try:
        return _beams_own(flink_version)
    except Exception as error:  # Beam raises what urllib does
        failures.append(f"the download failed: {error}")
    msg = (
        f"Beam's job server for Flink {flink_version} is needed and cannot be had: "
        f"{'; '.join(failures)}. Ways out: install Maven 3 and run this again; choose another "
        "release with --job_server_version; or name its jar with --flink_job_server_jar"
    )
    raise EngineError(msg)


def _cached(flink_version: str, job_server_version: str) -> str:
    return f"flink-job-server-{flink_version}-{job_server_version}-{digest([_POM])}"


def _resolve(flink_version: str, job_server_version: str, folder: Path) -> None:
    maven = find_maven("Beam's job server is")
    shutil.copy(_POM, folder / "pom.xml")
    run_tool(
        [
            maven,
            "--quiet",
            "--batch-mode",
            "package",
            f"-Dflink.version={flink_version}",
            f"-Dbeam.version={job_server_version}",
        ],
        folder,
        "resolving Beam's job server with Maven",
    )
    (folder / "target" / "job-server-1.jar").rename(folder / _JAR)
    shutil.rmtree(folder / "target")


def _beams_own(flink_version: str) -> str:
    target = f":runners:flink:{flink_version}:job-server:shadowJar"
    url = FlinkJarJobServer.path_to_beam_jar(target)
    return str(FlinkJarJobServer.local_jar(url))


def flink_jars(home: str | None, say: Say) -> list[Path]:
    """Gives the jars that a node of Flink needs: `flink-dist`, and those that log.

    Args:
        home: An unpacked Flink (`--flink_home`); else $FLINK_HOME; else the cache, which is filled
            from the package index.
        say: Told what is being done.

    Raises:
        ValueError: If the folder named holds no Flink.
        EngineError: If it cannot be had.
    """
    named = home or os.environ.get(FLINK_HOME)
    if named:
        folder = Path(named) / "lib"
        what = "--flink_home" if home else f"${FLINK_HOME}"
        found = _needed(folder)
        if not any(map(_is_flink, found)):
            msg = f"{what}={named!r} holds no lib/flink-dist-*.jar; name an unpacked Flink"
            raise ValueError(msg)
        return found
    name = f"flink-{FLINK_PATCH}"
    if not (cache_folder() / name).is_dir():
        say(f"Getting Flink {FLINK_PATCH} ({_LIBRARIES}, 230 MB) from the package index, once.")
    return _needed(build_once(name, _fetch))


def _is_flink(jar: Path) -> bool:
    return jar.name.startswith("flink-dist-")


def _needed(folder: Path) -> list[Path]:
    return sorted(jar for jar in folder.glob("*.jar") if jar.name.startswith(_NEEDED))


def _fetch(folder: Path) -> None:
    """Takes the jars out of the source package that PyFlink installs Flink with."""
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", _LIBRARIES, "--dest", downloads, f"{_LIBRARIES}=={FLINK_PATCH}"]
        try:
            run_tool(command, folder, f"getting {_LIBRARIES} with pip")
        except EngineError as error:
            msg = f"{error}\nOr unpack Flink {FLINK_PATCH} and name it with --flink_home"
            raise EngineError(msg) from error
        (archive,) = Path(downloads).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                if "/deps/lib/" in member.name and name.startswith(_NEEDED):
                    content = packed.extractfile(member)
                    if content is not None:
                        with (folder / name).open("wb") as jar:
                            shutil.copyfileobj(content, jar)
    if not any(_is_flink(jar) for jar in folder.iterdir()):
        msg = f"{_LIBRARIES} {FLINK_PATCH} holds no flink-dist; name a Flink with --flink_home"
        raise EngineError(msg)

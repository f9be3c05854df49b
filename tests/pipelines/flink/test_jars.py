"""The jars of Flink: named, cached, or got by tools, and what the error says where they fail."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from apache_beam.runners.portability.flink_runner import FlinkJarJobServer

from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink import jars
from beam_lateness.pipelines.flink.cluster import find_jars
from beam_lateness.pipelines.flink.jars import (
    FLINK_HOME,
    FLINK_PATCH,
    FLINK_VERSION,
    JOB_SERVER_VERSION,
    flink_jars,
    job_server_jar,
)

DIST: Final = f"flink-dist-{FLINK_PATCH}.jar"


class Machine:
    """A machine without tools, jars and network, on which each can be put."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.said: list[str] = []
        self._monkeypatch = monkeypatch
        monkeypatch.delenv(FLINK_HOME, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        (root / "bin").mkdir()
        for tool in ("cp", "mkdir", "touch"):
            (root / "bin" / tool).symlink_to(str(shutil.which(tool)))
        monkeypatch.setenv("PATH", str(root / "bin"))
        self.put_tool("mvn", 'echo "no such artifact" >&2; exit 1')
        monkeypatch.setattr(sys, "executable", self.put_tool("python", "echo 'no index'; exit 1"))
        self.on_download(self._no_network)

    def _no_network(self, url: str) -> str:
        raise OSError("no route to host")

    def on_download(self, act: Callable[[str], str]) -> None:
        """Says what Beam's download does."""
        self._monkeypatch.setattr(FlinkJarJobServer, "local_jar", staticmethod(act))

    def put_tool(self, name: str, script: str) -> str:
        """Puts a program on the path that is a shell script."""
        tool = self.root / "bin" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        return str(tool)

    def put_flink(self, *names: str) -> str:
        """Unpacks a Flink, with these jars in its `lib`."""
        for name in names:
            jar = self.root / "flink" / "lib" / name
            jar.parent.mkdir(parents=True, exist_ok=True)
            jar.touch()
        return str(self.root / "flink")

    def put_package(self, *members: str) -> None:
        """Puts a pip that downloads a source package with these members."""
        archive = self.root / "libraries.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for name in members:
                member = tarfile.TarInfo(name)
                member.size = len(name)
                packed.addfile(member, io.BytesIO(name.encode()))
        script = 'while [ "$1" != --dest ]; do shift; done; echo call >> "$0.calls"'
        self.put_tool("python", f'{script}; cp {archive} "$2/apache-flink-libraries.tar.gz"')

    def server(self, named: str | None = None) -> str:
        """Asks for the job server."""
        return job_server_jar(named, FLINK_VERSION, JOB_SERVER_VERSION, self.said.append)

    def flink(self, home: str | None = None) -> list[Path]:
        """Asks for the jars of a node."""
        return flink_jars(home, self.said.append)

    def cached(self) -> list[str]:
        """What stands in the cache, but for locks."""
        folder = self.root / "cache" / "beam-lateness"
        found = [path.name for path in folder.iterdir()] if folder.exists() else []
        return [name for name in found if not name.endswith(".lock")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A bare machine."""
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("what", ["missing.jar", "."], ids=["missing", "folder"])
def test_a_job_server_that_was_named_and_is_no_file_is_an_error(
    machine: Machine, what: str
) -> None:
    """It is not passed over for another one."""
    with pytest.raises(ValueError, match=f"--flink_job_server_jar=.*{what}.*name the jar"):
        machine.server(str(machine.root / what))


@pytest.mark.parametrize("where", ["mine.jar", "https://example.org/x.jar", "gs://b/x.jar"])
def test_a_job_server_that_was_named_is_used_as_it_is(machine: Machine, where: str) -> None:
    """A URL is for Beam, which gets it; no tool is asked."""
    named = where if "://" in where else str(machine.root / where)
    if named != where:
        Path(named).touch()
    assert machine.server(named) == named
    assert machine.said == []


def test_a_cluster_needs_its_job_server_as_a_file(machine: Machine) -> None:
    """Java runs no URL."""
    home = machine.put_flink(DIST)
    with pytest.raises(ValueError, match=r"--flink_job_server_jar='https://x/y.jar'.*download it"):
        find_jars(home, "https://x/y.jar", FLINK_VERSION, JOB_SERVER_VERSION, machine.said.append)


def test_the_job_server_is_resolved_with_maven_once(machine: Machine) -> None:
    """At the versions asked for, and taken from the cache after that, without a word."""
    machine.put_tool(
        "mvn", 'mkdir target && echo "$@" > target/job-server-1.jar && test -f pom.xml'
    )
    jar = machine.server()
    said = Path(jar).read_text()
    assert f"-Dflink.version={FLINK_VERSION} -Dbeam.version={JOB_SERVER_VERSION}" in said
    assert len(machine.said) == 1
    machine.put_tool("mvn", "exit 1")
    assert machine.server() == jar
    assert len(machine.said) == 1


def test_each_flink_and_each_beam_has_a_job_server_of_its_own(machine: Machine) -> None:
    """One version is not taken for another."""
    machine.put_tool("mvn", 'mkdir target && echo "$@" > target/job-server-1.jar')
    say = machine.said.append
    versions = [("1.19", "2.62.0"), ("1.19", "2.63.0"), ("1.20", "2.62.0")]
    found = [job_server_jar(None, flink, beam, say) for flink, beam in versions]
    for jar, (flink, beam) in zip(found, versions, strict=True):
        assert f"-Dflink.version={flink} -Dbeam.version={beam}" in Path(jar).read_text()


def test_without_maven_the_job_server_is_downloaded_as_beam_does(machine: Machine) -> None:
    """The one of Beam's own release, for this Flink."""
    (machine.root / "bin" / "mvn").unlink()
    asked: list[str] = []

    def download(url: str) -> str:
        asked.append(url)
        return "/downloaded.jar"

    machine.on_download(download)
    assert machine.server() == "/downloaded.jar"
    assert f"flink-{FLINK_VERSION}" in asked[0]


@pytest.mark.parametrize("maven", [True, False], ids=["failing", "missing"])
def test_where_no_job_server_can_be_had_the_error_names_the_ways_out(
    machine: Machine, maven: bool
) -> None:
    """And both reasons; nothing stays behind that would be taken for a jar."""
    if not maven:
        (machine.root / "bin" / "mvn").unlink()
    with pytest.raises(EngineError) as caught:
        machine.server()
    ways = ("install Maven 3", "--job_server_version", "--flink_job_server_jar", FLINK_VERSION)
    reasons = ("no such artifact" if maven else "no mvn on the path", "no route to host")
    assert [part for part in (*ways, *reasons) if part not in str(caught.value)] == []
    assert machine.cached() == []


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_the_flink_that_was_named_gives_what_a_node_needs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Flink itself, and what logs; connectors and formats would be beside the job's own."""
    needed = [DIST, "log4j-api-2.17.1.jar", "log4j-core-2.17.1.jar", "log4j-slf4j-impl-2.17.1.jar"]
    others = ["flink-csv-1.19.3.jar", "flink-table-planner-loader-1.19.3.jar", "my-log4j-1.jar"]
    home = machine.put_flink(*needed, *others, "flink-dist-notes.txt")
    monkeypatch.setenv(FLINK_HOME, home if by == "variable" else "/elsewhere")
    found = machine.flink(home if by == "flag" else None)
    assert sorted(jar.name for jar in found) == sorted(needed)
    assert all(jar.is_file() for jar in found)
    assert machine.said == []


@pytest.mark.parametrize("by", ["flag", "variable"])
@pytest.mark.parametrize("holds", [(), ("log4j-api-2.17.1.jar",)], ids=["nothing", "no flink"])
def test_a_folder_that_was_named_and_holds_no_flink_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, by: str, holds: tuple[str, ...]
) -> None:
    """It is not passed over for another one; the error says where it was named."""
    machine.put_package(f"x/deps/lib/{DIST}")
    home = machine.put_flink(*holds)
    what = "--flink_home" if by == "flag" else rf"\${FLINK_HOME}"
    if by == "variable":
        monkeypatch.setenv(FLINK_HOME, home)
    with pytest.raises(ValueError, match=f"{what}='{home}' holds no lib/flink-dist"):
        machine.flink(home if by == "flag" else None)


def test_flink_is_taken_out_of_the_package_index_once(machine: Machine) -> None:
    """What a node needs of it; and from the cache after that, without a word."""
    root = f"apache-flink-libraries-{FLINK_PATCH}"
    jar, log = f"{root}/deps/lib/{DIST}", f"{root}/deps/lib/log4j-api-2.17.1.jar"
    machine.put_package(f"{root}/PKG-INFO", jar, log, f"{root}/deps/lib/flink-csv.jar", f"x/{DIST}")
    found = machine.flink()
    assert [each.read_text() for each in found] == [jar, log]
    assert machine.flink() == found
    assert len(machine.said) == 1
    assert (machine.root / "bin" / "python.calls").read_text().count("call") == 1


def test_where_flink_cannot_be_got_the_error_names_the_way_out(machine: Machine) -> None:
    """And what pip said; nothing stays behind that would be taken for Flink."""
    with pytest.raises(EngineError) as caught:
        machine.flink()
    told = ("no index", "--flink_home", FLINK_PATCH)
    assert [part for part in told if part not in str(caught.value)] == []
    assert machine.cached() == []


def test_a_package_without_flink_is_an_error_and_is_not_kept(machine: Machine) -> None:
    """Else every cluster from now on starts with nothing on its class path."""
    machine.put_package("apache-flink-libraries/README")
    with pytest.raises(EngineError, match="--flink_home"):
        machine.flink()
    assert machine.cached() == []


def test_a_job_server_that_is_gone_from_the_cache_is_got_again(machine: Machine) -> None:
    """A folder alone is no jar."""
    machine.put_tool("mvn", "mkdir target && touch target/job-server-1.jar")
    Path(machine.server()).unlink()
    assert Path(machine.server()).is_file()


def test_the_versions_belong_together() -> None:
    """The Flink that is started is of the version that the job server is for."""
    assert FLINK_PATCH.startswith(f"{FLINK_VERSION}.")
    assert jars._POM.is_file()

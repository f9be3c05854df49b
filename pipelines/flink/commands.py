"""The commands around a job on Flink: `cluster`, `submit`, `status`, `stop`, `resume`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from beam_lateness.pipelines import streaming
from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flags import refuse_unknown
from beam_lateness.pipelines.flink.cluster import Cluster, find_jars
from beam_lateness.pipelines.flink.jars import FLINK_VERSION, JOB_SERVER_VERSION
from beam_lateness.pipelines.flink.nodes import Layout
from beam_lateness.pipelines.flink.rest import MASTER, FlinkRest
from beam_lateness.pipelines.flink.run import say
from beam_lateness.pipelines.report import Report, format_time
from beam_lateness.pipelines.running import INTERRUPTED, MISUSED
from beam_lateness.transforms import metrics

_OK: Final = 0
_TROUBLED: Final = 1


def _folder() -> str:
    root = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    return os.path.join(root, "beam-lateness", "flink")


def cluster(argv: Sequence[str]) -> int:
    """Starts, ends or looks at a Flink cluster on this machine."""
    parser = _parser(
        "cluster", "A Flink cluster on this machine, with Beam's job server and workers."
    )
    parser.add_argument("action", choices=["up", "down", "status"])
    add = parser.add_argument
    add("--folder", default=_folder(), help="its logs, checkpoints and savepoints (%(default)s)")
    defaults = Layout(Path())
    ports = {
        "rest_port": "Flink's REST interface and dashboard",
        "job_port": "Beam's job server",
        "worker_port": "the pool of Python workers",
        "rpc_port": "the job manager, for its task managers",
    }
    for name, what in ports.items():
        add(f"--{name}", type=int, default=getattr(defaults, name), help=f"{what} (%(default)s)")
    for name, what in {"task_managers": "how many", "slots": "of each"}.items():
        add(f"--{name}", type=int, default=getattr(defaults, name), help=f"{what} (%(default)s)")
    add("--flink_home", help="an unpacked Flink ($FLINK_HOME; else got from the package index)")
    add("--flink_job_server_jar", help="Beam's job server (else resolved with Maven)")
    add("--flink_version", default=FLINK_VERSION, help="of the job server (%(default)s)")
    add("--job_server_version", default=JOB_SERVER_VERSION, help="Beam release (%(default)s)")
    return _run(parser, argv, _cluster)


def _cluster(options: Any, console: Console) -> int:
    folder = Path(options.folder).absolute()
    if options.action == "down":
        ended = Cluster.of(folder).down()
        say(console, f"ended: {', '.join(ended) or 'nothing ran'}; logs are in {folder / 'log'}")
        return _OK
    if options.action == "status":
        return _show_cluster(Cluster.of(folder), console)
    for name in ("task_managers", "slots"):
        if getattr(options, name) < 1:
            msg = f"--{name} must be at least 1, got {getattr(options, name)}"
            raise ValueError(msg)
    names = ("rest_port", "job_port", "worker_port", "rpc_port", "task_managers", "slots")
    started = Cluster(Layout(folder, **{name: getattr(options, name) for name in names}))
    started.check()
    jars = find_jars(
        options.flink_home,
        options.flink_job_server_jar,
        options.flink_version,
        options.job_server_version,
        console.print,
    )
    started.up(jars)
    return _show_cluster(started, console)


def _show_cluster(shown: Cluster, console: Console) -> int:
    layout, troubles = shown.layout, shown.troubles()
    if troubles:
        for trouble in troubles:
            say(console, trouble)
        return _TROUBLED
    overview = shown.rest.overview()
    say(
        console,
        f"Flink {overview['flink-version']} on http://{layout.master}: "
        f"{overview['taskmanagers']} task managers, {overview['slots-available']} of "
        f"{overview['slots-total']} slots free, {overview['jobs-running']} jobs running",
    )
    say(console, f"logs, checkpoints and savepoints: {layout.folder}")
    say(console, f"flags of a job: {' '.join(layout.flags)}")
    return _OK


def status(argv: Sequence[str]) -> int:
    """Shows the jobs of a cluster, or one of them."""
    parser = _parser("status", "Shows how the jobs of a Flink cluster go, or one of them.")
    parser.add_argument("job", nargs="?", help="name or id (all jobs)")
    _add_master(parser)
    return _run(parser, argv, _status)


def _status(options: Any, console: Console) -> int:
    rest = FlinkRest(options.flink_master)
    if options.job is None:
        for job in rest.jobs():
            line = f"{job.state:<10} {format_time(job.start_ms)}  {job.id}  {job.name}"
            say(console, line)
        return _OK
    job = rest.job(options.job)
    kept, counts = rest.checkpoints(job.id), rest.counts(job.id)
    report = Report.of(counts, "flink", job.name)
    last = (
        "none yet"
        if kept.path is None
        else f"{kept.path} ({kept.size:,} bytes, {format_time(kept.at_ms)})"
    )
    lines = {
        "job": f"{job.name} ({job.id}), {job.state}, started {format_time(job.start_ms)}",
        "checkpoints": f"{kept.completed} completed, {kept.failed} failed",
        "last checkpoint": last,
        "counts": f"{report.counts()} (since the job began, or began anew)",
        "watermark": format_time(counts.get(metrics.WATERMARK_MS)),
    }
    if not job.ended:
        lines["restarts"] = f"{rest.restarts(job.id)} after failures"
    failure = rest.failure(job.id)
    if failure is not None:
        lines["last failure"] = failure
    for name, text in lines.items():
        say(console, f"{name}: {text}")
    return _TROUBLED if job.state == "FAILED" else _OK


def stop(argv: Sequence[str]) -> int:
    """Stops a job, with a savepoint to go on from, or cancels it."""
    parser = _parser(
        "stop",
        "Stops a job of a Flink cluster, with a savepoint (see `resume`) or at once.",
    )
    parser.add_argument("job", nargs="?", help="name or id (the only running job)")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--savepoint", action="store_true", help="keep all it holds")
    how.add_argument(
        "--cancel", action="store_true", help="end it now; open windows are in no result"
    )
    parser.add_argument(
        "--savepoint_dir", help="folder or URL for the savepoint (the cluster's own)"
    )
    _add_master(parser)
    return _run(parser, argv, _stop)


def _stop(options: Any, console: Console) -> int:
    rest = FlinkRest(options.flink_master)
    job = rest.job(options.job)
    if job.ended:
        msg = f"job {job.name} is {job.state} already"
        raise ValueError(msg)
    if options.cancel:
        path = rest.checkpoints(job.id).path
        rest.cancel(job.id)
        rest.await_state(job.id)
        kept = f"; its last checkpoint: {path}" if path else ""
        say(console, f"cancelled {job.name}{kept}")
        return _OK
    folder = options.savepoint_dir
    where = rest.stop(job.id, None if folder is None else _url(folder))
    say(console, f"stopped {job.name}; savepoint: {where}")
    say(
        console,
        f"go on: beam-lateness resume --from={where} with the flags of the job",
    )
    return _OK


def _url(folder: str) -> str:
    return folder if "://" in folder else Path(folder).absolute().as_uri()


def submit(argv: Sequence[str]) -> int:
    """Submits the streaming job and leaves it: `stream --detach`."""
    return streaming.main([*argv, "--detach"])


def resume(argv: Sequence[str]) -> int:
    """Runs the streaming job on from a savepoint or a checkpoint."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--from", dest="path")
    found, flags = parser.parse_known_args(list(argv))
    if "--help" in flags or "-h" in flags:
        print("usage: beam-lateness resume --from PATH FLAGS-OF-THE-JOB\n")
        print("Goes on from a savepoint or checkpoint with the flags that the job had.")
        return _OK
    if not found.path:
        print(
            "beam-lateness resume: error: --from=PATH is required: the savepoint that `stop` gave, "
            "or a checkpoint",
            file=sys.stderr,
        )
        return MISUSED
    path = _url(found.path) if not found.path.startswith("file:") else found.path
    return streaming.main([*flags, f"--savepoint_path={path}"])


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"beam-lateness {name}", description=text, allow_abbrev=False
    )


def _add_master(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flink_master", default=MASTER, help="Flink's REST interface (%(default)s)"
    )


def _run(
    parser: argparse.ArgumentParser, argv: Sequence[str], act: Callable[[Any, Console], int]
) -> int:
    """Runs a command, and turns what goes wrong into one line and an exit code."""
    options, unknown = parser.parse_known_args(list(argv))
    try:
        refuse_unknown(parser, unknown)
        return act(options, Console())
    except (ValueError, EngineError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED

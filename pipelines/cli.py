"""The command `beam-lateness`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.ERROR)

# After the line above: importing Beam without its gcp extra warns of it, on the root logger.
from beam_lateness.pipelines import (  # noqa: E402
    audit,
    explain,
    profiles,
    publish,
    reconcile,
    streaming,
)
from beam_lateness.pipelines.flink import commands  # noqa: E402
from beam_lateness.pipelines.running import INTERRUPTED, MISUSED  # noqa: E402

_COMMANDS = {
    "stream": streaming.main,
    "explain": explain.main,
    "publish": publish.main,
    "profiles": profiles.main,
    "reconcile": reconcile.main,
    "audit": audit.main,
    "cluster": commands.cluster,
    "submit": commands.submit,
    "status": commands.status,
    "stop": commands.stop,
    "resume": commands.resume,
}

_USAGE = """usage: beam-lateness COMMAND [FLAGS]

commands:
  stream    aggregate a stream in windows that correct themselves (--help lists its flags)
  explain   say what holds the watermark of an input back: why there is no output
  publish   publish a file to a topic as a live stream, with faults on demand
  profiles  show the profiles of stream: what each sets, protects and costs
  reconcile add the too late records of dead letters to their windows, each once
  audit     verify the audit trail of a table, or show how a window came to its value

on Flink:
  cluster   start, end or look at a Flink cluster on this machine: up, down, status
  submit    submit the streaming job and leave it (stream --detach)
  status    show how the jobs of a cluster go
  stop      stop a job with a savepoint, or cancel it
  resume    go on from a savepoint or a checkpoint
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("beam_lateness").setLevel(logging.INFO)
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    if arguments and arguments[0] in _COMMANDS:
        return _COMMANDS[arguments[0]](arguments[1:])
    asked = not arguments or arguments[0] in ("-h", "--help")
    print(_USAGE, file=sys.stdout if asked else sys.stderr, end="")
    return 0 if asked else MISUSED


def run() -> None:
    """Runs a command as a process of its own, and ends the process with its exit code.

    After an interrupt, Beam's threads and exit hooks may wait for ever for an engine that is gone:
    all that matters has been written then, so the process ends at once.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == INTERRUPTED:
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    run()

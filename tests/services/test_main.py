"""`python -m services`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from beam_lateness.pipelines.ports import LOOPBACK, accepts, free_ports

pytestmark = pytest.mark.live

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 60.0


def command(*arguments: str) -> list[str]:
    """The command with arguments."""
    return [sys.executable, "-m", "services", *arguments]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_it_starts_ends_with_it(number: signal.Signals) -> None:
    """In good order: it waits for the end of what it has started."""
    [port] = free_ports(1)
    arguments = command("pubsub", f"--pubsub_port={port}")
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            lines: list[str] = []
            while not lines or "Ctrl-C" not in lines[-1]:
                lines.append(running.stdout.readline())
                assert lines[-1], "it has ended"
            assert f"  export PUBSUB_EMULATOR_HOST={LOOPBACK}:{port}\n" in lines
            assert any("pubsub://projects/demo/subscriptions/payments" in line for line in lines)
            assert accepts(port)
            running.send_signal(number)
            assert running.wait(TIMEOUT_S) == 0
        finally:
            running.kill()
    assert not accepts(port)


@pytest.mark.parametrize("service", ["pubsub", "kafka"])
def test_a_taken_port_is_named_with_its_flag(service: str) -> None:
    """In one line."""
    with closing(socket.create_server((LOOPBACK, 0))) as taken:
        port = taken.getsockname()[1]
        arguments = command(service, f"--{service}_port={port}")
        done = subprocess.run(
            arguments, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: port {port} of {LOOPBACK} is taken; name another one with --{service}_port\n"
    )

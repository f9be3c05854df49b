"""Ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, closing, suppress
from typing import Final

from beam_lateness.pipelines.errors import EngineError

LOOPBACK: Final = "127.0.0.1"

# Below those that the system gives to outgoing connections: on one of those, a client that looks
# for a server that is down may connect to itself, and the server cannot come back.
_RANGE: Final = range(20_000, 32_768)


LARGEST: Final = 65_535


def is_free(port: int) -> bool:
    """Tells whether a server can listen on a port."""
    if not 0 < port <= LARGEST:
        return False
    with closing(socket.socket()) as listener:
        # As servers do: the old connections of one that has ended are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def require_free(name: str, *ports: int) -> None:
    """Checks that a server can listen; otherwise a stranger's answers would be taken for its own.

    Raises:
        EngineError: If a port is taken.
    """
    for port in ports:
        if not is_free(port):
            msg = f"{name} cannot start: port {port} of {LOOPBACK} is taken by another program"
            raise EngineError(msg)


def free_ports(count: int) -> list[int]:
    """Gives distinct ports on which nobody listens."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            listener = held.enter_context(closing(socket.socket()))
            with suppress(OSError):
                listener.bind((LOOPBACK, random.SystemRandom().choice(_RANGE)))
                found.append(listener.getsockname()[1])
    return found


def accepts(port: int) -> bool:
    """Tells whether a server accepts connections on a port."""
    if not 0 < port <= LARGEST:
        return False
    with closing(socket.socket()) as client:
        return client.connect_ex((LOOPBACK, port)) == 0

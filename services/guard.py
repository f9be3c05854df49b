"""Runs one program, and never outlives the process that asked for it.

It obeys its standard input: each byte is the number of a signal for the program, and the end of
the input, which also comes when the asking process dies in whatever way, kills the program.
Unlike PR_SET_PDEATHSIG that does not depend on the thread that asked, nor on Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def _obey(process: subprocess.Popen[bytes]) -> None:
    while number := os.read(sys.stdin.fileno(), 1):
        process.send_signal(number[0])
    process.kill()


def main(command: list[str]) -> None:
    """Runs a command and exits as it does; 128 and the signal's number if a signal ended it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    threading.Thread(target=_obey, args=(process,), daemon=True).start()
    code = process.wait()
    # An orderly exit would wait for the thread's read.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])

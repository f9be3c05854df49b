"""Runs commands, and tells what they said."""

from __future__ import annotations

import pytest

from beam_lateness.pipelines.cli import main


class Told:
    """What a command printed, and its exit code.

    Args:
        code: The code.
        out: What it printed to stdout.
        error: And to stderr.
    """

    def __init__(self, code: int, out: str, error: str) -> None:
        self.code, self.out, self.error = code, out, error

    def refuses(self, command: str, *parts: str) -> bool:
        """Whether it ended with 2 and one line on stderr that holds these parts."""
        assert (self.code, self.out) == (2, "")
        assert self.error.startswith(f"beam-lateness {command}: error: ")
        assert self.error.count("\n") == 1
        assert [part for part in parts if part not in self.error] == []
        return True


class Teller:
    """Runs commands, which end as their process would.

    Args:
        capsys: Takes what they print.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> Told:
        """Runs a command."""
        self._capsys.readouterr()
        try:
            code = main(argv)
        except SystemExit as error:
            code = int(str(error.code))
        return Told(code, *self._capsys.readouterr())

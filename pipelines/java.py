"""Where Java and Maven are, for the programs that need them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Final

from beam_lateness.pipelines.errors import EngineError

LEAST_JAVA: Final = 11
_ANSWER_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(who: str) -> str:
    """Gives the program `java`: that of $JAVA_HOME, or else the one on the path.

    Args:
        who: Who needs it, for the error.

    Raises:
        EngineError: If there is none, or it is older than Java 11.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    where = "in $JAVA_HOME" if home else "on the path"
    if java is None:
        msg = f"{who} needs Java, and there is none {where}; install Java {LEAST_JAVA} or later"
        raise EngineError(msg)
    try:
        command = [java, "-version"]
        said = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    version = _VERSION.search(said)
    if version is None or int(version[1]) < LEAST_JAVA:
        first = said.strip().splitlines()[0] if said.strip() else "nothing"
        msg = (
            f"{who} needs Java {LEAST_JAVA} or later, and the one {where} ({java}) says {first!r}; "
            "install a later one, or let $JAVA_HOME name it"
        )
        raise EngineError(msg)
    return java


def find_maven(what: str) -> str:
    """Gives the program `mvn`.

    Args:
        what: What is resolved with it, for the error.

    Raises:
        EngineError: If there is none.
    """
    maven = shutil.which("mvn")
    if maven is None:
        msg = (
            f"{what} resolved with Maven, and there is no mvn on the path; "
            "install Maven 3 and run this again"
        )
        raise EngineError(msg)
    return maven

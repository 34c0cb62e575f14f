"""Finds the Java for Spark and the dev servers: its path and version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError

OLDEST = 17
INSTALL = "sudo apt install openjdk-17-jre-headless   (macOS: brew install openjdk@17), or set JAVA_HOME"


@dataclass(frozen=True, slots=True)
class Java:
    path: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 17 for `17.0.15`; 8 for `1.8.0_422`."""
        numbers = [int(part) for part in re.findall(r"\d+", self.version)[:2]]
        if not numbers:
            return 0
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def searched_places() -> list[str]:
    """The places where java is searched, in order."""
    home = os.environ.get("JAVA_HOME")
    return [f"JAVA_HOME ({home})" if home else "JAVA_HOME (not set)", "PATH"]


def path() -> Path:
    """The java to run: from JAVA_HOME, as in Spark, otherwise from PATH. Raises ConfigError if there is none."""
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home) / "bin" / "java" if home else None
    if candidate and os.access(candidate, os.X_OK):
        return candidate
    found = shutil.which("java")
    if found is None:
        raise ConfigError(f"java was not found; looked in {' and '.join(searched_places())}", hint=INSTALL)
    return Path(found)


def find() -> Java:
    """The java to run and its version. Raises ConfigError if there is none, or if it does not run."""
    executable = path()
    try:
        done = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{executable} does not run: {error}", hint=INSTALL) from error
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return Java(executable, match[1] if match else "unknown")

"""Kill a run at each named point, start it again, and go on until no point is left.

A run is a process of its own, killed by SIGKILL: nothing is flushed, closed or said goodbye to.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

from headrace.support.polling import readable
from headrace.testing.shared_jvm import gateway_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_CHILD = (sys.executable, "-m", "headrace.testing.crash_child")


@dataclass(frozen=True, slots=True)
class Crash:
    """One death: the point it happened at."""

    point: str


class RunFailed(AssertionError):
    """A run ended by itself, and not well."""


class NothingBroken(AssertionError):
    """No run died with a pending batch, so whatever was counted afterwards proves nothing."""


def run(
    target: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run the pipeline `FILE:NAME` until caught up, in a process of its own.

    With `spark`, the process drives the JVM of that session instead of starting one, and is forked from one that
    has done its imports: seconds faster. A kill then leaves the JVM's tasks running, as on a cluster.
    """
    wanted = {**os.environ, **(gateway_environment(spark) if spark else {}), **(environment or {})}
    if spark:
        return _run_forked([target, *arguments], wanted, timeout)
    return subprocess.run(
        [*_CHILD, target, *arguments], env=wanted, capture_output=True, text=True, timeout=timeout, check=False
    )


def kill_at_every_point(
    target: str,
    *,
    feed: Callable[[], None],
    environment: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    most: int = 100,
) -> list[Crash]:
    """Kill one run after another, each at the first point where none has died yet, until one comes through.

    `feed` is called before every run, so that each has a batch to break. Points met while a batch is repeated are
    points of their own: a run is also killed in the middle of its recovery. NothingBroken if no batch was hit.
    """
    crashes: list[Crash] = []
    for _ in range(most):
        feed()
        spared = [f"--spare={crash.point}" for crash in crashes]
        done = run(target, "--die", *spared, environment=environment, spark=spark)
        if done.returncode != -SIGKILL:
            require_success(done)
            if not any(crash.point == "before write" for crash in crashes):
                raise NothingBroken(f"no run died before it wrote a batch; points met: {crashes}")
            return crashes
        crashes.append(Crash(done.stdout.splitlines()[-1]))
    raise AssertionError(f"still dying after {most} kills: {crashes}")


def require_success(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise RunFailed(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


def _run_forked(
    arguments: list[str], environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    server = _idle.pop() if _idle else _ForkServer()
    try:
        done = server.run(arguments, environment, timeout)
    except BaseException:
        server.end()
        raise
    _idle.append(server)
    return done


class _ForkServer:
    """A process that has imported what a run needs, and forks one run at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*_CHILD, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(
        self, arguments: list[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        asking, answering = self._process.stdin, self._process.stdout
        assert asking is not None and answering is not None
        with tempfile.TemporaryDirectory(prefix="headrace-run-") as directory:
            files = {name: Path(directory, name) for name in ("stdout", "stderr")}
            for file in files.values():
                file.touch()
            request = {
                "arguments": arguments,
                "environment": dict(environment),
                "directory": str(Path.cwd()),
                **{name: str(file) for name, file in files.items()},
            }
            asking.write(json.dumps(request) + "\n")
            asking.flush()
            if not readable(answering, timeout):
                raise subprocess.TimeoutExpired(arguments, timeout)
            code = int(answering.readline())
            said = {name: file.read_text(errors="replace") for name, file in files.items()}
        return subprocess.CompletedProcess(arguments, code, **said)

    def end(self) -> None:
        """End it, and the run that it may be at."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.communicate()


_idle: list[_ForkServer] = []


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()

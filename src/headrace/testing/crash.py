"""Kills a run at each crash point and starts it again, until no point is left.

A run is a separate process that is killed by SIGKILL: nothing is flushed or closed.
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
    """A kill, and the point at which it happened."""

    point: str


class RunFailed(AssertionError):
    """A run ended with an error of its own."""


class NothingBroken(AssertionError):
    """No run was killed with a pending batch, so the comparison of rows proves nothing."""


def run(
    target: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run the pipeline `FILE:NAME` in a separate process until it has caught up.

    With `spark`, the process uses the JVM of that session instead of starting one, and is forked from a process that
    has done the imports, which saves seconds. A kill then leaves tasks running in the JVM, as on a cluster.
    """
    variables = {**os.environ, **(gateway_environment(spark) if spark else {}), **(environment or {})}
    if spark:
        return _run_forked([target, *arguments], variables, timeout)
    return subprocess.run(
        [*_CHILD, target, *arguments], env=variables, capture_output=True, text=True, timeout=timeout, check=False
    )


def kill_at_every_point(
    target: str,
    *,
    feed: Callable[[], None],
    environment: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    most: int = 100,
) -> list[Crash]:
    """Kill one run after another, each at its first point where no run was killed yet, until one finishes.

    `feed` is called before each run, so that each has a batch to interrupt. Points that are reached while a batch is
    repeated are separate points: a run is also killed during its recovery. NothingBroken if no kill hit a batch.
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
    """A process that has done the imports of a run, and forks one run at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*_CHILD, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(
        self, arguments: list[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
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
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            if not readable(stdout, timeout):
                raise subprocess.TimeoutExpired(arguments, timeout)
            code = int(stdout.readline())
            output = {name: file.read_text(errors="replace") for name, file in files.items()}
        return subprocess.CompletedProcess(arguments, code, **output)

    def end(self) -> None:
        """End it, and its current run, if any."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.communicate()


_idle: list[_ForkServer] = []


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()

"""Kill a run at each named point, start it again, and go on until no point is left.

A run is a process of its own, killed by SIGKILL: nothing is flushed, closed or said goodbye to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from signal import SIGKILL
from typing import TYPE_CHECKING

from headrace.testing.gateway import gateway_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Crash:
    """One death: the point it happened at."""

    point: str


class RunFailed(AssertionError):
    """A run ended by itself, and not well."""


def run(
    target: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run the pipeline `FILE:NAME` until caught up, in a process of its own.

    With `spark`, the process drives the JVM of that session instead of starting one: seconds faster, and a kill
    leaves the JVM's tasks running, as on a cluster.
    """
    return subprocess.run(
        [sys.executable, "-m", "headrace.testing.child", target, *arguments],
        env={**os.environ, **(gateway_environment(spark) if spark else {}), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
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
    points of their own: a run is also killed in the middle of its recovery.
    """
    crashes: list[Crash] = []
    for _ in range(most):
        feed()
        spared = [f"--spare={crash.point}" for crash in crashes]
        done = run(target, "--die", *spared, environment=environment, spark=spark)
        if done.returncode != -SIGKILL:
            require_success(done)
            return crashes
        crashes.append(Crash(done.stdout.splitlines()[-1]))
    raise AssertionError(f"still dying after {most} kills: {crashes}")


def require_success(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise RunFailed(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")

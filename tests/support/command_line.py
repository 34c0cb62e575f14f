"""Runs the `headrace` command in a separate process; the fixture `cli` runs it in the process of the test."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

SOON = 120.0
"""Deadline in seconds of every wait; a busy machine starts Spark slowly."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def events(self):
        """The events that were printed with --log-format json."""
        return [json.loads(line) for line in self.out.splitlines()]

    def line(self, start):
        """The rest of the only line of stderr that begins with `start`."""
        (found,) = [line for line in self.err.splitlines() if line.startswith(start)]
        return found.removeprefix(start)


class HeadraceProcess:
    """`headrace …` in its own process group, which is killed at the end of the `with` block."""

    def __init__(self, *arguments, cwd, **environment):
        self._log = cwd / f"headrace-{time.monotonic_ns()}"
        self._mark = {"HEADRACE_TEST_RUN": uuid.uuid4().hex}
        with self._log.with_suffix(".out").open("w") as out, self._log.with_suffix(".err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, **environment, **self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self):
        return self._log.with_suffix(".out").read_text()

    @property
    def err(self):
        return self._log.with_suffix(".err").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(SOON)

    def wait_for(self, condition, seconds=SOON):
        """Poll until `condition()` is true; the process must not end before."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}\n{self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"nothing for {seconds} s\n{self.out}\n{self.err}"
            time.sleep(0.05)

    def finish(self, seconds=SOON):
        """Wait for the end."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s\n{self.out}\n{self.err}")
        return Result(code, self.out, self.err)

    def processes(self):
        """Every process of this run: the driver, Spark's JVM (a process group of its own), the Python workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self._mark.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def command_lines(self):
        """The command line of every process of this run that is still alive."""
        lines = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                lines.append(" ".join(process.cmdline()))
        return lines

    def nothing_is_left(self, seconds=SOON):
        """Poll until every process of this run has ended: Spark's JVM ends a moment after its driver."""
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

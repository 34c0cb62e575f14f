"""One server process: in a session of its own, known by its pid and birth, logging to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE = 10.0

# Runs in the child before the server: it dies with its owner, even when that is SIGKILLed. Not in preexec_fn,
# which may deadlock in a process with threads.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): sys.exit("the owner died first")
os.execvp(sys.argv[2], sys.argv[2:])
"""

# Python warns of a child that is forgotten while it runs; these are meant to run on.
_FREE: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Identity:
    """A pid can be given to a stranger; a pid and its time of birth cannot."""

    pid: int
    created: float

    def find(self) -> psutil.Process | None:
        """The process, when it is still running and still the same one."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 2.0  # the clock behind it may be adjusted
            return process if same and not _over(process) else None
        except psutil.NoSuchProcess:
            return None


def _over(process: psutil.Process) -> bool:
    """Dead and only not buried. While other threads of it are still ending, it holds its ports and files."""
    return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1


class Process:
    """Start, stop and kill one server process. `log` is appended to."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.identity: Identity | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None  # also buries it, which only its parent can
        return self.identity is not None and self.identity.find() is not None

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], *, tied: bool) -> None:
        """Start it. `tied`: it dies with this process, however that ends (on Linux)."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        if tied and sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
        # To the kernel a parent dies with the thread that started the child: use one that stays.
        spawner = _spawner(os.getpid())
        with self.log.open("ab") as log:
            self._child = spawner.submit(
                subprocess.Popen[bytes],
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the owner, who stops its servers in order
            ).result()
        if not tied:
            _FREE.append(self._child)
        self.identity = Identity(self._child.pid, psutil.Process(self._child.pid).create_time())

    def terminate(self) -> None:
        """SIGTERM, without waiting. Nothing to do for a process that is gone."""
        self._signal(signal.SIGTERM)

    def stop(self, grace: float = GRACE) -> None:
        """SIGTERM, then SIGKILL when it is still there after `grace` seconds."""
        self.terminate()
        if not self._gone(grace):
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would; returns when it is gone."""
        self._signal(signal.SIGKILL)
        self._gone(10.0)

    def tail(self, lines: int = 20) -> str:
        """The last lines this run wrote to its log."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - 200 * lines, 0))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        process = self.identity.find() if self.identity else None
        if process is not None:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                return

    def _gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


@cache
def _spawner(owner: int) -> ThreadPoolExecutor:
    """The thread that starts servers: one for each process, for a fork does not inherit threads."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"headrace-dev-{owner}")

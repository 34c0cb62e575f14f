"""The process that a crash suite kills: one run of one pipeline, with the points at which to die as arguments.

python -m headrace.testing.crash_child FILE:NAME [--die] [--spare=POINT …] [--die-at=N]
python -m headrace.testing.crash_child --serve

With --serve it imports the modules of a run and then forks a run for each request on its standard input. A fork is an
ordinary process that can be killed, but it saves the second that the imports take.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.runtime.config import load
from headrace.runtime.launch import launch
from headrace.support import crashpoints
from headrace.testing.shared_jvm import attached_session

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED_BY_EVERY_RUN = ("pyspark.sql", "pyspark.testing", "pyarrow.compute", "confluent_kafka.admin", "duckdb")


def main(argv: Sequence[str]) -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("target")
    arguments.add_argument("--die", action="store_true", help="die at the first point that is not spared")
    arguments.add_argument("--spare", action="append", default=[], metavar="POINT")
    arguments.add_argument("--die-at", type=int, default=0, metavar="N", help="die at the N-th point met")
    given = arguments.parse_args(argv)
    met = 0

    def hook(point: str) -> None:
        nonlocal met
        met += 1
        if met == given.die_at or (given.die and point not in given.spare):
            os.write(1, f"{point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    loaded = load(given.target)
    session = attached_session()
    crashpoints.install(hook)
    try:
        launch(loaded.pipeline, until="caught-up", session=session, options=loaded.spark)
    except HeadraceError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    return 0


def serve() -> None:
    """Fork a run for each line of standard input, and reply with its exit code in the convention of `subprocess`."""
    for name in _NEEDED_BY_EVERY_RUN:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Arrow's allocator has a thread, but supports forks
            pid = os.fork()
        if pid == 0:
            _run(request)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: dict[str, Any]) -> None:
    """Become the requested process. Never returns."""
    code = 1
    try:
        wanted = ((os.devnull, os.O_RDONLY), (request["stdout"], os.O_WRONLY), (request["stderr"], os.O_WRONLY))
        for number, (path, mode) in enumerate(wanted):
            os.dup2(os.open(path, mode), number)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        code = main(request["arguments"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # Spark belongs to the parent: do not stop it


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        os._exit(main(sys.argv[1:]))

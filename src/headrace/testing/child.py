"""The process that a crash suite kills: one run of one pipeline, told where to die.

python -m headrace.testing.child FILE:NAME [--die] [--spare=POINT …] [--die-at=N]
"""

from __future__ import annotations

import argparse
import os
import signal

from headrace import crashpoints
from headrace.config import load
from headrace.errors import HeadraceError
from headrace.launch import launch
from headrace.testing.gateway import attached_session


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("target")
    arguments.add_argument("--die", action="store_true", help="die at the first point that is not spared")
    arguments.add_argument("--spare", action="append", default=[], metavar="POINT")
    arguments.add_argument("--die-at", type=int, default=0, metavar="N", help="die at the N-th point met")
    given = arguments.parse_args()
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
        os._exit(error.exit_code)
    os._exit(0)  # Spark is the parent's: leave it alone


if __name__ == "__main__":
    main()

"""The command `headrace`: Ctrl-C while it is being imported ends it like any other, without a traceback.

Not in the package, so that Ctrl-C is met while that is being imported, too.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells expect it."""


def main() -> None:
    try:
        from headrace.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()

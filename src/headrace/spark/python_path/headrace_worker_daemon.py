"""Python workers that leave SIGTERM to the driver, which finishes the running batch first.

systemd sends SIGTERM to every process of a service. pyspark's daemon would end its workers, and with them the batch.
It still ends at the end of its stdin, which the JVM holds. It is alone in its folder: workers are forked from the
process that imports this module, which therefore must not import `headrace` with the threads of its drivers.
"""

import signal

from pyspark import daemon

if __name__ == "__main__":
    # A handler, not SIG_IGN: programs that a user's function starts must still be stopped by SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    # The daemon, and each worker after its fork, would restore SIGTERM by this name.
    daemon.SIGTERM = signal.SIGUSR2  # type: ignore[attr-defined]
    daemon.manager()

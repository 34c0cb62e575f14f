"""Starts, follows and kills the demo's pipeline as a child process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.demo.verify import Mark

PATIENCE = 300.0
"""Timeout of a step in seconds, generous for a busy machine."""


class Child:
    """One run of `headrace run clicks.toml`, followed through its JSON log."""

    def __init__(self, pipeline: Path, log: Path, *arguments: str) -> None:
        self._errors = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", str(pipeline), "--log-format", "json", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the demo only, which ends its children
        )
        self.marks: list[Mark] = []
        self.batches = 0
        self.open_batch = False
        self.began: datetime | None = None
        self.ended: datetime | None = None
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, condition: Any, timeout: float) -> bool:
        """Wait until `condition(self)` is true, the process has ended, or the timeout has passed."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: condition(self) or not self.alive, timeout)) and condition(self)

    def kill(self) -> None:
        """Send SIGKILL, then wait until no process of the run is left."""
        self._process.send_signal(signal.SIGKILL)
        self._finish()

    def stop(self, timeout: float = PATIENCE) -> int:
        """Send SIGTERM: the run finishes the batch in flight."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float) -> int:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise HeadraceError(f"the pipeline did not end within {timeout:g} s") from None
        finally:
            self._finish()

    def _finish(self) -> None:
        if self.alive:
            self._process.kill()
        self._process.wait()
        self._listener.join(10)  # Spark's JVM, which also holds the pipe, ends after its driver
        if self._process.stdout is not None and not self._listener.is_alive():
            self._process.stdout.close()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._take(json.loads(line) if line.startswith("{") else {})
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _take(self, entry: dict[str, Any]) -> None:
        match entry.get("event"):
            case "RunStarted":
                at = datetime.fromisoformat(entry["time"])
                self.marks += [(_partition(name), offset, at) for name, offset in entry["positions"].items()]
            case "BatchStarted":
                self.open_batch = True
                self.began = self.began or datetime.fromisoformat(entry["time"])
            case "BatchDone":
                self.open_batch = False
                self.ended = datetime.fromisoformat(entry["time"])
                self.batches += 1
                self.marks += [(partition, until, self.ended) for _, partition, _, until in entry["batch"]["ranges"]]


def _partition(name: str) -> int:
    return int(name.rpartition("[")[2].removesuffix("]"))

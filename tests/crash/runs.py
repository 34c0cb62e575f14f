"""Runs `headrace run` in its own process session, with its own JVM, follows its JSON log and kills it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from crash.pipelines import TARGET
from headrace.testing.crash import require_success, run

# So small that several fit into a small machine.
_SMALL_JVM = ("--spark=spark.driver.memory=512m",)


def die_at_every_point(run, feed, most=30):
    """Run again and again, each time up to the first point where no run has died yet, until one ends by itself.

    `run` starts a process that survives the points it is given and prints the one at which it dies.
    """
    points = []
    while True:
        feed()
        done = run(*points)
        if done.returncode != -signal.SIGKILL:
            assert done.returncode == 0, done.stderr
            return points
        points.append(done.stdout.splitlines()[-1])
        assert len(points) < most, points


class Run:
    """One process of a case. The `with` block ends it, also after an error."""

    def __init__(self, case, *arguments):
        self.events = []
        self._changed = threading.Condition()
        self._errors = Path(case.directory) / "stderr.txt"
        self._mark = {"HEADRACE_TEST_RUN": uuid.uuid4().hex}
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headrace.cli.main",
                    "run",
                    TARGET,
                    "--log-format=json",
                    *_SMALL_JVM,
                    *arguments,
                ],
                env={**os.environ, **case.environment, **self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def alive(self):
        return self._process.poll() is None

    @property
    def done(self):
        return self.seen("BatchDone")

    @property
    def replayed(self):
        return any(event["replay"] for event in self.seen("BatchStarted"))

    @property
    def open_batch(self):
        """The batch that was started but is not done, according to the log."""
        steps = [event for event in list(self.events) if event["event"] in {"BatchStarted", "BatchDone"}]
        return steps[-1]["batch"] if steps and steps[-1]["event"] == "BatchStarted" else None

    @property
    def failure(self):
        """The type of the error that the run ended with."""
        ends = self.seen("RunStopped")
        return ends[-1]["error"]["type"] if ends and ends[-1]["error"] else None

    def seen(self, name):
        return [event for event in list(self.events) if event["event"] == name]

    def wait_for(self, condition, seconds=180):
        """Wait until `condition()` is true. The run must not end before."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or not self._listener.is_alive(), seconds)
        assert condition(), f"not within {seconds} s; {self}"

    def wait_for_more(self, batches, seconds=180):
        """Wait until it has finished that many more batches."""
        wanted = len(self.done) + batches
        self.wait_for(lambda: len(self.done) >= wanted, seconds)

    def exit_code(self, seconds=180):
        """Wait until it ends by itself."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s; {self}") from None
        self.kill()
        return code

    @property
    def pid(self):
        return self._process.pid

    def stop(self):
        """Send SIGTERM, like an operator."""
        self._process.terminate()
        return self.exit_code()

    def pause(self):
        """Send SIGSTOP to driver, JVM and Python workers, which have their own groups; wait until all have stopped."""
        self._signal(signal.SIGSTOP)
        until(lambda: all(member.status() == psutil.STATUS_STOPPED for member in self._members()))

    def resume(self):
        self._signal(signal.SIGCONT)

    def _signal(self, number):
        for member in self._members():
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def kill(self):
        """Send SIGKILL to driver, JVM and Python workers; wait until none of them is left."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        until(lambda: not self._members())
        self._listener.join(10)
        self._process.stdout.close()

    def __str__(self):
        exit_code = self._process.poll()
        state = "alive" if exit_code is None else f"exit code {exit_code}"
        said = self._errors.read_text(errors="replace")[-3000:]
        return f"{state}, last events {self.events[-5:]}, stderr:\n{said}"

    def _members(self):
        """The processes of the run, found by its environment, because the JVM has a session of its own."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self._mark.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _listen(self):
        for line in self._process.stdout:
            if line.startswith("{") and line.endswith("\n"):
                self._hear(json.loads(line))
        with self._changed:
            self._changed.notify_all()

    def _hear(self, event):
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


@dataclass(frozen=True)
class Death:
    """A kill at a random time: the batch it interrupted, and the number of records produced but not stored."""

    batch_open: bool
    in_recovery: bool
    left: int


def kill_at_random(case, feed, chance):
    """Start a run and kill its process group at a random moment: in its first batch, which may be the pending batch of
    the previous run, or later, in or between batches."""
    with Run(case) as run:
        if chance.random() < 0.4:
            run.wait_for(lambda: run.seen("BatchStarted"))
        else:
            run.wait_for(lambda: run.done)
            time.sleep(chance.uniform(0, 1.5))
            run.wait_for(lambda: run.open_batch)
        time.sleep(chance.uniform(0, 0.25))
        run.kill()
        return Death(
            batch_open=run.open_batch is not None,
            in_recovery=run.replayed and not run.done,
            left=len(feed.acknowledged) - len(set(case.stored())),
        )


def drained(case, spark):
    """The stored rows after a run without limits has caught up; a second run must change nothing."""
    unlimited = case.limited(1_000_000)
    require_success(run(TARGET, environment=unlimited.environment, spark=spark))
    stored = case.stored()
    require_success(run(TARGET, environment=unlimited.environment, spark=spark))
    assert sorted(case.stored()) == sorted(stored), "a quiet run changed what was stored"
    return stored


def until(condition, seconds=15):
    """Poll until `condition()` is true, for conditions that no log reports."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)

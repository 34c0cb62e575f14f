"""Runs a pipeline in the background of a test, on the Spark session of the tests."""

import threading
import time

from headrace.engine.engine import DirectEngine
from headrace.runtime.launch import open_sources
from headrace.runtime.runner import Runner

SOON = 60


class BackgroundRun:
    """A run until the condition of the test is met; `seen` are its events."""

    def __init__(self, pipeline, spark):
        self.sink, self.seen = pipeline.sink, []
        engine = DirectEngine(spark, pipeline)
        self._runner = Runner(pipeline, open_sources(pipeline.sources), engine, observer=self.seen.append)
        self._failed = []
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self._runner.run()
        except Exception as error:
            self._failed.append(error)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._runner.stop("the test is over")
        self._thread.join(SOON)
        assert not self._thread.is_alive()

    def wait(self, condition, what="what is waited for", seconds=SOON):
        deadline = time.monotonic() + seconds
        while not condition() and not self._failed:
            assert time.monotonic() < deadline, f"no {what}: {self.seen[-5:]}"
            time.sleep(0.02)
        assert not self._failed, f"before {what}: {self._failed}"

    def all(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]

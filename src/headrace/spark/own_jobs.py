"""Tags the Spark jobs of one run, so that they can be cancelled without those of other runs in the session."""

from __future__ import annotations

import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_PREFIX = "headrace-run-"
_CANCEL_SECONDS = 0.5
"""Time between two cancellations: a batch may start its next job after one."""


class OwnJobs:
    """The jobs that the thread of a run submits. Created in the thread that starts the run.

    In Spark, tags belong to threads of the JVM. With pinned threads (PYSPARK_PIN_THREAD, the default) each Python
    thread has its own; without them jobs cannot be told apart, and `cancel` cancels all jobs of the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        from py4j.clientserver import ClientServer  # type: ignore[import-untyped]
        from pyspark import SparkContext

        self._spark: Any = spark
        self._context = spark.sparkContext
        self._tag = f"{_PREFIX}{uuid.uuid4().hex}"
        self._pinned = isinstance(SparkContext._gateway, ClientServer)
        self._properties = self._context._jsc.sc().getLocalProperties().clone() if self._pinned else None

    def adopt_thread(self) -> None:
        """Tag the jobs of this thread from now on. It gets the properties of the starting thread, such as the pool."""
        if not self._pinned:
            return
        context = cast("Any", self._context)
        context._jsc.sc().setLocalProperties(self._properties)
        for tag in context.getJobTags():
            if tag.startswith(_PREFIX):  # inherited, if the code of another run started this one
                context.removeJobTag(tag)
        context.addJobTag(self._tag)
        sessions = getattr(context._jvm, "org.apache.spark.sql.classic.SparkSession")
        sessions.setActiveSession(self._spark._jsparkSession)

    def cancel(self, done: threading.Event) -> None:
        """Cancel them, and later ones, until `done` is set."""
        cancel_until(
            done,
            partial(self._context.cancelJobsWithTag, self._tag) if self._pinned else self._context.cancelAllJobs,
        )


def cancel_until(done: threading.Event, cancel: Callable[[], None]) -> None:
    """Call `cancel` repeatedly until `done` is set."""
    while True:
        with suppress(Exception):  # Spark has ended: nothing is left to cancel, and the batch fails by itself
            cancel()
        if done.wait(_CANCEL_SECONDS):
            return

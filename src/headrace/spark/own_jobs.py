"""The Spark jobs of one run: tagged, so that they can be cancelled without those of others in the same session."""

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
_AGAIN = 0.5
"""Seconds between two cancellations: a batch that was between two jobs starts the next one."""


class OwnJobs:
    """Made in the thread that starts a run; its jobs are those that the thread of the run submits.

    Spark knows tags by the JVM's threads. With pinned threads (PYSPARK_PIN_THREAD, the default) each Python thread has
    one of its own; without them nobody can tell whose a job is, and `cancel` cancels all jobs of the session.
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
        """Tag what this thread submits from now on. It inherits what the starting thread had set, as its pool."""
        if not self._pinned:
            return
        context = cast("Any", self._context)
        context._jsc.sc().setLocalProperties(self._properties)
        for tag in context.getJobTags():
            if tag.startswith(_PREFIX):  # a run that was started by the code of another one
                context.removeJobTag(tag)
        context.addJobTag(self._tag)
        sessions = getattr(context._jvm, "org.apache.spark.sql.classic.SparkSession")
        sessions.setActiveSession(self._spark._jsparkSession)

    def cancel(self, over: threading.Event) -> None:
        """Cancel them, and those that follow, until `over`."""
        cancel_until(
            over,
            partial(self._context.cancelJobsWithTag, self._tag) if self._pinned else self._context.cancelAllJobs,
        )


def cancel_until(over: threading.Event, cancel: Callable[[], None]) -> None:
    """Call `cancel` again and again until `over`."""
    while True:
        with suppress(Exception):  # Spark is gone: then nothing is left to cancel, and the batch fails by itself
            cancel()
        if over.wait(_AGAIN):
            return

"""The timeout of a batch: cancels the Spark jobs of this batch, and no others."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import BatchTimeout, HeadraceError, RetriableError
from headrace.spark.own_jobs import cancel_until
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from headrace.types import Batch


@contextmanager
def deadline(spark: SparkSession, batch: Batch, seconds: float | None) -> Iterator[None]:
    """BatchTimeout if the block takes longer than `seconds`, because its Spark jobs were cancelled.

    Only Spark jobs of this thread are cancelled. Other calls that may block, such as those to a database, have their
    own timeouts.
    """
    if seconds is None:
        yield
        return
    context, tag = spark.sparkContext, f"headrace-{uuid.uuid4().hex}"
    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            late.set()
            cancel_until(done, partial(context.cancelJobsWithTag, tag))

    context.addJobTag(tag)
    watcher = threading.Thread(target=watch, name="headrace-timeout", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if not late.is_set() or (isinstance(error, HeadraceError) and not isinstance(error, RetriableError)):
            raise
        raise BatchTimeout(
            f"batch {batch.id} of {counted(len(batch), 'offset')} took longer than {seconds:g} s and was cancelled",
            hint='timeout="…" of the pipeline gives it more time, hr.Limits(max_records=…) makes smaller batches',
        ) from error
    finally:
        done.set()
        watcher.join()
        context.removeJobTag(tag)

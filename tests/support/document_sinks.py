"""Helpers for tests of document sinks."""

import time

import pytest

from headrace.core.dead_letters import DeadLetter, DeadLetterBatch
from headrace.errors import RetriableError
from headrace.testing.sinks import batch, frame, numbered

_ORIGIN = (
    "named_struct('topic', 'clicks', 'partition', 0, 'offset', {offset}L, 'key', CAST(NULL AS BINARY),"
    " 'tombstone', {tombstone}) AS _kafka"
)


def rows(spark, *selections, start=0, tombstone=False):
    """One row per SQL selection, for records from the offset `start`."""
    made = None
    for offset, selection in enumerate(selections, start):
        one = spark.sql(f"SELECT {selection}, {_ORIGIN.format(offset=offset, tombstone=str(tombstone).lower())}")
        made = one if made is None else made.unionByName(one)
    return made


def refused(sink, batch, frame):
    """Write, and return the offset and reason of each rejected row."""
    found = []

    def originals(refusals):
        return [DeadLetter(r.origin, None, None, None, (), r.error, r.place) for r in refusals]

    dead_letters = DeadLetterBatch([], limit=10, fetch_records=originals, send=found.extend)
    sink.write_with_dead_letters(batch, frame, dead_letters)
    return {letter.origin.offset: letter.error for letter in found}


def write_around_a_death(server, sink, spark):
    """Write two batches of two rows, and kill `server` before the second, which must raise a retriable error."""
    sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    server.kill()
    began = time.monotonic()
    with pytest.raises(RetriableError):
        sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
    assert time.monotonic() - began < 20
    server.start()
    sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))

"""A process that runs pipelines for ever, one after the other, as a scheduler does: nothing is left of a run."""

import gc
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import BadRecord

SOON = 30


def held():
    """The threads and the open files of this process, whatever came and went while they were counted."""
    gc.collect()
    files = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            files.append(str(file.readlink()).partition(":")[0])
        except OSError:
            continue
    return Counter(files) + Counter(thread.name.rstrip("0123456789") for thread in threading.enumerate())


@pytest.fixture
def runs(topic, spark, tmp_path, monkeypatch, postgres):
    """By the name of a kind of pipeline: a run of it, which reads a record that was not read before."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    where, out, dead = topic(partitions=2), topic(), topic()
    name = f"left-{uuid.uuid4().hex[:8]}"

    def pipeline(**given):
        source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT"))
        wanted = {"sink": sinks.DuckDB(tmp_path / "x.duckdb", "t"), "guarantee": "exactly-once", **given}
        return hr.Pipeline(name=name, source=source, **wanted)

    made = {
        "mirrored": lambda: pipeline(
            sink=sinks.Parquet(tmp_path / "rows"), offsets=stores.SQLite(tmp_path / "o.db"), mirror_group=name
        ),
        "dead letters": lambda: pipeline(dead_letters=hr.DeadLetters(topic=dead.name)),
        "to Kafka": lambda: pipeline(sink=sinks.Kafka(out.bootstrap, out.name, format=hr.Json())),
        "to PostgreSQL": lambda: pipeline(sink=sinks.Postgres(postgres.address, name.replace("-", "_"), create=True)),
        "failing": pipeline,
    }

    def in_hand():
        source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT"))
        with hr.stream(source, name=name, offsets=stores.SQLite(tmp_path / "s.db"), session=spark) as batches:
            for batch in batches:
                assert batch.rows().count()
                batch.commit()
                break

    def run(kind):
        where.produce([{"id": 1}])
        if kind == "in hand":
            return in_hand()
        if kind in ("failing", "dead letters"):
            where.produce([b"{"])
        try:
            return made[kind]().run(until="caught-up", session=spark, fail_fast=True)
        except BadRecord:
            assert kind == "failing"

    return run


@pytest.mark.parametrize("kind", ["mirrored", "dead letters", "to Kafka", "to PostgreSQL", "failing", "in hand"])
def test_a_run_leaves_no_thread_and_no_open_file(runs, kind):
    runs(kind)  # some things are made once for a process
    runs(kind)
    before = held()
    for _ in range(3):
        runs(kind)
    deadline = time.monotonic() + SOON
    while more := held() - before:  # what was let go of ends in its own time
        assert time.monotonic() < deadline, more
        time.sleep(0.05)

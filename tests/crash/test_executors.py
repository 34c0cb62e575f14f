"""Executors and Python workers die in the middle of a COPY, on a small cluster: Spark repeats their tasks."""

import os
import signal

import psutil
import psycopg
import pytest

from crash.pipelines import _table
from crash.runs import Run, drained, until

pytestmark = pytest.mark.timeout(600)

CLUSTER = (
    "--spark=spark.master=local-cluster[2,1,600]",
    "--spark=spark.executor.memory=512m",
    "--spark=spark.task.maxFailures=8",
    "--spark=spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
# A row takes a millisecond, so that a COPY is there to be interrupted.
SLOW = """CREATE TABLE {t} (id bigint, value text);
    CREATE FUNCTION {t}_slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_slow()"""
COPYING = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%'"


@pytest.fixture
def slow_case(case_on, postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_SCALA_VERSION", "2.13")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute(SLOW.format(t=_table(tmp_path)))
        yield *case_on("postgres", max_records=2_000), connection


def victims(run, what):
    """Executor JVMs of a run, or the Python workers below them (not their daemon, which is the first below)."""
    everything = psutil.Process(run.pid).children(recursive=True)
    executors = [process for process in everything if "CoarseGrainedExecutorBackend" in command(process)]
    if what == "executor":
        return executors
    workers = [worker for e in executors for daemon in e.children() for worker in daemon.children()]
    return [worker for worker in workers if command(worker)]


def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


@pytest.mark.parametrize("what", ["executor", "python worker"])
def test_a_task_whose_process_dies_in_the_middle_of_a_copy_is_repeated_and_no_row_is_there_twice(
    what, slow_case, spark
):
    case, feed, connection = slow_case
    feed.send(6_000)
    with Run(case, *CLUSTER) as run:
        kills = 0
        while kills < 3:
            until(lambda: connection.execute(COPYING).fetchone() != (0,), seconds=90)
            if not (found := victims(run, what)):
                continue
            os.kill(found[0].pid, signal.SIGKILL)
            kills += 1
            done = len(run.done)
            if kills < 3:
                run.wait_for(lambda done=done: len(run.done) > done)
                feed.send(2_000)
        feed.send(100)
        run.wait_for(lambda: run.done and run.done[-1]["lag"] == 0)
        assert run.stop() == 0, str(run)

    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"

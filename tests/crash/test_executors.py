"""Executors and Python workers die in the middle of a transaction on a small cluster; Spark repeats their tasks."""

from contextlib import suppress

import psutil
import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from crash.pipelines import _table
from crash.runs import Run, drained, until
from headrace.testing.committed_records import count_undecided

pytestmark = pytest.mark.timeout(600)

CLUSTER = (
    "--spark=spark.master=local-cluster[2,1,600]",
    "--spark=spark.executor.memory=512m",
    "--spark=spark.task.maxFailures=8",
    "--spark=spark.sql.execution.arrow.maxRecordsPerBatch=50",  # so that some rows are sent before others arrive
    "--spark=spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
# A row takes a millisecond, so that a COPY lasts long enough to interrupt it.
SLOW = """CREATE TABLE {t} (id bigint, value text);
    CREATE FUNCTION {t}_slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_slow()"""
BACKEND = "CoarseGrainedExecutorBackend"
COPYING = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%'"


@pytest.fixture(params=["postgres", "kafka, slowly"])
def slow_case(case_on, kafka, tmp_path, monkeypatch, request):
    """A case, its feed, and a function that returns whether it has an open transaction."""
    monkeypatch.setenv("SPARK_SCALA_VERSION", "2.13")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    case, feed = case_on(request.param, max_records=2_000)
    if request.param != "postgres":
        target = _table(tmp_path)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        yield case, feed, lambda: seen_open(admin, target)
        return
    with psycopg.connect(request.getfixturevalue("postgres").address, autocommit=True) as connection:
        connection.execute(SLOW.format(t=_table(tmp_path)))
        yield case, feed, lambda: connection.execute(COPYING).fetchone()[0]


def seen_open(admin, topic):
    try:
        return count_undecided(admin, topic) if topic in admin.list_topics(timeout=30).topics else 0
    except KafkaException:  # a topic that was just created has no leader yet
        return 0


def victims(run, what):
    """The executor JVMs of a run, or their Python workers (not the daemon, which is the first child)."""
    executors = [process for process in below(run.pid, recursive=True) if BACKEND in command(process)]
    if what == "executor":
        return executors
    workers = [worker for e in executors for daemon in below(e.pid) for worker in below(daemon.pid)]
    return [worker for worker in workers if command(worker)]


def below(pid, **options):
    try:
        return psutil.Process(pid).children(**options)
    except psutil.NoSuchProcess:  # it has just ended
        return []


def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


@pytest.mark.matrix(sample=2)
@pytest.mark.parametrize("what", ["executor", "python worker"])
def test_a_task_whose_process_dies_in_a_transaction_is_repeated_and_no_row_is_there_twice(what, slow_case, spark):
    case, feed, open_ones = slow_case
    feed.send(3_000)
    with Run(case, *CLUSTER) as run:
        with feed.flowing(rate=400):
            kills = 0
            while kills < 3:
                until(open_ones, seconds=240)
                if not (found := victims(run, what)):
                    continue
                with suppress(psutil.NoSuchProcess):  # it ended by itself: take the next one
                    found[0].kill()
                    kills += 1
                run.wait_for_more(batches=1)
        assert run.stop() == 0, str(run)

    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"

"""The example with events and alerts in Cassandra: both tables are right after runs that were killed."""

import json
import runpy
import sys
from collections import Counter
from signal import SIGKILL

import pytest

from headrace.testing.crash import require_success, run
from support.project import ROOT

EXAMPLE = ROOT / "examples" / "events_alerts"
BEFORE = ["anchor", "before begin", "before write"]


@pytest.fixture
def produced(kafka, cassandra, monkeypatch):
    """Make the tables, and give a function that sends events."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("CASSANDRA_HOSTS", cassandra.hosts)
    runpy.run_path(str(EXAMPLE / "schema.py"))

    def produce(count):
        monkeypatch.setattr(sys, "argv", ["produce.py", str(count)])
        runpy.run_path(str(EXAMPLE / "produce.py"))

    return produce


def test_both_tables_are_right_after_kills_with_the_rows_written_and_the_offsets_not_moved(produced, spark, cassandra):
    for name in ("events", "alerts"):
        target = f"{EXAMPLE / 'app.py'}:{name}"
        produced(150)
        died = run(target, "--die", *(f"--spare={point}" for point in BEFORE), spark=spark)
        assert (died.returncode, died.stdout.splitlines()[-1]) == (-SIGKILL, "cassandra: rows written"), died.stderr
        produced(150)
        require_success(run(target, spark=spark))
    require_success(run(f"{EXAMPLE / 'app.py'}:events", spark=spark))

    sent = _sent(cassandra)
    events, alerts = _stored(cassandra)
    assert len(sent) == 600
    assert events == Counter(sent)
    unwell = Counter((source, ts[:16]) for _, ts, source, _, health in sent if health < 20)
    assert alerts == unwell


def _sent(cassandra):
    import os

    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"], "group.id": "check"})
    found = []
    for partition in range(3):
        at = TopicPartition("exactlyonce.events", partition, 0)
        _, end = reader.get_watermark_offsets(at, 10)
        reader.assign([at])
        while at.offset < end:
            message = reader.poll(10)
            at.offset = message.offset() + 1
            event = json.loads(message.value())
            found.append((event["id"], event["ts"][:23], event["source"], event["client"], event["health"]))
    reader.close()
    return found


def _stored(cassandra):
    from cassandra.cluster import Cluster

    host, port = cassandra.hosts.split(":")
    with Cluster([host], port=int(port), protocol_version=4) as cluster:
        session = cluster.connect("exactlyonce")
        events = Counter(
            (row.id, row.ts.isoformat(timespec="milliseconds"), row.source, row.client, row.health)
            for row in session.execute("SELECT id, ts, source, client, health FROM events")
        )
        alerts = Counter()
        for row in session.execute("SELECT source, ts, event_count FROM alerts"):
            alerts[row.source, row.ts.isoformat()[:16]] += row.event_count
    return events, alerts

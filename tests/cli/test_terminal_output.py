"""What a run and the tools show, on a real broker: records and not offsets, nothing that a terminal would obey."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position

import headrace as hr
from headrace import events, sinks, stores
from headrace.cli import completion
from headrace.kafka.cluster import Cluster
from headrace.types import Batch, Range, TopicPartition
from support.command_line import SOON

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
EVIL = "\x1b]0;owned\x07\x1b[2J\r\nerror: forged\x9b31m\u202egnp.exe\u2066\u2028\x7f"


def pipeline(where, sink, **more):
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id INT, page STRING"))
    return hr.Pipeline(**{"name": "counted", "source": source, "sink": sink, "guarantee": "exactly-once", **more})


def done(made, spark):
    seen = []
    made.run(until="caught-up", session=spark, fail_fast=True, observer=seen.append)
    return [event for event in seen if isinstance(event, events.BatchDone)], seen[-1]


SINKS = {
    "memory": lambda path: (sinks.Memory(), {"guarantee": "at-least-once"}),
    "sqlite": lambda path: (sinks.SQLite(path / "rows.db", table="rows"), {}),
    "parquet": lambda path: (sinks.Parquet(path / "rows"), {}),
}


@pytest.fixture
def transactions(topic):
    """Seven records that are read, in twelve offsets: with the markers of two transactions and an aborted one."""
    where = topic(partitions=1)
    where.produce_in_transaction([{"id": number, "page": "/"} for number in range(5)], commit=True)
    where.produce_in_transaction([{"id": -1}] * 3, commit=False)
    where.produce([{"id": 5, "page": "/"}, {"id": 6}])
    return where


@pytest.mark.parametrize("name", SINKS)
def test_records_are_counted_without_transaction_markers_and_rows_apart(name, transactions, spark, tmp_path):
    sink, more = SINKS[name](tmp_path)
    store = {} if isinstance(sink, sinks.SQLite) else {"offsets": stores.Memory()}
    made = pipeline(transactions, sink, transform=lambda rows: rows.where("page IS NOT NULL"), **store, **more)
    (batch,), stopped = done(made, spark)
    assert len(batch.batch) == 12
    assert (batch.records, batch.rows) == (7, 6)
    assert (stopped.records, stopped.rows) == (7, 6)


def test_records_that_go_to_the_dead_letters_are_read_and_not_written(topic, spark, tmp_path):
    where = topic(partitions=2)
    where.produce([{"id": number, "page": "/"} for number in range(10)] + [b"not JSON"])
    sink = sinks.SQLite(tmp_path / "rows.db", table="rows")
    made = pipeline(where, sink, dead_letters=hr.DeadLetters(table="bad"))
    (batch,), _ = done(made, spark)
    assert (batch.records, batch.rows) == (11, 10)


def test_records_are_not_counted_where_the_transform_reads_some_of_them_itself(topic, spark):
    where = topic(partitions=2)
    where.produce([{"id": number} for number in range(10)])
    made = pipeline(
        where,
        sinks.Memory(),
        transform=lambda rows: rows.where("id >= 0") if rows.first() is None else rows,
        guarantee="at-least-once",
        offsets=stores.Memory(),
    )
    (batch,), stopped = done(made, spark)
    assert batch.records is None
    assert stopped.records == 10


def test_no_tool_brings_control_characters_of_records_or_groups_to_the_terminal(topic, cli, tmp_path):
    where = topic(partitions=1)
    producer = Producer({"bootstrap.servers": where.bootstrap, "log_level": 0})
    evil = EVIL.encode()
    producer.produce(where.name, evil, evil, headers=[(EVIL, evil)])
    assert producer.flush(30) == 0
    group = f"{where.name}{EVIL}"
    consumer = Consumer(
        {"bootstrap.servers": where.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )
    consumer.commit(offsets=[Position(where.name, 0, 1, EVIL)], asynchronous=False)
    consumer.close()
    at = ("--bootstrap", where.bootstrap)
    said = [
        cli("consume", where.name, "-v", *at),
        cli("consume", where.name, "--format", "json", *at),
        cli("consume", where.name, "--json", *at),
        cli("groups", "list", *at),
        cli("groups", "list", "--json", *at),
        cli("groups", "describe", group, *at),
        cli("groups", "describe", f"no such {EVIL}", *at),
        cli("groups", "delete", group, *at),
        cli("topics", "describe", where.name, "--group", group, *at),
        cli("topics", "describe", f"no such {EVIL}", *at),
        cli("offsets", "import", "--store", f"sqlite:{tmp_path / 'o.db'}", "--pipeline", f"p{EVIL}",
             "--kafka-group", group, "--execute", *at),
        cli("offsets", "history", "--store", f"sqlite:{tmp_path / 'o.db'}", "--pipeline", f"p{EVIL}", *at),
        cli("offsets", "show", "--store", f"sqlite:{tmp_path / 'o.db'}", "--pipeline", f"p{EVIL}", *at),
        cli("offsets", "lag", "--store", f"sqlite:{tmp_path / 'o.db'}", "--pipeline", f"p{EVIL}", *at),
    ]  # fmt: skip
    for done in said:
        text = done.out + done.err
        assert not RAW.search(text), repr(text)
        assert not any(line.startswith("error: forged") for line in text.splitlines()), text
    assert "forged" in said[0].out


def test_a_bad_record_brings_no_control_character_into_the_log_or_the_error(topic, spark, cli, tmp_path):
    where = topic(partitions=1)
    where.produce([EVIL.encode()])
    file = tmp_path / "clicks.toml"
    file.write_text(f"""
        name = "clicks"
        guarantee = "exactly-once"
        [source]
        kafka = "{where.bootstrap}"
        topics = ["{where.name}"]
        format = {{ json = "id INT", on_error = "fail" }}
        [sink]
        sqlite = "{tmp_path / "rows.db"}"
        table = "rows"
    """)
    for log_format in ("plain", "json"):
        run = cli("run", file, "--until", "caught-up", "--fail-fast", "--log-format", log_format)
        text = run.out + run.err
        assert run.code == 1
        assert not RAW.search(text), repr(text)
        assert not any(line.startswith("error: forged") for line in text.splitlines()), text
        # For people once in all; what a machine reads on standard output has it as the error of an event.
        assert (text if log_format == "plain" else run.err).count("owned") == 1, text


def test_the_shell_completes_topics_and_groups(topic, monkeypatch):
    where = topic(partitions=1)
    group = f"group-of-{where.name}"
    settings = {"bootstrap.servers": where.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(settings)
    consumer.commit(offsets=[Position(where.name, 0, 1)], asynchronous=False)
    consumer.close()
    monkeypatch.setattr(completion, "_SECONDS", 30.0)  # a busy machine
    verb = SimpleNamespace(params=[])
    at = SimpleNamespace(command=verb, params={"bootstrap": where.bootstrap})
    assert completion.topics(at, where.name[:-3]) == [where.name]
    assert completion.groups(at, "group-of-test") == [group]
    monkeypatch.setenv("KAFKA_BOOTSTRAP", where.bootstrap)
    assert completion.topics(SimpleNamespace(command=verb, params={}), "__") == []


def test_watching_the_lag_redraws_it_in_place(topic, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": number} for number in range(7)])
    path = tmp_path / "offsets.db"
    with stores.SQLite(path).open("svc") as store:
        ids = Cluster(where.bootstrap, {}).ids([where.name])
        store.commit(Batch(1, (Range(TopicPartition(where.name, 0), 0, 2),), ids))
    outer, inner = pty.openpty()
    command = ["offsets", "lag", "--store", f"sqlite:{path}", "--pipeline", "svc", "--watch", "--every", "0.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *command, "--bootstrap", where.bootstrap],
        stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    try:
        said, deadline = "", time.monotonic() + SOON
        while said.count("Ctrl-C ends") < 3:
            assert time.monotonic() < deadline, said
            if select.select([outer], [], [], 0.1)[0]:
                said += os.read(outer, 65536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON) == 0
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    assert said.count("\x1b[1A") >= 2, repr(said)  # the cursor goes up and the same lines are written again

"""What the producers and consumers of ours do at a broker: names, batches, order, reports, mismatched formats."""

import json
import sqlite3
import struct
import uuid
from contextlib import closing
from datetime import datetime
from statistics import mean

import confluent_kafka
import confluent_kafka.admin
import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.dev import Kafka
from headrace.errors import BadRecord
from headrace.kafka.client import Client
from headrace.testing.committed_records import read_committed
from headrace.testing.fixtures import Topic
from headrace.tools.records.producer import ProducerSettings, TopicProducer
from headrace.tools.records.record import Record
from support.command_line import SOON, HeadraceProcess


def record(value, key=None):
    return Record("", None, None, None, None, key, value, ())


@pytest.fixture
def clients(monkeypatch):
    """The settings of every client that this process makes."""
    seen = []

    def recorded(kind):
        class Recorded(kind):
            def __init__(self, settings, *rest, **more):
                seen.append((kind.__name__, dict(settings)))
                super().__init__(settings, *rest, **more)

        return Recorded

    for place, name in (
        (confluent_kafka, "Producer"),
        (confluent_kafka, "Consumer"),
    ):
        monkeypatch.setattr(place, name, recorded(getattr(place, name)))
    made = confluent_kafka.admin.AdminClient.__init__  # it finds itself by its name, so it cannot be another class

    def record_admin(self, settings, *rest, **more):
        seen.append(("AdminClient", dict(settings)))
        made(self, settings, *rest, **more)

    monkeypatch.setattr(confluent_kafka.admin.AdminClient, "__init__", record_admin)
    return seen


def test_brokers_know_every_client_by_a_name_of_ours(clients, topic, spark, cli, monkeypatch, kafka):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    where, target, dead = topic(partitions=1), topic(partitions=1), topic(partitions=1)
    where.produce([{"n": 1}, b"{broken"])
    clients.clear()
    name = f"named-{uuid.uuid4().hex[:8]}"
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("n INT"))
    target_sink = sinks.Kafka(target.bootstrap, target.name)
    for sink, offsets in ((target_sink, None), (sinks.Memory(), stores.Kafka(where.bootstrap, group=f"{name}-group"))):
        made = hr.Pipeline(
            name=f"{name}-{len(clients)}",
            source=source,
            sink=sink,
            offsets=offsets,
            dead_letters=hr.DeadLetters(topic=dead.name),
            guarantee="at-least-once" if offsets else "exactly-once",
        )
        made.run(until="caught-up", session=spark, fail_fast=True)
    for verb in (("topics", "describe", where.name), ("consume", where.name), ("groups", "list")):
        assert cli(*verb).code == 0
    assert cli("produce", target.name, "--sample", "words", "--count", 1).code == 0

    assert {kind for kind, _ in clients} == {"Producer", "Consumer", "AdminClient"}
    strangers = [settings for _, settings in clients if not str(settings.get("client.id", "")).startswith("headrace")]
    assert [settings.keys() for settings in strangers] == []
    assert {settings["client.id"] for _, settings in clients if name in settings["client.id"]}, "runs have their own"
    # Those of the tasks are made on the executors, from these settings.
    assert target_sink._offsets.client.settings["client.id"].startswith("headrace")


def batches(kafka, topic):
    """How many batches a partition's log has, by their headers: first offset, length, …"""
    (broker,) = kafka.brokers
    data = b"".join(file.read_bytes() for file in sorted((broker.directory / "data" / f"{topic}-0").glob("*.log")))
    count = place = 0
    while place + 12 <= len(data) and (length := struct.unpack_from("!qi", data, place)[1]) > 0:
        count, place = count + 1, place + 12 + length
    return count


def test_a_producer_that_waits_sends_fewer_and_larger_batches_later(kafka, topic, cli):
    found, delays = {}, {}
    for linger in ("0", "500"):
        where = topic(partitions=1, config={"message.timestamp.type": "LogAppendTime"})
        # Longer than a producer needs to connect: what waits for that goes together anyway.
        arguments = ("--count", 1500, "--rate", 500, "--linger", linger, "--bootstrap", kafka.bootstrap)
        assert cli("produce", where.name, "--sample", "clicks", *arguments).code == 0
        stored = read_committed(kafka.bootstrap, where.name)
        assert len(stored) == 1500
        made = [datetime.fromisoformat(json.loads(record.value())["at"]).timestamp() for record in stored]
        delays[linger] = mean(record.timestamp()[1] / 1000 - at for record, at in zip(stored, made, strict=True))
        found[linger] = batches(kafka, where.name)
    assert found["0"] > 3 * found["500"], found
    assert delays["0"] < delays["500"], delays


def test_sends_do_not_wait_and_each_record_is_reported_stored_or_failed(kafka, topic):
    where = topic(partitions=1, config={"max.message.bytes": "10000"})
    stored, failed = [], []
    report = lambda record, reason: failed.append((record.key, reason))  # noqa: E731
    # The linger holds every batch back, so what is known right after the last send was known before any reply.
    sender = TopicProducer(
        Client(kafka.bootstrap, {}), where.name, ProducerSettings(linger=500.0), stored.append, report
    )
    for number in range(100):
        sender.send(record(b"x" * (20_000 if number == 50 else 10), str(number).encode()))
    assert stored == []
    sender.finish()
    assert [one.offset for one in sorted(stored, key=lambda one: one.offset)] == list(range(99))
    ((key, reason),) = failed
    assert (key, "too large" in reason) == (b"50", True)


def test_records_of_a_key_keep_their_order_though_the_broker_died_and_batches_were_sent_again(tmp_path):
    with Kafka(tmp_path / "kafka", heap="256m") as kafka:
        where = Topic(kafka.bootstrap, "account", 1, {})
        lines = tmp_path / "lines"
        lines.write_text("".join(f"{number}\n" for number in range(4_000)))
        flow = (
            "produce",
            where.name,
            "--file",
            lines,
            "--rate",
            400,
            "--timeout",
            120,
            "-v",
            "--bootstrap",
            kafka.bootstrap,
        )
        with HeadraceProcess(*flow, cwd=tmp_path) as producer:
            producer.wait_for(lambda: producer.out.count("offset") >= 400)
            kafka.brokers[0].kill()
            kafka.brokers[0].start()
            done = producer.finish(SOON)
        assert (done.code, ", 0 failed" in done.err) == (0, True), done.err
        values = [int(found.value()) for found in read_committed(kafka.bootstrap, where.name)]
    assert values == list(range(4_000)), "in the order of sending, none missing, none twice"


@pytest.mark.parametrize("fmt", [hr.Json("id INT"), hr.Csv("id INT, name STRING")], ids=["json", "csv"])
def test_a_number_in_bytes_that_is_read_as_text_is_an_error_that_names_its_record(fmt, topic, spark):
    where = topic(partitions=1)
    where.produce([struct.pack("!i", number) for number in (7, 1 << 24)])
    made = hr.Pipeline(
        name=f"mismatch-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=fmt),
        sink=sinks.Memory(),
        offsets=stores.Memory(),
        guarantee="at-least-once",
    )
    with pytest.raises(BadRecord) as found:
        made.run(until="caught-up", session=spark, fail_fast=True)
    assert f"{where.name}[0] offset 0" in str(found.value)
    assert made.sink.rows == []


def test_every_transaction_is_stored_once_with_the_decision_about_it(topic, spark, tmp_path):
    """They come by two topics, in any order. Each pipeline fills a table, and a query joins them."""
    transactions, decisions, file = topic(partitions=2), topic(partitions=2), tmp_path / "cards.db"
    cards = [{"id": number, "amount": number * 10} for number in range(20)]
    verdicts = [{"id": number, "status": "denied" if number % 5 == 0 else "approved"} for number in reversed(range(20))]
    decisions.produce([*verdicts[:12], *verdicts[:3]])  # some before their transactions, some twice
    transactions.produce([*cards, *cards[:4]])
    for where, table, columns in (
        (transactions, "transactions", "id BIGINT, amount BIGINT"),
        (decisions, "decisions", "id BIGINT, status STRING"),
    ):
        made = hr.Pipeline(
            name=f"{table}-{uuid.uuid4().hex[:8]}",
            source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json(columns)),
            sink=sinks.SQLite(file, table, key="id", mode="upsert", create=True),
            guarantee="exactly-once",
        )
        made.run(until="caught-up", session=spark, fail_fast=True)
        if table == "decisions":
            decisions.produce(verdicts[12:])
            made.run(until="caught-up", session=spark, fail_fast=True)
    with closing(sqlite3.connect(file)) as database:
        joined = "SELECT id, amount, status FROM transactions LEFT JOIN decisions USING (id) ORDER BY id"
        rows = database.execute(joined).fetchall()
    assert rows == [(n, n * 10, "denied" if n % 5 == 0 else "approved") for n in range(20)]

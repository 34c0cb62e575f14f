"""`headrace consume` with columns and conditions: Spark decodes, on the session that the tests share."""

import json
from datetime import UTC, datetime

import pytest

from headrace.kafka import config_keys
from support.avro_bytes import framed, registered

SCHEMA = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
}


@pytest.fixture(autouse=True)
def cluster(kafka, spark, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)


def test_a_condition_chooses_records_by_their_columns_and_by_their_places(topic, cli):
    events = topic(partitions=2)
    events.produce([{"user": f"u{n}", "amount": n, "more": "x"} for n in range(40)], key=b"k", headers={"h": b"1"})
    events.produce([None, b"not JSON"], partition=1, key=b"gone")
    arguments = ("consume", events.name, "--columns", "user STRING, amount INT")
    some = cli(*arguments, "--where", "amount > 35")
    assert sorted(some.out.splitlines()) == [f'{{"user":"u{n}","amount":{n}}}' for n in range(36, 40)]
    assert (some.code, "1 record of another format" in some.err) == (1, True)
    here_only = cli(*arguments, "--where", "_kafka.partition = 0 AND amount < 5", "--json")
    found = [json.loads(line) for line in here_only.out.splitlines()]
    assert [(record["offset"], record["value"]["amount"]) for record in found] == [(0, 0), (1, 2), (2, 4)]
    assert found[0]["key"] == "k"
    assert found[0]["headers"] == [{"name": "h", "value": "1"}]
    assert cli(*arguments, "--partition", 1, "--from", "-2", "--key-separator", ":").out == "gone:null\n"
    assert len(cli(*arguments, "--count", 3).out.splitlines()) == 3


def test_text_is_chosen_by_what_it_says(topic, cli):
    events = topic(partitions=1)
    events.produce([b"all is well", b"an error: \x1b[31mred", b"\xff"])
    done = cli("consume", events.name, "--where", "value LIKE '%error%'")
    assert (done.code, done.out) == (1, "an error: \\x1b[31mred\n")


def test_a_condition_that_fails_at_a_record_is_reported_in_two_lines(topic, cli):
    events = topic(partitions=1)
    events.produce([b"1", b"abc"])
    done = cli("consume", events.name, "--where", "CAST(value AS INT) > 1")
    assert (done.code, "'abc'" in done.line("error: --where CAST(value AS INT) > 1 fails")) == (2, True)
    assert "try_cast" in done.line("hint: ")
    assert len(done.err.splitlines()) == 2
    assert cli("consume", events.name, "--where", "try_cast(value AS INT) > 0").out == "1\n"


def test_times_keep_their_microseconds(topic, cli):
    events = topic(partitions=1)
    events.produce([{"at": "2026-11-15T12:00:00.123456Z", "local": "2026-11-15T12:00:00.654321", "gone": None}])
    done = cli("consume", events.name, "--columns", "at TIMESTAMP, local TIMESTAMP_NTZ, gone INT", "--json")
    found = json.loads(done.out)["value"]
    assert datetime.fromisoformat(found["at"]) == datetime(2026, 11, 15, 12, 0, 0, 123456, UTC)
    assert (found["local"], found["gone"]) == ("2026-11-15T12:00:00.654321", None)


def test_the_names_of_javas_producers_are_those_of_the_client_that_is_loaded(spark):
    config = spark.sparkContext._jvm.org.apache.kafka.clients.producer.ProducerConfig
    theirs = {name for name in config.configNames() if not name.startswith("internal.")}
    assert theirs <= config_keys.JAVA | config_keys.JAVA_PRODUCER
    assert config_keys.JAVA_PRODUCER - theirs <= {
        "transaction.two.phase.commit.enable",
        "config.providers",
    }  # of later ones


def test_csv_and_avro_are_shown_as_json(topic, cli, tmp_path):
    rows, customers = topic(partitions=1), topic(partitions=1)
    rows.produce([b'Ann,"1,5",2026-11-15', b"Bob,,2026-11-16"])
    shown = cli("consume", rows.name, "--format", "csv", "--columns", "name STRING, size STRING, day DATE")
    assert shown.out.splitlines() == [
        '{"name":"Ann","size":"1,5","day":"2026-11-15"}',
        '{"name":"Bob","size":null,"day":"2026-11-16"}',
    ]
    customers.produce([b"\x02\x06Ann", b"\x0e\x08Zo\xc3\xab"])
    (tmp_path / "customer.avsc").write_text(json.dumps(SCHEMA))
    shown = cli("consume", customers.name, "--format", "avro", "--schema", tmp_path / "customer.avsc")
    assert shown.out.splitlines() == ['{"id":1,"name":"Ann"}', '{"id":7,"name":"Zoë"}']


def test_avro_of_a_registry_is_read_by_its_schemas(topic, cli, schema_registry):
    customers = topic(partitions=1)
    number = registered(schema_registry.url, f"{customers.name}-value", SCHEMA)
    customers.produce([framed(number, SCHEMA, {"id": n, "name": f"exampleCustomer{n}"}) for n in range(3)])
    shown = cli("consume", customers.name, "--format", "avro", "--registry", schema_registry.url, "--where", "id > 1")
    assert shown.out == '{"id":2,"name":"exampleCustomer2"}\n'


def test_a_pipeline_may_say_how_its_records_are_decoded(topic, cli, tmp_path):
    events = topic(partitions=1)
    events.produce([b"Ann;1", b"Bob;2"])
    app = tmp_path / "app.py"
    app.write_text(
        "import headrace as hr\nfrom headrace import sinks\n"
        f"source = hr.Kafka('x:1', topics=[{events.name!r}], format=hr.Csv('name STRING, n INT', delimiter=';'))\n"
        "people = hr.Pipeline(name='people', source=source, sink=sinks.Console(), guarantee='at-least-once')\n"
    )
    shown = cli("consume", events.name, "--pipeline", app, "--where", "n = 2")
    assert shown.out == '{"name":"Bob","n":2}\n'
    assert cli("consume", events.name, "--pipeline", app, "--format", "csv").code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--columns", "user STRING", "--where", "usr = 1"), "usr"),
        (("--columns", "user STRING", "--where", "user ="), "--where"),
        (("--columns", "user STRNG"), "user STRNG"),
        (("--format", "csv"), "columns"),
        (("--format", "avro"), "registry"),
        (("--columns", "user STRING", "--group", "g"), "group"),
        (("--registry", "http://localhost:1"), "--format avro"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else given,
)
def test_what_cannot_be_decoded_is_reported_with_a_hint(topic, cli, arguments, said):
    done = cli("consume", topic().name, *arguments)
    assert (done.code, said in done.line("error: ")) == (2, True), done.err
    assert done.line("hint: ")

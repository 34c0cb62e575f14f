"""JSON topics to Avro topics, through a real schema registry."""

import io
import json
import struct
import time
import urllib.request
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

import headrace as hr
from headrace import sinks
from headrace.errors import BadRecord, ConfigError, RetriableError
from headrace.testing.committed_records import read_committed

COLUMNS = """
    id BIGINT, name STRING, small TINYINT, amount DECIMAL(10,2), ratio DOUBLE, part FLOAT, ok BOOLEAN, raw BINARY,
    day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, tags ARRAY<STRING>, counts MAP<STRING, INT>,
    place STRUCT<city: STRING, at: STRUCT<lat: DOUBLE, lon: DOUBLE>>, places ARRAY<STRUCT<city: STRING>>
"""
FULL = {
    "id": 2**40,
    "name": "naïve ✓",
    "small": -7,
    "amount": -12345678.25,
    "ratio": 0.1,
    "part": 0.5,
    "ok": True,
    "raw": "AP8=",
    "day": "1969-12-31",
    "at": "2026-01-02T03:04:05.123456Z",
    "wall": "2026-01-02T03:04:05.123456",
    "tags": ["a", None, ""],
    "counts": {"x": 1, "y": None},
    "place": {"city": "Bern", "at": {"lat": 46.9, "lon": None}},
    "places": [{"city": "Genf"}, None],
}
MEANT = FULL | {
    "amount": Decimal("-12345678.25"),
    "raw": b"\x00\xff",
    "day": date(1969, 12, 31),
    "at": datetime(2026, 1, 2, 3, 4, 5, 123456, UTC),
    "wall": datetime(2026, 1, 2, 3, 4, 5, 123456),
}
MICROSECONDS = 1_000_000


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


@pytest.fixture
def write(topic, spark, schema_registry):
    """Run records through a pipeline into `target`, as Avro."""

    def run(target, values, columns="id BIGINT, name STRING", transform=None, registry=None, **how):
        source = topic(partitions=1)
        source.produce(values)
        made = hr.Pipeline(
            name=f"p-{uuid.uuid4().hex[:12]}",
            source=hr.Kafka(source.bootstrap, topics=[source.name], format=hr.Json(columns)),
            transform=transform or (lambda rows: rows),
            sink=sinks.Kafka(
                source.bootstrap, target.name, format=hr.Avro(registry=registry or schema_registry.url, **how)
            ),
            guarantee="exactly-once",
        )
        made.run(until="caught-up", session=spark, fail_fast=True)

    return run


def ask(registry, path):
    with urllib.request.urlopen(f"{registry.url}{path}", timeout=20) as answer:
        return json.load(answer)


def schema_of(registry, value):
    """That of a record, by the id before it."""
    zero, number = struct.unpack(">bI", value[:5])
    assert zero == 0
    return json.loads(ask(registry, f"/schemas/ids/{number}")["schema"])


def decoded(kind, data):
    """A value in Avro's binary encoding, read by its specification."""
    if isinstance(kind, list):
        return decoded(kind[integer(data)], data)
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    match kind["type"] if isinstance(kind, dict) else kind:
        case "null":
            return None
        case "boolean":
            return data.read(1) == b"\x01"
        case "int" | "long":
            return timed(logical, integer(data))
        case "float":
            return struct.unpack("<f", data.read(4))[0]
        case "double":
            return struct.unpack("<d", data.read(8))[0]
        case "string":
            return data.read(integer(data)).decode()
        case "bytes":
            raw = data.read(integer(data))
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind["scale"]) if logical else raw
        case "record":
            return {field["name"]: decoded(field["type"], data) for field in kind["fields"]}
        case "array":
            return [decoded(kind["items"], data) for _ in items(data)]
        case "map":
            return {decoded("string", data): decoded(kind["values"], data) for _ in items(data)}


def integer(data):
    number = shift = 0
    while True:
        (byte,) = data.read(1)
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)


def items(data):
    while count := integer(data):
        if count < 0:
            integer(data)
        yield from range(abs(count))


def timed(logical, number):
    match logical:
        case "date":
            return date.fromordinal(date(1970, 1, 1).toordinal() + number)
        case "timestamp-micros":
            seconds, rest = divmod(number, MICROSECONDS)
            return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
        case "local-timestamp-micros":
            return timed("timestamp-micros", number).replace(tzinfo=None)
    return number


def test_rows_become_avro_that_any_reader_of_the_registry_understands(write, topic, spark, schema_registry):
    target = topic(partitions=1)
    write(target, [FULL, {"id": 1}, None], COLUMNS)

    values = [record.value() for record in read_committed(target.bootstrap, target.name)]
    assert values[2] is None, "a tombstone stays one"
    schema = schema_of(schema_registry, values[0])
    assert ask(schema_registry, f"/subjects/{target.name}-value/versions") == [1]
    assert schema["name"] == target.name.replace("-", "_")
    first, second = (io.BytesIO(value[5:]) for value in values[:2])
    assert decoded(schema, first) == MEANT
    assert decoded(schema, second) == {**dict.fromkeys(FULL), "id": 1}
    assert first.read() == second.read() == b""

    text = json.dumps(schema).replace("'", "\\'")
    rows = spark.createDataFrame([(value,) for value in values[:2]], "value BINARY")
    whole = rows.selectExpr(f"from_avro(substring(value, 6), '{text}') AS row").select("row.*")
    meant = spark.createDataFrame([json.dumps(FULL), '{"id": 1}'], "STRING").selectExpr(
        f"from_json(value, '{' '.join(COLUMNS.split())}') AS row"
    )
    assert whole.collect() == meant.select("row.*").selectExpr(*[_widened(c) for c in whole.columns]).collect()


def _widened(column):
    return "CAST(small AS INT) AS small" if column == "small" else column


def test_a_column_more_is_the_next_version_and_another_type_is_refused(write, topic, schema_registry):
    target = topic(partitions=1)
    subject = f"{target.name}-value"
    write(target, [{"id": 1, "name": "a"}])
    write(target, [{"id": 2, "name": "b"}])
    assert ask(schema_registry, f"/subjects/{subject}/versions") == [1]

    write(target, [{"id": 3, "name": "c"}], transform=lambda rows: rows.selectExpr("*", "1.5D AS more"))
    assert ask(schema_registry, f"/subjects/{subject}/versions") == [1, 2]
    last = read_committed(target.bootstrap, target.name)[-1].value()
    assert decoded(schema_of(schema_registry, last), io.BytesIO(last[5:])) == {"id": 3, "name": "c", "more": 1.5}

    with pytest.raises(ConfigError, match=rf"rejects the schema for {subject}.*LONG") as refused:
        write(target, [{"id": 4}], "id STRING, name STRING")
    assert "subject=" in refused.value.hint
    assert len(read_committed(target.bootstrap, target.name)) == 3


REQUIRED = {
    "type": "record",
    "name": "Click",
    "namespace": "com.example",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "id", "type": "long"},
        {"name": "kind", "type": ["null", "string"], "default": None},
    ],
}


def test_a_given_schema_is_used_as_it_is(write, topic, schema_registry):
    target, subject = topic(partitions=1), f"com.example.Click-{uuid.uuid4().hex[:8]}"
    write(target, [{"id": 1, "name": "it's"}], subject=subject, schema=json.dumps(REQUIRED))
    (record,) = read_committed(target.bootstrap, target.name)
    assert schema_of(schema_registry, record.value()) == REQUIRED
    assert ask(schema_registry, f"/subjects/{subject}/versions") == [1]
    assert decoded(REQUIRED, io.BytesIO(record.value()[5:])) == {"name": "it's", "id": 1, "kind": None}


def test_a_given_schema_that_does_not_fit_is_refused_and_not_registered(write, topic, schema_registry):
    target = topic(partitions=1)
    for schema, reason in (("id STRING, name STRING", "id"), ("id BIGINT, name STRING, more INT", "more")):
        with pytest.raises(ConfigError, match=rf"does not match the columns: .*'{reason}'"):
            write(target, [{"id": 1}], schema, schema=json.dumps(REQUIRED))
    broken = json.dumps(REQUIRED | {"fields": [{"name": "id", "type": "lung"}]})
    with pytest.raises(ConfigError, match=r"does not match the columns: .*lung"):
        write(target, [{"id": 1}], schema=broken)
    assert f"{target.name}-value" not in ask(schema_registry, "/subjects")


@pytest.mark.parametrize("transform", [lambda rows: rows, lambda rows: rows.repartition(2)], ids=["tasks", "driver"])
def test_a_null_that_a_given_schema_does_not_allow_stops_the_run(write, topic, transform):
    target = topic(partitions=1)
    with pytest.raises(BadRecord, match="Cannot write null value for field `name`"):
        write(target, [{"id": 1}], transform=transform, schema=json.dumps(REQUIRED))
    assert read_committed(target.bootstrap, target.name) == []


@pytest.mark.parametrize(
    ("kind", "column", "value", "said"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "k STRING", "C", "not defined in enum"),
        ({"type": "fixed", "name": "F", "size": 3}, "k BINARY", "AP8=", "2 bytes of binary data cannot be written"),
        ({"type": "array", "items": "string"}, "k ARRAY<STRING>", ["a", None], "null value for .non-nullable. string"),
        ({"type": "map", "values": "int"}, "k MAP<STRING, INT>", {"a": None}, "null value for .non-nullable. int"),
    ],
    ids=["enum", "fixed", "list", "map"],
)
@pytest.mark.parametrize("transform", [lambda rows: rows, lambda rows: rows.repartition(2)], ids=["tasks", "driver"])
def test_a_value_that_a_given_schema_does_not_have_stops_the_run(write, topic, transform, kind, column, value, said):
    target = topic(partitions=1)
    schema = {"type": "record", "name": "R", "fields": [{"name": "k", "type": kind}]}
    with pytest.raises(BadRecord, match=said):
        write(target, [{"k": value}], column, transform=transform, schema=json.dumps(schema))
    assert read_committed(target.bootstrap, target.name) == []


def test_a_registry_that_is_down_is_tried_again(write, topic):
    begun = time.monotonic()
    with pytest.raises(
        RetriableError, match=r"the schema registry at http://user:\*\*\*@127\.0\.0\.1:1 does not respond"
    ):
        write(topic(partitions=1), [{"id": 1}], registry="http://user:secret@127.0.0.1:1")
    assert time.monotonic() - begun < 20

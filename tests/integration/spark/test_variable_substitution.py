"""`${env:NAME}` in data stays data, also on a session whose SQL replaces it by the environment's variable."""

import uuid

import pytest

import headrace as hr
from headrace.connectors.delta.file_stats import encode_partition_columns
from headrace.connectors.hive.sink import Hive
from headrace.connectors.kafka.records import RecordMapping
from headrace.engine.decoder import Decoder
from headrace.engine.field_decoder import RAW_SCHEMA
from headrace.spark.sql import SUBSTITUTE, verbatim
from headrace.testing.sinks import batch
from support.avro_bytes import framed, registered

DATA = ["${env:PATH}", "${system:user.name}", "${x}", "$${env:PATH}", "$"]


@pytest.fixture
def spark(spark):
    """A session as a user has it: Spark's default is to substitute."""
    spark.conf.set(SUBSTITUTE, "true")
    assert spark.sql("SELECT '${env:PATH}'").first()[0].startswith("/")
    yield spark
    assert spark.conf.get(SUBSTITUTE) == "true", "a session of the user's is left as it was"
    spark.conf.set(SUBSTITUTE, "false")


def test_values_of_hive_partitions(spark):
    table = f"t{uuid.uuid4().hex[:12]}"
    with Hive(table, partition_by="kind").open("clicks") as sink:
        sink.write(batch(1, 0, 5), spark.createDataFrame(list(enumerate(DATA)), "id BIGINT, kind STRING"))
    found = spark.table(table).sort("id").collect()
    assert [row["kind"] for row in found] == DATA
    spark.sql(f"DROP TABLE {table}")


@pytest.mark.parametrize("text", DATA)
def test_defaults_of_a_registrys_schema(spark, schema_registry, text):
    topic = f"customers-{uuid.uuid4().hex[:8]}"
    fields = [{"name": "id", "type": "int"}]
    first = {"type": "record", "name": "Customer", "fields": fields}
    number = registered(schema_registry.url, f"{topic}-value", first)
    city = {"name": "city", "type": "string", "default": text}
    registered(schema_registry.url, f"{topic}-value", {**first, "fields": [*fields, city]})
    record = (None, framed(number, first, {"id": 1}), topic, 0, 0, None, 0, None)
    decoder = Decoder(spark, hr.Avro(registry=schema_registry.url), topics=[topic])
    (row,) = decoder.decode(spark.createDataFrame([record], RAW_SCHEMA)).rows.collect()
    assert (row["id"], row["city"]) == (1, text)


@pytest.mark.parametrize("on_error", ["fail", "keep", "drop"])
def test_names_of_columns(spark, on_error):
    value = b'{"${env:PATH}": 7}'
    frame = spark.createDataFrame([(None, value, "t", 0, 0, None, 0, None)], RAW_SCHEMA)
    decoder = Decoder(spark, hr.Json("`${env:PATH}` INT", on_error=on_error))
    assert decoder.columns == ["${env:PATH}"]
    assert decoder.decode(frame).rows.first()[0] == 7
    assert decoder.validated(frame).good.first()[0] == 7


def test_a_delimiter_of_csv(spark):
    frame = spark.createDataFrame([(None, b"1$2", "t", 0, 0, None, 0, None)], RAW_SCHEMA)
    assert Decoder(spark, hr.Csv("a INT, b INT", delimiter="$")).decode(frame).rows.first()[:2] == (1, 2)


def test_names_of_columns_that_are_written(spark):
    rows = spark.createDataFrame([(7, "x")], "`${env:PATH}` INT, `${x}` STRING")
    value = RecordMapping(hr.Json(), "t").encode(rows, ()).first()[0]
    assert bytes(value) == b'{"${env:PATH}":7,"${x}":"x"}'
    made, names = encode_partition_columns(rows, ["${x}"])
    assert (made.columns, names) == (["${env:PATH}", "p0"], ["p0"])


def test_threads_that_share_a_session_do_not_switch_it_on_for_each_other(spark):
    one, other = verbatim(spark), verbatim(spark)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert spark.conf.get(SUBSTITUTE) == "false"
    assert spark.sql("SELECT '${env:PATH}'").first()[0] == "${env:PATH}"
    other.__exit__(None, None, None)
    assert spark.conf.get(SUBSTITUTE) == "true"
    with pytest.raises(ValueError, match="within"), verbatim(spark):
        raise ValueError("within")
    assert spark.conf.get(SUBSTITUTE) == "true"

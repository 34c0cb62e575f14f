"""Avro read by the schemas of a real registry: evolution both ways, ids that nobody knows, a registry that is away."""

import datetime
import json
import struct
import uuid

import pytest

import headrace as hr
from headrace import events, sinks, stores
from headrace.engine.decoder import Decoder
from headrace.engine.field_decoder import RAW_SCHEMA
from headrace.errors import ConfigError, RetriableError
from headrace.formats.avro import compatibility
from headrace.formats.avro import decoding as avro_reading
from headrace.formats.avro.decoding import RegistryAvro
from headrace.formats.schema_registry import SchemaRegistry
from support.avro_bytes import encoded, framed, long, registered
from support.background_run import BackgroundRun
from support.tcp_proxy import TcpProxy


def customer(*fields):
    return {"type": "record", "name": "Customer", "namespace": "com.example", "fields": list(fields)}


def optional(name):
    return {"name": name, "type": ["null", "string"], "default": None}


ID, NAME = {"name": "id", "type": "int"}, {"name": "name", "type": "string"}
V1 = customer(ID, NAME, optional("faxNumber"))
V2 = customer(ID, NAME, optional("email"))
ANN = {"id": 1, "name": "Ann", "faxNumber": "555"}
BEA = {"id": 2, "name": "Bea", "email": "bea@example.com"}


@pytest.fixture
def named(schema_registry):
    """A topic's name that no other test knows, and the registry."""
    return f"customerContacts-{uuid.uuid4().hex[:8]}", schema_registry.url


def raw(spark, topic, values):
    """Records of one topic; a pair has a key."""
    pairs = [value if isinstance(value, tuple) else (None, value) for value in values]
    rows = [(key, value, topic, 0, offset, None, 0, None) for offset, (key, value) in enumerate(pairs)]
    return spark.createDataFrame(rows, RAW_SCHEMA)


def rows_of(decoder, frame):
    """What a run would do: learn, and repeat the batch."""
    for _ in range(5):
        try:
            return [row.asDict() for row in decoder.decode(frame).rows.drop("_kafka").collect()]
        except Exception as error:
            if not decoder.fetch_missing_schemas(error, frame):
                raise
    raise AssertionError("it learned five times and is no wiser")


@pytest.mark.parametrize("reader", ["the newest in the registry", "v1, given"])
def test_records_of_both_versions_are_read_by_either_schema(spark, named, reader):
    topic, url = named
    one = registered(url, f"{topic}-value", V1)
    two = registered(url, f"{topic}-value", V2)
    values = [framed(one, V1, ANN), framed(two, V2, BEA), None]
    given = None if reader.startswith("the newest") else json.dumps(V1)
    found = rows_of(Decoder(spark, hr.Avro(given, registry=url), topics=[topic]), raw(spark, topic, values))
    if given is None:
        assert found[:2] == [{"id": 1, "name": "Ann", "email": None}, BEA]
    else:
        assert found[:2] == [ANN, {"id": 2, "name": "Bea", "faxNumber": None}]
    assert set(found[2].values()) == {None}, "a tombstone"


def test_what_is_no_avro_of_its_schema_is_bad_with_its_bytes_and_harms_no_neighbour(spark, named):
    topic, url = named
    one = registered(url, f"{topic}-value", V1)
    good = framed(one, V1, ANN)
    bad = {
        "nothing": (b"", "wire format"),
        "JSON": (b'{"id": 1}', "wire format"),
        "no id": (good[:4], "wire format"),
        "no body": (good[:5], f"not Avro of schema id {one}"),
        "cut off": (good[:-2], f"not Avro of schema id {one}"),
        "something behind": (good + b"\x00", f"not Avro of schema id {one}"),
        "a text longer than memory": (good[:5] + long(1) + long(2**31 - 20) + b"x", f"not Avro of schema id {one}"),
        "a length below nothing": (good[:5] + long(1) + long(-5), f"not Avro of schema id {one}"),
        "a branch that is none": (good[:5] + long(1) + long(1) + b"x" + long(7), f"not Avro of schema id {one}"),
        "not UTF-8": (good[:5] + long(1) + long(1) + b"\xff" + long(0), "not UTF-8"),
    }
    values = [value for value, _ in bad.values()]
    decoder = Decoder(spark, hr.Avro(registry=url, on_error="keep"), topics=[topic])
    kept = decoder.decode(raw(spark, topic, [good, *values, good])).rows.collect()
    assert [row["bad"] is None for row in kept] == [True, *(False for _ in bad), True]
    for row, (value, reason) in zip(kept[1:-1], bad.values(), strict=True):
        assert bytes(row["bad"]["value"]) == value
        assert reason in row["bad"]["error"]
        assert (row["id"], row["name"]) == (None, None)
    judged = decoder.validated(raw(spark, topic, [good, *values, good]))
    assert [letter.value for letter in judged.collect_dead_letters(100)] == values
    assert [row["id"] for row in judged.good.collect()] == [1, 1]


@pytest.mark.parametrize("mode", ["keep", "judged"])
def test_an_id_that_the_registry_lacks_is_a_bad_record_and_asked_for_again_after_a_minute(
    spark, named, mode, monkeypatch
):
    topic, url = named
    one = registered(url, f"{topic}-value", V1)
    clock, asked = [0.0], []
    decoder = Decoder(spark, hr.Avro(registry=url, on_error="keep"), topics=[topic])
    decoder._parts[0].decoding._clock = lambda: clock[0]
    get_schema = SchemaRegistry.get_schema
    monkeypatch.setattr(
        SchemaRegistry, "get_schema", lambda self, number: asked.append(number) or get_schema(self, number)
    )
    frame = raw(spark, topic, [framed(one, V1, ANN), struct.pack(">bI", 0, 987_654) + b"x"])
    with pytest.raises(Exception, match="UnknownSchema") as met:
        decoder.decode(frame).rows.collect() if mode == "keep" else decoder.validated(frame).collect_dead_letters(10)
    assert decoder.fetch_missing_schemas(met.value, frame).startswith(
        "schema id 987654 is not in the schema registry at http://"
    )
    for seconds, times in ((0, 1), (59, 1), (2, 2), (58, 2), (100, 3)):
        clock[0] += seconds
        good, bad = decoder.decode(frame).rows.collect()  # a loop in hand may read its batch again at any time
        assert (good["id"], good["bad"]) == (1, None)
        assert bad["bad"]["error"] == "schema id 987654 is not in the registry"
        assert asked == [987_654] * times
    assert decoder.fetch_missing_schemas(ValueError("something else"), frame) is None


def test_an_id_that_is_registered_late_is_read_from_then_on_and_a_registry_that_is_away_changes_nothing(
    spark, named, monkeypatch
):
    topic, url = named
    registered(url, f"{topic}-value", V1)
    late = registered(url, f"late-{topic}", V2)
    clock = [0.0]
    decoder = Decoder(spark, hr.Avro(registry=url, on_error="keep"), topics=[topic])
    decoder._parts[0].decoding._clock = lambda: clock[0]
    frame = raw(spark, topic, [framed(late, V2, BEA)])
    with monkeypatch.context() as patched:
        patched.setattr(SchemaRegistry, "get_schema", lambda self, number: None)
        assert "not in the registry" in rows_of(decoder, frame)[0]["bad"]["error"]
        clock[0] += 100

        def away(self, number):
            raise RetriableError("nobody answers")

        patched.setattr(SchemaRegistry, "get_schema", away)
        assert "not in the registry" in rows_of(decoder, frame)[0]["bad"]["error"]
    clock[0] += 100
    (row,) = rows_of(decoder, frame)
    assert (row["id"], row["name"], row["bad"]) == (2, "Bea", None)


def test_all_unknown_schema_ids_of_a_batch_are_requested_at_once(spark, named, monkeypatch):
    topic, url = named
    one = registered(url, f"{topic}-value", V1)
    other = registered(url, f"elsewhere-{topic}", V2)
    lost = [struct.pack(">bI", 0, 987_000 + number) + b"x" for number in range(40)]
    frame = raw(spark, topic, [framed(one, V1, ANN), *lost, framed(other, V2, BEA)])
    decoder = Decoder(spark, hr.Avro(registry=url, on_error="drop"), topics=[topic])
    with pytest.raises(Exception, match="UnknownSchema") as met:
        decoder.decode(frame).rows.collect()
    assert decoder.fetch_missing_schemas(met.value, frame).endswith("; and 38 more")
    found = decoder.decode(frame)
    assert [row["id"] for row in found.rows.collect()] == [1, 2]
    assert found.dropped() == 40
    monkeypatch.setattr(avro_reading, "_MAX_REMEMBERED", 50)  # what is in the batch is remembered all the same
    more = [struct.pack(">bI", 0, 988_000 + number) + b"x" for number in range(40)]
    for values in (lost + more, more):
        assert [row["id"] for row in rows_of(decoder, raw(spark, topic, [framed(one, V1, ANN), *values]))] == [1]


def decimal(scale, precision=10):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def moment(unit):
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


@pytest.mark.parametrize(
    ("written", "read", "said"),
    [
        (decimal(2), decimal(4), "decimal(10,2) is written, decimal(10,4) is read"),
        (decimal(2, 20), decimal(2), "decimal(20,2) is written, decimal(10,2) is read"),
        (moment("millis"), moment("micros"), "timestamp-millis is written, timestamp-micros is read"),
        (["null", moment("millis")], ["null", moment("micros")], "timestamp-millis is written"),
        (moment("millis"), ["null", moment("micros")], "timestamp-millis is written"),
        ({"type": "array", "items": decimal(2)}, {"type": "array", "items": decimal(3)}, "decimal(10,2) is written"),
        ({"type": "map", "values": decimal(2)}, {"type": "map", "values": ["null", decimal(3)]}, "decimal(10,2) is"),
        ({"type": "int", "logicalType": "date"}, moment("millis"), "date is written, timestamp-millis is read"),
        (decimal(2), decimal(2, 12), None),
        (decimal(2), ["null", decimal(2)], None),
        ("long", moment("millis"), None),
        (moment("millis"), "long", None),
        ("int", ["null", "long"], None),
    ],
)
def test_a_value_that_would_mean_something_else_to_the_reader_is_bad_with_the_reason(spark, written, read, said):
    def schema(kind):
        inner = {"type": "record", "name": "Inner", "fields": [{"name": "v", "type": kind}]}
        return json.dumps(customer(ID, {"name": "in", "type": ["null", inner], "default": None}))

    reader, writer = (compatibility.parse_schema(spark, schema(kind)) for kind in (read, written))
    found = compatibility.incompatibility(spark, reader, writer, any_name=True)
    assert found is None if said is None else said in found


def test_records_of_another_unit_are_not_read_by_the_newest_schema(spark, named):
    topic, url = named
    old, new = (customer(ID, {"name": "at", "type": moment(unit)}) for unit in ("millis", "micros"))
    one, two = registered(url, f"{topic}-value", old), registered(url, f"{topic}-value", new)
    values = [framed(one, old, {"id": 1, "at": 1_700_000_000_000}), framed(two, new, {"id": 2, "at": 0})]
    rows = rows_of(Decoder(spark, hr.Avro(registry=url, on_error="keep"), topics=[topic]), raw(spark, topic, values))
    assert rows[0]["bad"]["error"] == (
        f"schema id {one} cannot be read: another logical type at /at: timestamp-millis is written,"
        " timestamp-micros is read"
    )
    assert (rows[1]["id"], rows[1]["bad"]) == (2, None)


def test_a_record_of_another_kind_is_bad_though_all_fields_have_defaults(spark, named):
    topic, url = named
    lenient = customer({"name": "id", "type": ["null", "int"], "default": None}, optional("name"))
    order = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "double"}]}
    registered(url, f"{topic}-value", lenient)
    other = registered(url, f"orders-{uuid.uuid4().hex[:8]}-value", order)
    unfit = registered(url, f"old-{uuid.uuid4().hex[:8]}-value", customer({"name": "id", "type": "string"}))
    values = [framed(other, order, {"total": 1.0}), struct.pack(">bI", 0, unfit) + b"\x02a"]
    found = rows_of(Decoder(spark, hr.Avro(registry=url, on_error="keep"), topics=[topic]), raw(spark, topic, values))
    assert [row["bad"]["error"].partition(" at ")[0] for row in found] == [
        f"schema id {other} cannot be read: name mismatch",
        f"schema id {unfit} cannot be read: missing union branch"
        if "union" in found[1]["bad"]["error"]
        else f"schema id {unfit} cannot be read: type mismatch",
    ]


def test_keys_have_their_own_format_and_a_bad_key_is_a_bad_record(spark, named):
    topic, url = named
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
    number = registered(url, f"{topic}-key", key)
    values = [(framed(number, key, {"id": 7}), b'{"n": 1}'), (b"seven", b'{"n": 2}'), (None, b'{"n": 3}')]
    decoder = Decoder(spark, hr.Json("n INT", on_error="keep"), hr.Avro(registry=url), topics=[topic])
    first, second, third = decoder.decode(raw(spark, topic, values)).rows.collect()
    assert (first["key"].asDict(), first["n"], bytes(first["_kafka"]["key"])) == ({"id": 7}, 1, values[0][0])
    assert second["bad"]["error"].startswith("key: not in the wire format")
    assert (third["key"], third["n"]) == (None, 3)
    (letter,) = decoder.validated(raw(spark, topic, values)).collect_dead_letters(10)
    assert (letter.key, letter.value) == values[1]


def test_simple_types_logical_types_and_schemas_in_pieces(spark, named):
    topic, url = named
    simple = registered(url, f"{topic}-key", '"string"')
    address = {"type": "record", "name": "Address", "namespace": "com.example", "fields": [NAME]}
    registered(url, f"{topic}-address", address)
    whole = customer(
        ID,
        {"name": "home", "type": "com.example.Address"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    )
    references = [{"name": "com.example.Address", "subject": f"{topic}-address", "version": 1}]
    number = registered(url, f"{topic}-value", whole, references=references)
    body = encoded("int", 5) + encoded("string", "Bern") + long(1_700_000_000_123) + long(1_000_000) + long(1)
    value = struct.pack(">bI", 0, number) + body + encoded({"type": "array", "items": "string"}, ["x", "y"])
    frame = raw(spark, topic, [(framed(simple, "string", "k"), value)])
    decoder = Decoder(spark, hr.Avro(registry=url), hr.Avro(registry=url), topics=[topic])
    (row,) = decoder.decode(frame).rows.selectExpr("*", "CAST(at AS STRING) AS shown").collect()
    assert (row["key"], row["id"], row["home"]["name"], row["kind"], row["tags"]) == ("k", 5, "Bern", "B", ["x", "y"])
    assert row["shown"] == "2023-11-14 22:13:20.123"
    assert row["wall"] == datetime.datetime(1970, 1, 1, 0, 0, 1)


def test_a_text_that_is_not_utf_8_is_found_at_any_depth(spark):
    texts = {"type": "array", "items": {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}}
    schema = customer({"name": "deep", "type": ["null", {"type": "array", "items": texts}]})

    def value(key, text):
        inner = long(1) + long(len(key)) + key + long(2) + long(0) + long(1) + long(len(text)) + text + b"\0\0"
        return long(1) + long(2) + b"\0" + long(2) + b"\0" + inner + b"\0\0"

    values = [value(b"k", "é".encode()), long(0), value(b"k", b"\xc3"), value(b"\xff", b"")]
    frame = raw(spark, "t", values)
    found = rows_of(Decoder(spark, hr.Avro(json.dumps(schema), on_error="keep")), frame)
    assert [row["bad"] and row["bad"]["error"] for row in found] == [
        None,
        None,
        *["field deep: expected text, got bytes that are not UTF-8"] * 2,
    ]
    assert found[0]["deep"] == [[], [{}, {"k": [None, "é"]}]]


def test_what_cannot_be_read_by_is_reported_before_anything_is_read(spark, named):
    topic, url = named
    with pytest.raises(ConfigError, match=f"no reader schema; requested: {topic}-value") as refused:
        Decoder(spark, hr.Avro(registry=url), topics=[topic])
    assert "subject=" in refused.value.hint
    registered(url, f"{topic}-value", V1)
    registered(url, f"{topic}-2-value", V2)
    with pytest.raises(ConfigError, match=f"{topic}-value and {topic}-2-value have different columns"):
        Decoder(spark, hr.Avro(registry=url), topics=[topic, f"{topic}-2"])
    registered(url, f"{topic}-json-value", '{"$schema": "http://json-schema.org/draft-07/schema#"}', schemaType="JSON")
    with pytest.raises(ConfigError, match=r"expected schemas of the type AVRO .*, got JSON"):
        Decoder(spark, hr.Avro(registry=url), topics=[f"{topic}-json"])
    endless = customer(ID, {"name": "next", "type": ["null", "com.example.Customer"], "default": None})
    with pytest.raises(ConfigError, match=r"no type for this Avro schema: .*recursive"):
        Decoder(spark, hr.Avro(json.dumps(endless)))
    with pytest.raises(ConfigError, match="not a valid Avro schema"):
        Decoder(spark, hr.Avro('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "lung"}]}'))
    with pytest.raises(RetriableError, match=r"http://user:\*\*\*@127\.0\.0\.1:1 does not respond"):
        Decoder(spark, hr.Avro(registry="http://user:secret@127.0.0.1:1"), topics=[topic])


def test_a_schema_that_unfolds_without_end_makes_bad_records_and_nobody_wait(spark, named):
    """A registry's writer needs a few lines: each record has two fields of the type of the one before."""
    topic, url = named
    first = registered(url, f"{topic}-value", V1)
    decoder = Decoder(spark, hr.Avro(json.dumps(V1), registry=url, on_error="keep"), topics=[topic])
    inner = {"type": "record", "name": "R0", "fields": [ID]}
    for number in range(1, 41):
        two = [{"name": "a", "type": inner}, {"name": "b", "type": f"com.example.R{number - 1}"}]
        inner = {"type": "record", "name": f"R{number}", "fields": two}
    evil = customer(ID, NAME, {"name": "evil", "type": ["null", inner], "default": None})
    number = registered(url, f"{topic}-value", evil)
    good, bad = rows_of(decoder, raw(spark, topic, [framed(first, V1, ANN), framed(number, V1, ANN)]))
    assert (good["name"], good["bad"], bad["name"]) == ("Ann", None, None)
    assert "more than 10,000" in bad["bad"]["error"]
    with pytest.raises(ConfigError, match="more than 10,000"):
        Decoder(spark, hr.Avro(registry=url), topics=[topic])


def retries(live):
    return [event.error for event in live.all(events.Retrying)]


def test_a_producer_goes_over_to_a_new_schema_in_the_middle_of_a_run(topic, spark, schema_registry):
    where = topic(partitions=2)
    subject = f"{where.name}-value"
    one = registered(schema_registry.url, subject, V1)
    where.produce([framed(one, V1, {"id": n, "name": "v1", "faxNumber": None}) for n in range(50)])
    with TcpProxy(schema_registry.url.removeprefix("http://").partition("/")[0]) as proxy:
        url = schema_registry.url.replace(schema_registry.url.split("/")[2], proxy.address)
        pipeline = hr.Pipeline(
            name="contacts",
            source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Avro(registry=url)),
            sink=sinks.Memory(),
            guarantee="at-least-once",
            offsets=stores.Memory(),
        )
        with BackgroundRun(pipeline, spark) as run:
            run.wait(lambda: len(run.sink.rows) == 50, "rows of v1")

            proxy.close()  # what is known needs no registry
            where.produce([framed(one, V1, {"id": n, "name": "v1", "faxNumber": None}) for n in range(50, 60)])
            run.wait(lambda: len(run.sink.rows) == 60, "rows without a registry")
            assert retries(run) == []

            two = registered(schema_registry.url, subject, V2)
            where.produce([framed(two, V2, {"id": n, "name": "v2", "email": "e"}) for n in range(60, 100)])
            run.wait(lambda: retries(run), "word of the registry that is away")
            assert isinstance(retries(run)[0], RetriableError)
            assert "does not respond" in retries(run)[0].message
            assert len(run.sink.rows) == 60, "nothing is given up meanwhile"

            proxy.open()
            run.wait(lambda: len(run.sink.rows) == 100, "rows of v2")
            assert any(f"schema id {two} was unknown" in str(error) for error in retries(run))
    assert sorted((row["id"], row["name"]) for row in run.sink.rows) == [
        (n, "v1" if n < 60 else "v2") for n in range(100)
    ]
    assert set(run.sink.rows[0]) == {"id", "name", "faxNumber"}, "the columns of a run stay"
    assert len(run.all(events.RunStarted)) == 1


def test_a_subject_with_many_versions_is_one_case(spark, named):
    topic, url = named
    for extra in range(6):
        last = customer(ID, *(optional(f"f{n}") for n in range(extra)))
        number = registered(url, f"{topic}-value", last)
    decoding = RegistryAvro(spark, SchemaRegistry(url), "value", [f"{topic}-value"], None)
    assert decoding.decode_expr("value").count("from_avro(") == 6
    (row,) = rows_of(
        Decoder(spark, hr.Avro(registry=url), topics=[topic]),
        raw(
            spark,
            topic,
            [
                framed(number, last, {"id": 3, **{f"f{n}": "x" for n in range(5)}}),
            ],
        ),
    )
    assert row == {"id": 3, **{f"f{n}": "x" for n in range(5)}}


def test_a_manual_loop_learns_schemas_before_it_hands_a_batch_out(topic, spark, schema_registry):
    where = topic(partitions=1)
    one = registered(schema_registry.url, f"{where.name}-value", V1)
    other = registered(schema_registry.url, f"elsewhere-{where.name}", V2)
    where.produce([framed(one, V1, ANN), framed(other, V2, BEA), framed(987_654, V1, ANN)])
    source = hr.Kafka(
        where.bootstrap,
        topics=[where.name],
        format=hr.Avro(json.dumps(V1), registry=schema_registry.url, on_error="drop"),
    )
    found = []
    for batch in hr.stream(source, offsets=stores.Memory(), until="caught-up", session=spark):
        found += [row.asDict() for row in batch.rows().drop("_kafka").collect()]
        batch.commit()
    assert found == [ANN, {"id": 2, "name": "Bea", "faxNumber": None}]


def test_a_topic_of_a_named_cluster_has_the_subject_of_its_real_name(topic, spark, schema_registry):
    where = topic(partitions=1)
    renamed = {**V2, "name": "Contact"}  # as a version of the topic's own subject it may have another name
    number = registered(schema_registry.url, f"{where.name}-value", renamed)
    where.produce([framed(number, renamed, BEA)])
    sink = sinks.Memory()
    hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(
            where.bootstrap,
            pattern=where.name,
            cluster="east",
            format=hr.Avro(json.dumps(V1), registry=schema_registry.url),
        ),
        sink=sink,
        guarantee="at-least-once",
        offsets=stores.Memory(),
    ).run(until="caught-up", session=spark)
    assert sink.rows == [{"id": 2, "name": "Bea", "faxNumber": None}]

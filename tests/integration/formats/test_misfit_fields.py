"""A bad record names the field that does not fit, in dead letters, in BadRecord and in `consume`."""

import struct

import pytest

import headrace as hr
from headrace.engine.decoder import Decoder
from headrace.engine.field_decoder import RAW_SCHEMA
from support.avro_bytes import long

COLUMNS = (
    "id BIGINT, at TIMESTAMP, price DECIMAL(10,2), day DATE, `odd name` INT,"
    " inner STRUCT<a: INT, b: STRUCT<c: BOOLEAN>>, many ARRAY<INT>, items ARRAY<STRUCT<n: INT>>, by MAP<STRING, INT>"
)
JSON = [
    (b'{"id": "many"}', "field id: expected BIGINT, got 'many'"),
    (b'{"id": 1.5}', "field id: expected BIGINT, got '1.5'"),
    (b'{"id": 1, "at": "yesterday"}', "field at: expected TIMESTAMP, got 'yesterday'"),
    (b'{"at": "12:30"}', "field at: expected TIMESTAMP, got '12:30'"),
    (b'{"price": "ten"}', "field price: expected DECIMAL(10,2), got 'ten'"),
    (b'{"price": "1,5"}', "field price: expected DECIMAL(10,2), got '1,5'"),
    (b'{"price": 1e400000000}', "field price: expected DECIMAL(10,2), got '\"Infinity\"'"),
    (b'{"day": "2026-13-01"}', "field day: expected DATE, got '2026-13-01'"),
    (b'{"odd name": {}}', "field odd name: expected INT, got '{}'"),
    (b'{"inner": {"a": "x"}}', "field inner.a: expected INT, got 'x'"),
    (b'{"inner": {"b": {"c": 1}}}', "field inner.b.c: expected BOOLEAN, got '1'"),
    (b'{"inner": "text"}', "field inner.a: expected INT"),
    (b'{"many": [1, "x"]}', "field many[]: expected INT, got '[1,\"x\"]'"),
    (b'{"items": [{"n": 1}, {"n": "x"}]}', 'field items[].n: expected INT, got \'[{"n":1},{"n":"x"}]\''),
    (b'{"by": {"k": "x"}}', 'field by{}: expected INT, got \'{"k":"x"}\''),
    (b'{"id": "' + b"x" * 500 + b'"}', f"field id: expected BIGINT, got '{'x' * 80}…'"),
    (b'{"id": "\\u001b[31m"}', "field id: expected BIGINT, got '?[31m'"),
    (b'{"id": 1, "at": }', "not JSON"),
    (b"{broken", "not JSON"),
    (b"[1]", "not one JSON object and nothing else"),
    (b"\xff\xfe", "not UTF-8 text"),
]
CSV = [
    (b"x,2026-01-01 00:00:00,1.50", "field id: expected BIGINT, got 'x'"),
    (b"1,yesterday,1.50", "field at: expected TIMESTAMP, got 'yesterday'"),
    (b"1,12:30,1.50", "field at: expected TIMESTAMP, got '12:30'"),
    (b'1,2026-01-01 00:00:00,"1,5"', "field price: expected DECIMAL(10,2), got '1,5'"),
    (b"1,2026-01-01 00:00:00", "expected 3 fields"),
    (b"1,2026-01-01 00:00:00,1.50,more", "expected 3 fields"),
]


def raw(spark, values):
    rows = [(key, value, "t", 0, offset, None, 0, None) for offset, (key, value) in enumerate(values)]
    return spark.createDataFrame(rows, RAW_SCHEMA)


@pytest.mark.parametrize(
    ("fmt", "cases"),
    [(hr.Json(COLUMNS), JSON), (hr.Csv("id BIGINT, at TIMESTAMP, price DECIMAL(10,2)"), CSV)],
    ids=["json", "csv"],
)
def test_a_letter_names_the_field_that_does_not_fit_and_what_stands_there(spark, fmt, cases):
    letters = Decoder(spark, fmt).validated(raw(spark, [(None, value) for value, _ in cases])).collect_dead_letters(100)
    found = {letter.value: letter.error for letter in letters}
    assert len(found) == len(cases)
    for value, said in cases:
        assert found[value] == said or (found[value].startswith(said) and not said.endswith("'")), value


def test_a_bad_key_is_named_as_one_and_a_bad_record_stops_with_its_field(spark):
    decoder = Decoder(spark, hr.Json("id INT"), hr.Json("k INT"))
    frame = raw(spark, [(b'{"k": 1}', b'{"id": 1}'), (b'{"k": "x"}', b'{"id": 1}')])
    (letter,) = decoder.validated(frame).collect_dead_letters(10)
    assert letter.error == "key: field k: expected INT, got 'x'"
    bad = decoder.locate_bad_record(frame)
    assert bad.message == "t[0] offset 1: key: field k: expected INT, got 'x': b'{\"k\": \"x\"}'"


def test_text_in_avro_that_is_not_utf_8_is_named(spark):
    schema = (
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": "string"}]}'
    )
    frame = raw(spark, [(None, long(1) + long(1) + b"a"), (None, long(1) + long(1) + b"\xff")])
    (letter,) = Decoder(spark, hr.Avro(schema)).validated(frame).collect_dead_letters(10)
    assert letter.error == "field who: expected text, got bytes that are not UTF-8"
    assert struct.unpack("b", letter.value[-1:]) == (-1,)


def test_consume_shows_the_first_record_that_does_not_fit(topic, cli):
    where = topic(partitions=1)
    where.produce([{"id": 1}, {"id": "many"}, {"id": "more"}])
    done = cli("consume", where.name, "--bootstrap", where.bootstrap, "--columns", "id BIGINT")
    assert (done.code, "2 records of another format" in done.err) == (1, True)
    assert f"the first: {where.name}[0] offset 1: field id: expected BIGINT, got 'many'" in done.err

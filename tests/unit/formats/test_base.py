"""What a format refuses when it is described. How it decodes is tested on Spark."""

import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.spark.sql import literal


@pytest.mark.parametrize("make", [lambda **how: hr.Json("a INT", **how), hr.Text, hr.Bytes])
def test_an_unknown_way_with_bad_records_is_refused_with_the_known_ones(make):
    with pytest.raises(ConfigError, match="on_error: expected one of fail, drop, keep, got 'skip'") as refused:
        make(on_error="skip")
    assert refused.value.hint == 'on_error="fail"'


@pytest.mark.parametrize("columns", ["", "  \n", 5])
def test_json_with_columns_that_are_none_is_refused_with_an_example(columns):
    with pytest.raises(ConfigError, match="has no columns") as refused:
        hr.Json(columns)
    assert refused.value.hint == 'hr.Json("user STRING, page STRING")'


def test_json_without_columns_writes_and_cannot_be_a_source():
    assert "to_json(struct(`id`, `a b``c`), map(" in hr.Json().encode_expr({"id": "long", "a b`c": "string"}, "t")
    with pytest.raises(ConfigError, match="needs its columns to read"):
        hr.Kafka("localhost:9092", topics=["a"], format=hr.Json())


@pytest.mark.parametrize("fmt", [hr.Text(), hr.Bytes()])
def test_text_and_bytes_write_one_column(fmt):
    kind = {"Text": "string", "Bytes": "binary"}[type(fmt).__name__]
    assert "`only`" in fmt.encode_expr({"only": kind}, "t")
    assert "`value`" in fmt.encode_expr({"id": "long", "value": kind}, "t")
    with pytest.raises(ConfigError, match="writes one column"):
        fmt.encode_expr({"id": "long"}, "t")


def test_a_bad_record_fails_the_batch_by_default():
    assert {hr.Json("a INT").on_error, hr.Text().on_error, hr.Bytes().on_error} == {"fail"}


def test_formats_are_values():
    assert hr.Json("a INT", on_error="drop") == hr.Json("a INT", on_error="drop")
    assert hr.Json("a INT") != hr.Json("b INT")


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("a", "'a'"), ("it's", "'it\\'s'"), ("a\\'b", "'a\\\\\\'b'"), ("${x}", "'\\u0024{x}'")],
)
def test_text_is_quoted_for_spark(text, quoted):
    assert literal(text) == quoted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.Csv(" "), "has no columns"),
        (lambda: hr.Csv("a INT", delimiter="||"), "not one character"),
        (lambda: hr.Csv("a INT", quote=","), "both"),
        (lambda: hr.Kafka("b:1", topics=["t"], format=hr.Csv()), "needs its columns"),
        (lambda: hr.Csv().encode_expr({"a": {"type": "array"}}, "t"), "CSV does not support"),
        (hr.Custom, "has no function"),
        (lambda: hr.Custom(5, "a INT"), "is not a function"),
        (lambda: hr.Custom(len), "has no columns"),
        (lambda: hr.Custom(len, "a INT").encode_expr({"a": "integer"}, "t"), "only reads"),
        (lambda: hr.Kafka("b:1", topics=["t"], format=hr.Custom(encode=len)), "no function to read with"),
        (lambda: hr.Protobuf("", descriptor=b""), "expected the full name of a message"),
        (lambda: hr.Protobuf("a.B", descriptor="none-such.desc"), "cannot read"),
        (lambda: hr.Protobuf("a.B", descriptor=b"", subject="s"), "needs registry="),
        (lambda: hr.Protobuf("a.B", descriptor=b"", registry="x"), "expected the URL of a schema registry"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_described(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_address_with_a_password_is_not_shown():
    fmt = hr.Protobuf("a.B", descriptor=b"", registry="http://user:secret@localhost:8081")
    assert "secret" not in repr(fmt)

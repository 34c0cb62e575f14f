"""The fields of a row, and the message about one that does not match its type."""

import pytest

from headrace.formats.misfit_fields import Field, fields, mismatch_expr


def struct(**columns):
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in columns.items()]}


ROW = struct(
    id="long",
    price="decimal(10,2)",
    tags={"type": "array", "elementType": "string"},
    home=struct(zip="integer"),
    visits={"type": "array", "elementType": struct(at="timestamp")},
    counts={"type": "map", "keyType": "string", "valueType": "long"},
)


def test_every_value_of_a_row_has_a_name_a_type_and_a_place():
    assert [(field.name, field.type, field.single, field.json_path) for field in fields(ROW)] == [
        ("id", "BIGINT", True, "$['id']"),
        ("price", "DECIMAL(10,2)", True, "$['price']"),
        ("tags[]", "STRING", False, "$['tags']"),
        ("home.zip", "INT", True, "$['home']['zip']"),
        ("visits[].at", "TIMESTAMP", False, "$['visits']"),
        ("counts{}", "BIGINT", False, "$['counts']"),
    ]


def test_a_wide_row_is_looked_at_in_part():
    assert len(fields(struct(**{f"c{number}": "long" for number in range(1_000)}))) == 200


@pytest.mark.parametrize(
    ("path", "ddl"),
    [
        (("id",), "STRUCT<`id`: BIGINT, more STRING>"),
        (("home", "zip"), "STRUCT<`home`: STRUCT<`zip`: BIGINT>, more STRING>"),
        (("tags", "[]"), "STRUCT<`tags`: ARRAY<BIGINT>, more STRING>"),
        (("counts", "{}"), "STRUCT<`counts`: MAP<STRING, BIGINT>, more STRING>"),
        (("a", "[]", "b"), "STRUCT<`a`: ARRAY<STRUCT<`b`: BIGINT>>, more STRING>"),
        (("odd `x`",), "STRUCT<`odd ``x```: BIGINT, more STRING>"),
    ],
)
def test_the_type_of_a_row_with_one_field_alone(path, ddl):
    assert Field(path, "long").ddl("more STRING") == ddl


@pytest.mark.parametrize("name", ["it's", 'a"b', "a[0]", "a*", "a\\b"])
def test_a_name_that_a_json_path_cannot_have_has_none(name):
    assert Field((name,), "long").json_path is None


def test_the_message_of_a_misfit_quotes_the_value_truncated_and_escaped():
    assert mismatch_expr(Field(("n",), "long"), None) == "'field n: expected BIGINT'"
    sql = mismatch_expr(Field(("n",), "long"), "found")
    assert sql.startswith("concat('field n: expected BIGINT', coalesce(")
    assert "substring(found, 1, 80)" in sql
    assert "regexp_replace(" in sql and "\\\\p{C}" in sql

"""Conditions in SQL on the values inside a nested type."""

import pytest

from headrace.formats.nested_conditions import any_nested


def struct(**fields):
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def array(element):
    return {"type": "array", "elementType": element}


def map_of(key, value):
    return {"type": "map", "keyType": key, "valueType": value}


def is_bad(path, kind, *, many):
    """Holds for a date."""
    return f"bad{'_any' if many else ''}({path})" if kind == "date" else None


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        ("date", "bad(row)"),
        ("string", None),
        (struct(), None),
        (struct(a="string", b="long"), None),
        (struct(a="date", b="string"), "bad(row.`a`)"),
        (struct(a="date", b="date"), "bad(row.`a`) OR bad(row.`b`)"),
        (struct(a=struct(b="date")), "bad(row.`a`.`b`)"),
        (struct(**{"odd `name`": "date"}), "bad(row.`odd ``name```)"),
        (array("date"), "bad_any(row)"),
        (array("string"), None),
        (array(struct(a="date")), "bad_any(row.`a`)"),
        (map_of("date", "string"), "bad_any(map_keys(row))"),
        (map_of("string", "date"), "bad_any(map_values(row))"),
        (map_of("date", "date"), "bad_any(map_keys(row)) OR bad_any(map_values(row))"),
        (array(array("date")), "exists(row, each -> bad_any(each))"),
        (array(array("string")), None),
        (array(map_of("string", "date")), "exists(row, each -> bad_any(map_values(each)))"),
        (array(array(array("date"))), "exists(row, each -> exists(each, each -> bad_any(each)))"),
    ],
    ids=str,
)
def test_a_condition_is_asked_of_every_value_that_it_may_hold_for(kind, condition):
    assert any_nested("row", kind, is_bad) == condition

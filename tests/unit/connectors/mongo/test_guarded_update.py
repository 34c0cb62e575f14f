"""The filter that keeps an older value out, and the update of fields."""

import pytest
from bson import Int64

from headrace.connectors.mongo.guarded_update import Put, build_update, guard_path

WHOLE = Put(0, "a", {"n": 1}, "id-1:0", 7)
FIELDS = Put(0, "a", {"n": 1}, "id-1:0", 7, guard_path("clicks"))


@pytest.mark.parametrize(
    ("put", "expected"),
    [
        (Put(0, "a", {}, None, None), {"_id": "a"}),
        (Put(0, "a", {}, None, None, shard={"country": "ch"}), {"_id": "a", "country": "ch"}),
        (
            WHOLE,
            {"_id": "a", "$or": [{"_headrace.source": {"$ne": "id-1:0"}}, {"_headrace.version": {"$lte": 7}}]},
        ),
        (
            FIELDS,
            {
                "_id": "a",
                "$or": [
                    {"_headrace.fields.clicks.id-1:0": {"$exists": False}},
                    {"_headrace.fields.clicks.id-1:0": {"$lte": 7}},
                ],
            },
        ),
    ],
    ids=["no source", "shard key", "whole document", "fields"],
)
def test_a_filter_finds_the_document_unless_it_is_newer(put, expected):
    assert put.filter == expected


@pytest.mark.parametrize(
    ("put", "guard", "newer"),
    [
        (WHOLE, None, False),
        (WHOLE, {"source": "id-1:0", "version": 7}, False),
        (WHOLE, {"source": "id-1:0", "version": 8}, True),
        (WHOLE, {"source": "id-1:1", "version": 8}, False),
        (WHOLE, {"source": "id-1:0"}, False),
        (WHOLE, "somebody else's field", False),
        (Put(0, "a", {}, None, None), {"source": "id-1:0", "version": 8}, False),
        (FIELDS, {"fields": {"clicks": {"id-1:0": 8}}}, True),
        (FIELDS, {"fields": {"clicks": {"id-1:0": 7}}}, False),
        (FIELDS, {"fields": {"views": {"id-1:0": 8}}}, False),
        (FIELDS, {"fields": 5}, False),
    ],
)
def test_a_document_with_a_newer_version_of_the_same_source_has_overtaken(put, guard, newer):
    assert put.overtaken(guard) is newer


@pytest.mark.parametrize(
    ("pipeline", "path"),
    [("clicks", "_headrace.fields.clicks"), ("a.b", "_headrace.fields.a%2Eb"), ("a-b_c", "_headrace.fields.a-b_c")],
)
def test_a_pipeline_is_one_step_of_the_path(pipeline, path):
    assert guard_path(pipeline) == path


@pytest.mark.parametrize(
    ("put", "fields", "own", "update"),
    [
        (Put(0, "a", {}, None, None), {"n": 1}, ["n"], {"$set": {"n": 1}}),
        (Put(0, "a", {}, None, None), {}, ["n"], {"$unset": {"n": ""}}),
        (Put(0, "a", {}, None, None), {"n": 1}, ["n", "m"], {"$set": {"n": 1}, "$unset": {"m": ""}}),
        (
            FIELDS,
            {"n": 1},
            ["n"],
            {
                "$set": {"n": 1, "_headrace.fields.clicks.id-1:0": Int64(7)},
                "$unset": {"_headrace.deleted": ""},
            },
        ),
    ],
)
def test_an_update_sets_fields_and_removes_the_rest_of_its_own(put, fields, own, update):
    assert build_update(put, fields, own) == update

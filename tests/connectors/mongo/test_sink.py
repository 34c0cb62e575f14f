"""The MongoDB sink, against a server that speaks its protocol."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime

import pytest
from bson import DBRef, Decimal128, Int64
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from headrace import dev, sinks
from headrace.connectors.mongo import client as mongo_client
from headrace.connectors.shared.keyed_sink import Row
from headrace.core.dead_letters import RecordId
from headrace.errors import BadRecord, ConfigError, RetriableError
from headrace.testing.sinks import batch, frame, numbered, upserts
from support.document_sinks import refused, rows, write_around_a_death


@pytest.fixture
def shop(mongo):
    with MongoClient(mongo.url) as client:
        yield client[f"shop_{uuid.uuid4().hex[:12]}"]


@pytest.fixture
def made(mongo, shop):
    """Make a sink on a collection of this test's own, open."""
    opened = []

    def make(name="orders", **options):
        sink = sinks.Mongo(mongo.url, f"{shop.name}.{name}", **{"create": True, **options}).open("p")
        opened.append(sink)
        return sink

    yield make
    for sink in opened:
        sink.close()


def test_rows_without_a_key_of_their_own_are_named_by_their_record(made, shop, spark):
    made().write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert list(shop.orders.find()) == [
        {"_id": "clicks:0:0", "id": 0, "text": "row 0"},
        {"_id": "clicks:0:1", "id": 1, "text": "row 1"},
    ]


def test_every_type_is_stored_as_its_own_and_nested_values_are_nested(made, shop, spark):
    made().write(
        batch(1, 0, 1),
        rows(
            spark,
            "true AS flag, 7 AS small, 8L AS big, 1.5D AS double, 12.50BD AS price, 'x' AS text, X'00FF' AS raw,"
            " DATE'2024-02-29' AS day, TIMESTAMP'2024-02-29 12:00:00.123456' AS at,"
            " TIMESTAMP_NTZ'2024-02-29 12:00:00' AS local,"
            " named_struct('last', 'Rowling', 'nothing', CAST(NULL AS STRING)) AS name,"
            " array(named_struct('title', 'One', 'copies', 3L), NULL) AS books,"
            " map('a', 1, 'b', NULL) AS counts, map(1, 'one') AS numbers,"
            ' parse_json(\'{"email": "x@y", "fax": null, "rate": 2.5, "tags": [1, "two"]}\') AS extra',
        ),
    )
    stored = shop.orders.find_one()
    assert stored == {
        "_id": "clicks:0:0",
        "flag": True,
        "small": 7,
        "big": 8,
        "double": 1.5,
        "price": Decimal128("12.50"),
        "text": "x",
        "raw": b"\x00\xff",
        "day": datetime(2024, 2, 29),
        "at": datetime(2024, 2, 29, 12, 0, 0, 123000),
        "local": datetime(2024, 2, 29, 12),
        "name": {"last": "Rowling"},
        "books": [{"title": "One", "copies": 3}, None],
        "counts": {"a": 1, "b": None},
        "numbers": [{"key": 1, "value": "one"}],
        "extra": {"email": "x@y", "fax": None, "rate": Decimal128("2.5"), "tags": [1, "two"]},
    }
    assert isinstance(stored["big"], Int64), "a BIGINT is one whatever its value"
    assert not isinstance(stored["small"], Int64)


def test_fields_that_are_null_are_left_out_or_kept(made, shop, spark):
    made("omitted").write(batch(1, 0, 1), frame(spark, [(0, None)]))
    made("kept", nulls="keep").write(batch(1, 0, 1), frame(spark, [(0, None)]))
    assert shop.omitted.find_one() == {"_id": "clicks:0:0", "id": 0}
    assert shop.kept.find_one() == {"_id": "clicks:0:0", "id": 0, "text": None}


def test_a_key_of_several_columns_is_a_document(made, shop, spark):
    sink = made(key=("id", "text"))
    for number, start in ((1, 0), (2, 5)):
        sink.write(batch(number, start, start + 1), upserts(spark, (start, 1, "a"), (start + 1, 1, "b")))
    assert [found["_id"] for found in shop.orders.find()] == [{"id": 1, "text": "a"}, {"id": 1, "text": "b"}]


def test_what_a_tombstone_leaves_expires(made, shop, spark):
    sink = made(key="id", keep_deleted_days=2)
    sink.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, 1, None)))
    (left,) = shop.orders.find()
    assert set(left) == {"_id", "_headrace"}
    assert abs(left["_headrace"]["deleted"].timestamp() - time.time()) < 86_400
    assert shop.orders.index_information()["headrace_deleted"]["expireAfterSeconds"] == 2 * 86_400


def test_field_updates_leave_other_fields_and_no_late_writer_puts_an_older_value_back(made, shop, spark):
    shop.orders.insert_one({"_id": 1, "note": "by hand"})
    sink = made(key="id", update="fields")
    sink.write(batch(1, 5, 6), upserts(spark, (5, 1, "a")))
    later = {"_id": 1, "note": "by hand", "id": 1, "text": "b", "_headrace": {"fields": {"p": {"id-1:0": 7}}}}
    for _ in range(2):
        sink.write(batch(2, 6, 9), upserts(spark, (6, 1, "x"), (7, 1, "b"), (8, 2, "new")))
        assert shop.orders.find_one({"_id": 1}) == later
    sink.write(batch(1, 5, 6), upserts(spark, (5, 1, "a")))  # a late writer
    assert shop.orders.find_one({"_id": 1}) == later
    assert shop.orders.find_one({"_id": 2})["text"] == "new"

    sink.write(batch(3, 9, 11), upserts(spark, (9, 1, None), (10, 3, None)))
    sink.write(batch(2, 6, 9), upserts(spark, (6, 1, "x"), (7, 1, "b"), (8, 2, "new")))
    found = {document.pop("_id"): document for document in shop.orders.find({}, {"_headrace": 0})}
    assert found == {1: {"id": 1, "note": "by hand"}, 2: {"id": 2, "text": "new"}, 3: {"id": 3}}
    assert "headrace_deleted" not in shop.orders.index_information()


def test_pipelines_that_update_other_fields_of_one_document_have_guards_of_their_own(mongo, made, shop, spark):
    """Of the same topic, the second one is ahead: what the first one writes then is not older."""
    with sinks.Mongo(mongo.url, f"{shop.name}.orders", key="id", create=True, update="fields").open("p.2") as other:
        other.write(batch(1, 9, 10), upserts(spark, (9, 1, "far ahead")).withColumnRenamed("text", "other"))
    sink = made(key="id", update="fields", nulls="keep")
    sink.write(batch(1, 5, 6), upserts(spark, (5, 1, "a")))
    (found,) = shop.orders.find()
    guards = {"p%2E2": {"id-1:0": 9}, "p": {"id-1:0": 5}}
    assert found == {"_id": 1, "id": 1, "other": "far ahead", "text": "a", "_headrace": {"fields": guards}}
    nothing = upserts(spark, (6, 1, "any")).selectExpr("id", "CAST(NULL AS STRING) AS text", "_kafka")
    sink.write(batch(2, 6, 7), nothing)
    assert shop.orders.find_one()["text"] is None
    made(key="id", update="fields").write(batch(3, 7, 8), nothing.selectExpr("id", "text", "_kafka"))
    assert "text" not in shop.orders.find_one()


def test_columns_are_stored_as_references_to_documents_of_other_collections(made, shop, spark):
    sink = made(dbref={"author": "authors", "shelf": "shelves", "editor": "editors"})
    columns = "named_struct('id', 7L) AS author, named_struct('room', 'A', 'number', {}) AS shelf, {} AS editor"
    found = refused(
        sink,
        batch(1, 0, 3),
        rows(
            spark, *(columns.format(*values) for values in [("3", "'x'"), ("CAST(NULL AS INT)", "'x'"), ("4", "NULL")])
        ),
    )
    assert found == {1: "shelf: number is NULL, so it refers to no document"}
    shop.authors.insert_one({"_id": 7, "name": "Rowling"})
    stored, without = shop.orders.find().sort("_id")
    assert stored == {
        "_id": "clicks:0:0",
        "author": DBRef("authors", 7),
        "shelf": DBRef("shelves", {"room": "A", "number": 3}),
        "editor": DBRef("editors", "x"),
    }
    assert isinstance(stored["author"], DBRef)
    assert shop.dereference(stored["author"]) == {"_id": 7, "name": "Rowling"}
    assert "editor" not in without


@pytest.mark.parametrize("update", ["document", "fields"])
def test_every_write_names_the_shard_key_and_what_a_tombstone_leaves_has_it(made, shop, spark, monkeypatch, update):
    """The server of this test has no shards: what is shown is what it is asked."""
    asked = []
    real = Collection.bulk_write

    def noted(collection, operations, **options):
        asked.extend(operation._filter for operation in operations)
        return real(collection, operations, **options)

    monkeypatch.setattr(Collection, "bulk_write", noted)
    sink = made(key=("id", "text"), shard_key=["text"], update=update)
    schema = frame(spark, []).selectExpr("id", "text", "1 AS n", "_kafka").schema
    write = sink._writer(batch(1, 0, 1), schema)
    values = {"id": 1, "text": "a", "n": 5}
    for version, deleted in ((5, False), (3, False), (7, True), (5, False)):
        assert write([Row((1, "a"), values, RecordId("clicks", 0, version), "s:0", version, deleted)]) == []
    assert [found["text"] for found in asked] == ["a"] * 4
    (left,) = shop.orders.find()
    assert left["text"] == "a"
    assert "n" not in left


def test_a_collection_that_the_cluster_says_is_sharded_by_other_fields_is_refused(mongo, made, shop, spark):
    """The server of this test has no shards: it is given the note that a cluster has about a collection."""
    schema = frame(spark, []).schema
    with MongoClient(mongo.url) as client:
        client.config.collections.insert_one({"_id": f"{shop.name}.orders", "key": {"text": "hashed"}})
        client.config.collections.insert_one({"_id": f"{shop.name}.whole", "key": {"x": 1}, "unsplittable": True})
    for options in ({"key": "id"}, {"key": ("id", "text"), "shard_key": "id"}, {"key": "id", "shard_key": "_id"}):
        with pytest.raises(ConfigError, match="is sharded by text") as caught:
            made(**options).prepare(schema)
        assert "shard_key=['text']" in caught.value.hint
    made(key=("id", "text"), shard_key="text").prepare(schema)
    made("whole", key="id").prepare(schema)


def books(spark, offset, *titles, tombstone=False):
    """An author, as of the record at `offset`."""
    found = ", ".join(f"named_struct('title', '{title}')" for title in titles)
    home = "named_struct('city', 'Rome') AS home"
    return rows(spark, f"1 AS author, {home}, array({found}) AS books", start=offset, tombstone=tombstone)


def test_children_have_collections_of_their_own_and_those_of_earlier_values_go(made, shop, spark):
    sink = made("authors", key="author", children=("home", "books"))
    for _ in range(2):
        sink.write(batch(1, 5, 6), books(spark, 5, "One", "Two", "Three"))
    assert [set(found) for found in shop.authors.find()] == [{"_id", "author", "_headrace"}]
    children = [*shop.authors_home.find(), *shop.authors_books.find()]
    assert [found["parent"] for found in children] == [1] * 4
    assert [found["title"] for found in shop.authors_books.find().sort("position")] == ["One", "Two", "Three"]

    sink.write(batch(2, 6, 7), books(spark, 6, "New"))
    sink.write(batch(1, 5, 6), books(spark, 5, "One", "Two", "Three"))  # a replay
    assert [found["title"] for found in shop.authors_books.find()] == ["New"]

    sink.write(batch(3, 7, 8), books(spark, 7, "Any", tombstone=True))
    sink.write(batch(1, 5, 6), books(spark, 5, "One", "Two", "Three"))
    assert shop.authors_books.count_documents({}) == shop.authors_home.count_documents({}) == 0


def test_children_by_origin_are_replaced_as_a_whole(made, shop, spark):
    sink = made("authors", children={"books": "volumes"})
    sink.write(batch(1, 0, 1), books(spark, 0, "One", "Two"))
    sink.write(batch(1, 0, 1), books(spark, 0, "New"))
    assert [found["title"] for found in shop.volumes.find()] == ["New"]
    assert shop.volumes.find_one()["_id"] == {"parent": "clicks:0:0", "position": 0}


def test_children_that_several_runs_write_at_once_are_those_of_the_newest_value_once_it_is_written_last(
    made, shop, spark
):
    sink = made("authors", key="author", children="books")
    write = sink._writer(batch(1, 0, 1), books(spark, 0, "Any").select("author", "books").schema)

    def author(version):
        titles = [{"title": f"{version} {position}"} for position in range(version % 7)]
        return Row((1,), {"author": 1, "books": titles}, RecordId("clicks", 0, version), "s:0", version)

    assert write([author(0)]) == []
    versions = [n % 40 for n in range(0, 400, 13)]
    with ThreadPoolExecutor(4) as runs:
        assert not any(runs.map(lambda version: write([author(version)]), versions))
    assert write([author(40)]) == []
    assert shop.authors.find_one()["_headrace"]["version"] == 40
    assert [found["title"] for found in shop.authors_books.find().sort("position")] == [f"40 {n}" for n in range(5)]


def test_indexes_are_made_and_a_unique_one_refuses_a_row_that_is_not_newer_nor_older(made, shop, spark):
    sink = made(key="id", indexes=["name.last", ("id", "-text"), {"fields": "text", "unique": True}])
    frame_ = upserts(spark, (0, 1, "a"), (1, 2, "a"), (2, 3, "c")).coalesce(1)  # in this order
    assert list(refused(sink, batch(1, 0, 3), frame_)) == [1]
    assert sorted(found["_id"] for found in shop.orders.find()) == [1, 3]
    keys = [index["key"] for index in shop.orders.index_information().values()]
    assert [("name.last", 1)] in keys
    assert [("id", 1), ("text", -1)] in keys
    with pytest.raises(BadRecord, match=r"(?s)offset 1.*duplicate key"):
        sink.write(batch(1, 0, 3), frame_)
    sink.write(batch(2, 3, 5), upserts(spark, (3, 1, None), (4, 3, None)))
    assert shop.orders.count_documents({"_headrace.deleted": {"$exists": True}}) == 2, "not equal for lack of a text"


def test_a_document_that_cannot_be_stored_is_refused_and_the_others_are_stored(made, shop, spark):
    found = refused(
        made(),
        batch(1, 0, 3),
        rows(
            spark,
            "1.5BD AS n, 'fits' AS text",
            f"CAST('{'9' * 38}' AS DECIMAL(38, 0)) AS n, '34 digits are the most' AS text",
            "1 AS n, repeat('x', 16 * 1024 * 1024) AS text",
        ),
    )
    assert "n: " in found[1]
    assert "34 digits" in found[1]
    assert "16,777,216" in found[2]
    assert [document["text"] for document in shop.orders.find()] == ["fits"]


def test_a_key_that_mongodb_cannot_tell_from_another_is_refused(made, shop, spark):
    times = rows(spark, "TIMESTAMP'2024-01-01 00:00:00.001' AS at", "TIMESTAMP'2024-01-01 00:00:00.001002' AS at")
    assert "microseconds" in refused(made(key="at"), batch(1, 0, 2), times)[1]
    assert shop.orders.count_documents({}) == 1


def test_a_document_that_another_run_makes_at_the_same_moment_is_replaced_if_it_is_older(
    made, shop, spark, monkeypatch
):
    """Between the look of an upsert and its insert: the server says that the key is there already."""
    sink = made(key="id")
    real = Collection.bulk_write
    late = [{"_id": 1, "text": "older", "_headrace": {"source": "s:0", "version": 3}}]

    def raced(collection, operations, **options):
        if not late:
            return real(collection, operations, **options)
        shop.orders.insert_one(late.pop())
        error = {"index": 0, "code": 11000, "errmsg": "E11000 … index: _id_ dup key", "keyPattern": {"_id": 1}}
        raise BulkWriteError({"writeErrors": [error], "writeConcernErrors": []})

    monkeypatch.setattr(Collection, "bulk_write", raced)
    row = Row((1,), {"id": 1, "text": "newer"}, RecordId("clicks", 0, 5), "s:0", 5)
    assert sink._writer(batch(1, 0, 1), frame(spark, []).schema)([row]) == []
    assert shop.orders.find_one()["text"] == "newer"


@pytest.mark.parametrize("key", ["id", ("id", "text")])
def test_a_newer_document_whose_id_is_another_type_of_the_same_number_stays(made, shop, spark, key):
    """The column was an INT once, and a BIGINT is replayed."""
    there = {"_id": 1 if key == "id" else {"id": 1, "text": "a"}, "_headrace": {"source": "s:0", "version": 9}}
    sink = made(key=key)
    shop.orders.insert_one(there)
    values = {"id": 1, "text": "a"}
    row = Row((1,) if key == "id" else (1, "a"), values, RecordId("clicks", 0, 5), "s:0", 5)
    assert sink._writer(batch(1, 0, 1), frame(spark, []).schema)([row]) == []
    assert list(shop.orders.find()) == [there]


@pytest.mark.parametrize(("code", "kind"), [(64, RetriableError), (79, ConfigError), (100, ConfigError)])
def test_a_write_concern_that_is_not_met_is_repeated_unless_it_never_can_be(made, spark, monkeypatch, code, kind):
    def unmet(collection, operations, **options):
        raise BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"errmsg": "unmet", "code": code}]})

    monkeypatch.setattr(Collection, "bulk_write", unmet)
    row = Row((), {"id": 1, "text": "a"}, RecordId("clicks", 0, 5))
    with pytest.raises(kind, match="unmet"):
        made()._writer(batch(1, 0, 1), frame(spark, []).schema)([row])


def test_a_collection_that_is_not_there_is_made_only_if_asked(mongo, shop, spark):
    schema = frame(spark, []).schema
    with sinks.Mongo(mongo.url, f"{shop.name}.orders").open("p") as sink:
        with pytest.raises(ConfigError, match="no collection orders") as caught:
            sink.prepare(schema)
        assert "create=True" in caught.value.hint
    with sinks.Mongo(f"{mongo.url}/{shop.name}", "orders", create=True).open("p") as sink:
        sink.prepare(schema)
    assert shop.list_collection_names() == ["orders"]


def test_a_server_without_capped_collections_says_so(made, spark):
    """All that can be tested of them here."""
    with pytest.raises(ConfigError, match="capped"):
        made(capped={"size": 4096, "max": 10}).prepare(frame(spark, []).schema)


@pytest.mark.parametrize(
    ("selection", "options", "message"),
    [
        ("1 AS _id", {}, "_id"),
        ("1 AS `a.b`", {}, "a.b"),
        ("named_struct('$x', 1) AS a", {}, r"\$x"),
        ("INTERVAL 1 DAY AS a", {}, "interval"),
        ("1 AS a", {"children": "a"}, "a, which children= names, to be a STRUCT or an ARRAY of them, but it is int"),
        ("array(named_struct('parent', 1)) AS a", {"children": "a"}, "parent"),
        ("array(1) AS a", {"dbref": {"a": "others"}}, "it is array<int>"),
        ("1 AS a", {"dbref": {"b": "others"}}, "it is not there"),
        ("1 AS a", {"key": "a", "update": "fields"}, "no column besides the key"),
    ],
)
def test_rows_that_cannot_be_documents_are_refused_before_anything_is_written(made, spark, selection, options, message):
    with pytest.raises(ConfigError, match=message):
        made(**options).prepare(rows(spark, selection).schema)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("localhost", "a.b"), {}, "URL"),
        (("mongodb://h", "a..b"), {}, "collection"),
        (("mongodb://h", "a.b"), {"write_concern": 0}, "write_concern"),
        (("mongodb://h", "a.b"), {"capped": {"size": 1}, "key": "id"}, "replaced"),
        (("mongodb://h", "a.b"), {"capped": {"max": 1}}, "size"),
        (("mongodb://h", "a.b"), {"nulls": "some"}, "nulls"),
        (("mongodb://h", "a.b"), {"indexes": [()]}, "index"),
        (("mongodb://h", "a.b"), {"children": {"x": "b"}}, "children"),
        (("mongodb://h", "a.b"), {"keep_deleted_days": 0}, "keep_deleted_days"),
        (("mongodb://h", "a.b"), {"dbref": {"id": "users"}, "key": "id"}, "in the key"),
        (("mongodb://h", "a.b"), {"shard_key": ["day"], "key": "id"}, "expected columns of key=, or _id, got 'day'"),
        (("mongodb://h", "a.b"), {"shard_key": "offset"}, "shard_key='offset'"),
        (("mongodb://h", "a.b"), {"shard_key": (), "key": "id"}, "got no name"),
        (("mongodb://h", "a.b"), {"update": "some", "key": "id"}, "update: expected one of"),
        (("mongodb://h", "a.b"), {"update": "fields"}, "needs key="),
        (("mongodb://h", "a.b"), {"update": "fields", "key": "id", "children": "x"}, "no children="),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        sinks.Mongo(*arguments, **options)


def test_a_server_that_is_not_there_is_an_error_within_seconds_that_shows_no_password():
    began = time.monotonic()
    sink = sinks.Mongo("mongodb://u:secret@127.0.0.1:9/?serverSelectionTimeoutMS=500", "a.b")
    with closing(sink), pytest.raises(RetriableError) as caught:
        sink.open("p")
    assert time.monotonic() - began < 5
    assert "secret" not in repr(caught.value) + repr(sink)


def test_a_column_that_is_called_like_a_part_of_the_record_is_not_taken_for_it(made, spark):
    """Rows of different records would have the same key, and all but one be lost."""
    with pytest.raises(ConfigError, match="the rows have a column partition"):
        made().write(batch(1, 0, 2), rows(spark, "7 AS partition", "7 AS partition"))


def test_a_server_that_is_gone_is_an_error_to_repeat_and_when_it_is_back_the_batch_is_stored(tmp_path, spark):
    with dev.Mongo(tmp_path) as server, sinks.Mongo(server.url, "a.b", create=True).open("p") as sink:
        write_around_a_death(server, sink, spark)
        with MongoClient(server.url) as client:
            assert client["a"]["b"].count_documents({}) == 4


def test_a_login_that_the_server_does_not_take_is_a_config_error_that_shows_no_password(mongo):
    """This server knows none at all."""
    sink = sinks.Mongo(mongo.url.replace("://", "://u:secret@"), "a.b")
    with closing(sink), pytest.raises(ConfigError, match="saslStart") as caught:
        sink.open("p")
    assert "secret" not in repr(caught.value)


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        (18, ConfigError, "password"),
        (13, ConfigError, "readWrite"),
        (86, ConfigError, "index"),
        (100, ConfigError, "write_concern="),
        (189, RetriableError, "up"),
    ],
)
def test_errors_of_a_server_say_what_to_do(code, kind, hint):
    error = mongo_client.server_error("sinks.Mongo(…)", code, "said so")
    assert type(error) is kind
    assert hint in error.hint
    assert mongo_client.concerns_one_document(code) is (code == 86)

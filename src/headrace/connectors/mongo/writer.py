"""Runs on the executors: encodes rows as documents and writes them in bulk."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.connectors.mongo import client as mongo_client
from headrace.connectors.mongo import types
from headrace.connectors.mongo.guarded_update import Put, build_update
from headrace.connectors.mongo.types import GUARD
from headrace.connectors.shared.document_encoder import UnsupportedValue
from headrace.errors import RetriableError
from headrace.spark import tasks
from headrace.support.optional_imports import require
from headrace.support.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from headrace.connectors.shared.document_encoder import Nulls
    from headrace.connectors.shared.keyed_sink import Row

_RACES = RetryPolicy(attempts=8)
_ON_ID = re.compile(r"index: (?:\S*\$)?_id_(?:\s|$)")


@dataclass(frozen=True, slots=True)
class MongoTarget:
    """The collections. `children` maps columns to their separate collections; `references` maps columns that become a
    DBRef to the collections that they refer to."""

    url: str = field(repr=False)  # the URL may contain the password
    database: str
    collection: str
    write_concern: int | str
    children: Mapping[str, str]
    references: Mapping[str, str]
    shard_key: tuple[str, ...] = ()

    def collections(self) -> dict[str, Any]:
        """The collections by column; the collection of the rows has the name ""."""
        pymongo = require("pymongo", extra="mongo")
        client = tasks.worker_cached(("mongo", self.url), lambda: mongo_client.connect(self.url))
        concern = pymongo.WriteConcern(w=self.write_concern)
        primary = pymongo.ReadPreference.PRIMARY
        return {
            column: client[self.database].get_collection(name, write_concern=concern, read_preference=primary)
            for column, name in {"": self.collection, **self.children}.items()
        }


@dataclass(frozen=True, slots=True)
class MongoWriter:
    """Stores rows with this schema, which has exactly the stored columns.

    `by_origin`: the `_id` is the id of the row's record. `insert`: documents are never replaced. `guard`: the field
    with the versions of this pipeline, if documents are updated by field instead of replaced.
    """

    target: MongoTarget
    sink: str
    schema: StructType
    key: tuple[str, ...]
    by_origin: bool
    insert: bool
    nulls: Nulls
    guard: str | None = None

    def __call__(self, rows: Sequence[Row]) -> list[tuple[Row, str]]:
        with mongo_client.translate_error(self.sink):
            return self._write(rows)

    def _write(self, rows: Sequence[Row]) -> list[tuple[Row, str]]:
        collections = self.target.collections()
        encoders = self._encoders()
        rejected: dict[int, str] = {}
        parents: list[Put] = []
        children: dict[int, dict[str, list[Put]]] = {}
        for number, row in enumerate(rows):
            try:
                parent = self._parent_put(number, row, encoders)
                children[number] = dict(self._child_puts(parent, row, encoders))
                parents.append(parent)
            except UnsupportedValue as error:
                rejected[number] = str(error)
        overtaken = self._write_puts(collections[""], parents, rejected)
        stored = [put for put in parents if put.number not in overtaken and put.number not in rejected]
        for column in self.target.children:
            self._write_puts(collections[column], [c for put in stored for c in children[put.number][column]], rejected)
            self._delete_surplus_children(
                collections[column], stored, {n: len(found[column]) for n, found in children.items()}
            )
        return [(rows[number], reason) for number, reason in rejected.items()]

    def _encoders(self) -> dict[str, Callable[[Any], Any]]:
        encoder = types.document_encoder()
        encoders = {field.name: encoder.encoder_for(field.dataType, self.nulls) for field in self.schema.fields}
        for column, collection in self.target.references.items():
            encoders[column] = types.reference(self.schema[column].dataType, collection, self.nulls)
        return encoders

    def _parent_put(self, number: int, row: Row, encoders: Mapping[str, Callable[[Any], Any]]) -> Put:
        document_id = self._id(row, encoders)
        shard = {name: encoders[name](row.values[name]) for name in self.target.shard_key if name != "_id"}
        put = Put(number, document_id, None, row.source, row.version, self.guard, shard)
        if self.guard is not None:
            return self._update(put, row, encoders)
        if row.deleted and row.source is None:
            return put
        own = {name: encode for name, encode in encoders.items() if name not in self.target.children and name != "_id"}
        # The guard of a tombstone remains in its shard.
        fields = shard if row.deleted else types.document_encoder().fields(own, row.values, self.nulls)
        return put._replace(body=self._encode(document_id, fields, row))

    def _update(self, put: Put, row: Row, encoders: Mapping[str, Callable[[Any], Any]]) -> Put:
        """Set all columns of the row; remove the fields of columns that are omitted or deleted."""
        own = {name: encode for name, encode in encoders.items() if name != "_id"}
        used = {name: encode for name, encode in own.items() if name in self.key} if row.deleted else own
        fields = types.document_encoder().fields(used, row.values, self.nulls)
        return put._replace(body=types.encode_value(build_update(put, fields, own)))

    def _id(self, row: Row, encoders: Mapping[str, Callable[[Any], Any]]) -> Any:
        if self.by_origin:
            assert row.origin is not None
            return f"{row.origin.topic}:{row.origin.partition}:{row.origin.offset}"
        parts = {}
        for name, value in zip(self.key, row.key, strict=True):
            parts[name] = encoders[name](types.key_part(value, name))
        return parts if len(parts) > 1 else parts[self.key[0]]

    def _encode(self, document_id: Any, fields: dict[str, Any], row: Row) -> Any:
        document = {"_id": document_id, **fields}
        if row.source is not None:
            document[GUARD] = {"source": row.source, "version": require("bson.int64", extra="mongo").Int64(row.version)}
            if row.deleted:
                document[GUARD]["deleted"] = datetime.now(UTC)
        return types.encode_value(document)

    def _child_puts(
        self, parent: Put, row: Row, encoders: Mapping[str, Callable[[Any], Any]]
    ) -> Iterator[tuple[str, list[Put]]]:
        for column in self.target.children:
            value = None if row.deleted else row.values[column]
            children = [] if value is None else encoders[column](value)
            puts = []
            for position, fields in enumerate(children if isinstance(children, list) else [children]):
                child_id = {"parent": parent.id, "position": position}
                body = self._encode(child_id, {**child_id, **(fields or {})}, row)
                puts.append(Put(parent.number, child_id, body, row.source, row.version))
            yield column, puts

    def _write_puts(self, collection: Any, puts: Sequence[Put], rejected: dict[int, str]) -> set[int]:
        """Write the puts; return the numbers of those with a newer document. Adds to `rejected` what the server
        rejects."""
        overtaken: set[int] = set()
        waiting = list(puts)
        for _ in _RACES.tries():
            retried: list[Put] = []
            duplicates: list[tuple[Put, Any]] = []
            for error in self._bulk(collection, [self._operation(put) for put in waiting]):
                put = waiting[error["index"]]
                if error["code"] != mongo_client.DUPLICATE:
                    rejected[put.number] = error["errmsg"]
                elif not (self.insert and _on_id(error)):  # otherwise a repeat of an insert that was done
                    duplicates.append((put, error))
            guards = _guards(collection, [put.id for put, _ in duplicates])
            for put, error in duplicates:
                guard = guards[key] if (key := _id_bytes(put.id)) in guards else _guard(collection, put.id)
                if put.overtaken(guard):
                    overtaken.add(put.number)
                elif _on_id(error):  # created concurrently: now it can be replaced
                    retried.append(put)
                else:
                    rejected[put.number] = error["errmsg"]
            if not retried:
                return overtaken
            waiting = retried
        raise RetriableError(
            f"{self.sink}: concurrent writers keep changing the same documents, such as {waiting[0].id!r}"
        )

    def _bulk(self, collection: Any, operations: Sequence[Any]) -> list[Any]:
        """Run the operations; return the write errors that each concern only one document."""
        errors = require("pymongo.errors", extra="mongo")
        if not operations:
            return []
        try:
            collection.bulk_write(operations, ordered=False)
        except errors.BulkWriteError as error:
            failed: list[Any] = error.details["writeErrors"]
            for failure in failed:
                if not mongo_client.concerns_one_document(failure["code"]):
                    raise mongo_client.server_error(self.sink, failure["code"], failure["errmsg"]) from error
            if concern := error.details["writeConcernErrors"]:
                raise mongo_client.write_concern_error(
                    self.sink, concern[0].get("code"), concern[0]["errmsg"]
                ) from error
            return failed
        return []

    def _operation(self, put: Put) -> Any:
        pymongo = require("pymongo", extra="mongo")
        if put.body is None:
            return pymongo.DeleteOne(put.filter)
        if self.guard is not None:
            return pymongo.UpdateOne(put.filter, put.body, upsert=True)
        return pymongo.InsertOne(put.body) if self.insert else pymongo.ReplaceOne(put.filter, put.body, upsert=True)

    def _delete_surplus_children(self, collection: Any, parents: Sequence[Put], counts: Mapping[int, int]) -> None:
        """Delete the children of an earlier document that the current one does not have."""
        delete = require("pymongo", extra="mongo").DeleteMany
        operations = []
        for parent in parents:
            beyond = {"position": {"$gte": counts[parent.number]}}
            if parent.source is None:
                operations.append(delete({"parent": parent.id, **beyond}))
                continue
            version = f"{GUARD}.version"
            others = {f"{GUARD}.source": {"$ne": parent.source}}
            stale = [others, {version: {"$lt": parent.version}}, {version: parent.version, **beyond}]
            operations.append(delete({"parent": parent.id, "$or": stale}))
        for error in self._bulk(collection, operations):
            raise mongo_client.server_error(self.sink, error["code"], error["errmsg"])


def _on_id(error: Mapping[str, Any]) -> bool:
    """Whether a duplicate-key error concerns `_id`, not another unique index."""
    pattern = error.get("keyPattern")
    return list(pattern) == ["_id"] if pattern else bool(_ON_ID.search(error["errmsg"]))


def _guards(collection: Any, ids: Sequence[Any]) -> dict[bytes, Any]:
    """The guards of the documents whose stored `_id` has exactly the requested encoding."""
    if not ids:
        return {}
    return {
        _id_bytes(found["_id"]): found.get(GUARD) for found in collection.find({"_id": {"$in": list(ids)}}, {GUARD: 1})
    }


def _guard(collection: Any, document_id: Any) -> Any:
    """The guard of the document whose `_id` the server considers equal: an int, a long and a double 1 are equal."""
    stored = collection.find_one({"_id": document_id}, {GUARD: 1})
    return stored and stored.get(GUARD)


def _id_bytes(document_id: Any) -> bytes:
    """An `_id`, which may be a document, as a dictionary key."""
    return bytes(require("bson", extra="mongo").encode({"": document_id}))

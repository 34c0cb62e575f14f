"""The MongoDB sink: one document per record, or the newest value of each business key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.mongo import client, types
from headrace.connectors.mongo import shard_key as mongo_shards
from headrace.connectors.mongo.guarded_update import guard_path
from headrace.connectors.mongo.writer import MongoTarget, MongoWriter
from headrace.connectors.shared.document_encoder import check_nulls
from headrace.connectors.shared.keyed_sink import KeyedSink, RowKey
from headrace.errors import ConfigError
from headrace.support.crashpoints import reach
from headrace.support.optional_imports import require
from headrace.support.redaction import masked
from headrace.support.validation import check_choice, check_positive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from headrace.connectors.shared.keyed_sink import Writer
    from headrace.types import Batch

    Index = str | Sequence[str] | Mapping[str, Any]

_UPDATES = ("document", "fields")
_CAPS = frozenset({"size", "max"})
_INDEX = frozenset({"fields", "unique"})


class Mongo(KeyedSink):
    """Stores rows as documents in one collection, `"shop.orders"`, or several: `children` are columns with structs or
    arrays of structs, which become documents of separate collections with a reference to their `parent`.

    `capped` ({"size": bytes, "max": documents}) creates a capped collection, which deletes its oldest documents. It is
    for rows without a business key only.

    `update="fields"` sets the columns of a row in the document with its key and keeps the document's other fields.
    """

    driver = ("pymongo", "mongo")

    def __init__(
        self,
        url: str,
        collection: str,
        *,
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        create: bool = False,
        indexes: Sequence[Index] = (),
        children: str | Sequence[str] | Mapping[str, str] = (),
        dbref: Mapping[str, str] | None = None,
        shard_key: str | Sequence[str] | None = None,
        capped: Mapping[str, int] | None = None,
        nulls: str = "omit",
        update: str = "document",
        write_concern: int | str = "majority",
        keep_deleted_days: float = 7,
    ) -> None:
        super().__init__(RowKey.of(key, deleted))
        if not isinstance(url, str) or not url.startswith(("mongodb://", "mongodb+srv://")):
            raise ConfigError(
                "expected a URL of MongoDB, got none", hint='sinks.Mongo("mongodb://localhost:27017", "shop.orders")'
            )
        database, name = _split(url, collection)
        if write_concern == 0 or not isinstance(write_concern, int | str):
            raise ConfigError(
                f"write_concern={write_concern!r}: expected one that acknowledges writes",
                hint='write_concern="majority"',
            )
        if capped is not None and (key is not None or children):
            what = "replaced" if key is not None else "removed"
            raise ConfigError(
                f"documents in a capped collection cannot be {what}", hint="leave out capped=, or key= and children="
            )
        if capped is not None and ("size" not in capped or not set(capped) <= _CAPS):
            raise ConfigError(
                f"capped={dict(capped)!r}: expected size, and max if wanted",
                hint='capped={"size": 6142800, "max": 10000}',
            )
        check_positive("keep_deleted_days", keep_deleted_days, hint="keep_deleted_days=7")
        check_choice("update", update, _UPDATES)
        if update == "fields" and (key is None or children):
            raise ConfigError(
                'update="fields" needs key=, which names the document to update, and takes no children=',
                hint='sinks.Mongo(…, key="id", update="fields")',
            )
        named = _children(name, children)
        references = _references(dbref or {}, {*named, *self._identity.key})
        shards: tuple[str, ...] = ()
        if shard_key is not None:
            shards = mongo_shards.check_shard_key(shard_key, self._identity.key, by_origin=self._identity.is_record_id)
        self._target = MongoTarget(url, database, name, write_concern, named, references, shards)
        self._key = self._identity.key
        self._create = create
        self._indexes = [_index(index) for index in indexes]
        self._capped = dict(capped) if capped is not None else None
        self._nulls = check_nulls(nulls)
        self._by_field = update == "fields"
        self._pipeline = ""
        self._is_capped = capped is not None
        self._keep_seconds = int(keep_deleted_days * 86_400)
        self._client: Any = None

    @property
    def identity(self) -> str:
        target = self._target
        return f"sinks.Mongo({masked(target.url)!r}, {f'{target.database}.{target.collection}'!r})"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        self._client = client.connect(self._target.url)
        with client.translate_error(repr(self)):
            self._client.admin.command("ping")
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def check_target(self, schema: StructType) -> None:
        self._check_rows(schema)
        with self.open(""), client.translate_error(repr(self)):
            self._ensure_collections(self._identity.by_origin(schema.names), create=False)

    def _check_rows(self, schema: StructType) -> None:
        stored = self._stored_schema(schema)
        types.check_names(stored, self._key, self)
        types.document_encoder().check(stored, self)
        self._check_children(stored)
        types.check_references(stored, self._target.references, self)
        if self._by_field and set(stored.names) <= set(self._key):
            raise ConfigError(
                f"{self!r}: the rows have no column besides the key, so there is no field to update",
                hint="keep other columns in the transform, or leave out update=",
            )

    def prepare(self, schema: StructType) -> None:
        self._check_rows(schema)
        self.require_open(self._client)
        with client.translate_error(repr(self)):
            by_origin = self._identity.by_origin(schema.names)
            self._ensure_collections(by_origin)
            self._create_indexes(leaves_deleted=not by_origin and not self._by_field)

    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        self.ensure_prepared(schema)
        by_origin = self._identity.by_origin(schema.names)
        stored = self._stored_schema(schema)
        guard = guard_path(self._pipeline) if self._by_field else None
        return MongoWriter(self._target, repr(self), stored, self._key, by_origin, self._is_capped, self._nulls, guard)

    def _check_children(self, schema: StructType) -> None:
        from pyspark.sql.types import ArrayType, StructType

        kinds = {field.name: field.dataType for field in schema.fields}
        for column in self._target.children:
            kind = kinds.get(column)
            inner = kind.elementType if isinstance(kind, ArrayType) else kind
            if not isinstance(inner, StructType):
                found = f"is {kind.simpleString()}" if kind else "is not there"
                raise ConfigError(
                    f"{self!r}: expected {column}, which children= names, to be a STRUCT or an ARRAY of them,"
                    f" but it {found}",
                    hint="change the column in the transform, or leave it out of children=",
                )
            if column in self._key or {"_id", "parent", "position", types.GUARD} & set(inner.names):
                raise ConfigError(
                    f"{self!r}: {column} is in the key, or has a reserved field: _id, parent or position",
                    hint="rename it in the transform",
                )

    def _ensure_collections(self, by_origin: bool, *, create: bool = True) -> None:
        database = self._client[self._target.database]
        wanted = [self._target.collection, *self._target.children.values()]
        existing = {found["name"]: found for found in database.list_collections(filter={"name": {"$in": wanted}})}
        for name in wanted:
            if name in existing:
                continue
            if not self._create:
                raise ConfigError(
                    f"{self!r}: there is no collection {name}", hint="create=True makes it, or correct its name"
                )
            if create:
                self._create_collection(database, name)
                reach("mongo: collection made")
        mongo_shards.check_cluster_key(
            self._client, self._target.database, self._target.collection, self._target.shard_key, self
        )
        if existing.get(self._target.collection, {}).get("options", {}).get("capped"):
            self._is_capped = True
            if not by_origin or self._target.children:
                raise ConfigError(
                    f"{self!r} is a capped collection, in which documents cannot be replaced",
                    hint="leave out key= and children=, or name another collection",
                )

    def _create_collection(self, database: Any, name: str) -> None:
        errors = require("pymongo.errors", extra="mongo")
        options = {"capped": True, **self._capped} if self._capped else {}
        try:
            database.create_collection(name, **options)
        except errors.CollectionInvalid:
            return  # another run created it first
        except errors.OperationFailure as error:
            if error.code != client.NAMESPACE_EXISTS:
                raise

    def _create_indexes(self, *, leaves_deleted: bool) -> None:
        collections = self._client[self._target.database]
        for fields, unique in self._indexes:
            # Sparse, so that documents without the fields, such as the guard of a tombstone, are not compared.
            collections[self._target.collection].create_index(fields, unique=unique, sparse=unique)
        for name in self._target.children.values():
            collections[name].create_index("parent")
        if leaves_deleted:
            # The guard of a tombstone rejects older values. It expires when no older value can arrive any more.
            field = f"{types.GUARD}.deleted"
            collections[self._target.collection].create_index(
                field, name="headrace_deleted", sparse=True, expireAfterSeconds=self._keep_seconds
            )


def _split(url: str, collection: str) -> tuple[str, str]:
    """Database and collection; the database may be in the URL."""
    if not isinstance(collection, str) or not all(collection.split(".")) or "$" in collection:
        raise ConfigError(f"expected the name of a collection, got {collection!r}", hint='"shop.orders"')
    database, dot, name = collection.partition(".")
    if dot:
        return database, name
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    return path or "test", collection


def _children(collection: str, children: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    columns = (children,) if isinstance(children, str) else children
    named = dict(columns) if isinstance(columns, dict) else {column: f"{collection}_{column}" for column in columns}
    if len({collection, *named.values()}) <= len(named) or not all(named) or not all(named.values()):
        raise ConfigError(
            f"children={children!r}: expected columns, each with its own collection", hint='children="comments"'
        )
    return named


def _references(dbref: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    named = dict(dbref)
    if not all(isinstance(name, str) and name for pair in named.items() for name in pair) or taken & set(named):
        raise ConfigError(
            f"dbref={dbref!r}: expected columns that are neither in the key nor children, each with a collection",
            hint='dbref={"author": "authors"}',
        )
    return named


def _index(index: Index) -> tuple[list[tuple[str, int]], bool]:
    """Parse `"name.last"`, `("user", "-day")`, or `{"fields": …, "unique": True}`."""
    wanted: Any = index if isinstance(index, dict) else {"fields": index}
    fields = wanted.get("fields")
    names = (fields,) if isinstance(fields, str) else tuple(fields or ())
    if not names or not all(isinstance(name, str) and name.strip("-") for name in names) or set(wanted) - _INDEX:
        raise ConfigError(
            f"expected an index, got {index!r}",
            hint='"name.last", ("user", "-day"), {"fields": "email", "unique": True}',
        )
    return [(name.removeprefix("-"), -1 if name.startswith("-") else 1) for name in names], wanted.get("unique", False)

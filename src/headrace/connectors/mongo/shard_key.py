"""Checks the shard key of a collection, and compares it with the cluster's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Sequence

_DENIED = 13
_ID = ("_id",)


def check_shard_key(shard_key: str | Sequence[str], key: Sequence[str], *, by_origin: bool) -> tuple[str, ...]:
    """The fields of the shard key. ConfigError unless every write can provide their values: each field must be `_id` or
    a column of the key."""
    names = (shard_key,) if isinstance(shard_key, str) else tuple(shard_key)
    known = {*_ID, *(() if by_origin else key)}
    if not names or (missing := [name for name in names if name not in known]):
        got = f"{missing[0]!r}" if names else "no name"
        raise ConfigError(
            f"shard_key={shard_key!r}: expected columns of key=, or _id, got {got}",
            hint="an upsert names the whole shard key: add its columns to key=, or shard by _id",
        )
    return names


def check_cluster_key(client: Any, database: str, collection: str, shard_key: tuple[str, ...], sink: object) -> None:
    """ConfigError if the cluster shards the collection by other fields.

    No check if the server is not a sharded cluster, or if this user may not read `config`.
    """
    errors = require("pymongo.errors", extra="mongo")
    try:
        found = client["config"]["collections"].find_one({"_id": f"{database}.{collection}"})
    except errors.OperationFailure as error:
        if error.code == _DENIED:
            return
        raise
    # "unsplittable": a tracked but unsharded collection. "dropped": the entry of a deleted one on servers before 5.0.
    if found is None or found.get("dropped") or found.get("unsplittable") or not found.get("key"):
        return
    actual = {name if name.partition(".")[0] != "_id" else "_id" for name in found["key"]}
    if actual != set(shard_key or _ID):
        raise ConfigError(
            f"{sink!r} is sharded by {', '.join(found['key'])}: expected that as shard_key=, got"
            f" {', '.join(shard_key) or 'none, which means _id'}",
            hint=f"shard_key={list(found['key'])!r}, and the same columns in key=",
        )

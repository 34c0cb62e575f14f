"""One write of a document, with the guard that keeps an older value from replacing a newer one."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from headrace.connectors.mongo.types import GUARD
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Put(NamedTuple):
    """Replaces the document with the same `id`, unless that is newer. Without a `body`, deletes it.

    `number` is the number of the row. With `guard` the body is an update of fields, and the document has one version
    per source below that path: pipelines that update other fields of the document have their own versions. `shard` has
    the values of the shard key except `_id`.
    """

    number: int
    id: Any
    body: Any
    source: str | None
    version: int | None
    guard: str | None = None
    shard: Mapping[str, Any] = MappingProxyType({})

    @property
    def path(self) -> str:
        """The field with the version of this source."""
        return f"{self.guard}.{_escape(self.source or '')}"

    @property
    def filter(self) -> dict[str, Any]:
        found = {"_id": self.id, **self.shard}
        if self.source is None:
            return found
        if self.guard is not None:
            return {**found, "$or": [{self.path: {"$exists": False}}, {self.path: {"$lte": self.version}}]}
        older = [{f"{GUARD}.source": {"$ne": self.source}}, {f"{GUARD}.version": {"$lte": self.version}}]
        return {**found, "$or": older}

    def overtaken(self, guard: Any) -> bool:
        """Whether the document with this guard is newer."""
        if self.source is None or self.version is None or not isinstance(guard, dict):
            return False
        if self.guard is None:
            return guard.get("source") == self.source and (guard.get("version") or 0) > self.version
        found: Any = {GUARD: guard}
        for name in self.path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found is not None and found > self.version


def guard_path(pipeline: str) -> str:
    """The path of the versions of a pipeline that updates fields."""
    return f"{GUARD}.fields.{_escape(pipeline)}"


def build_update(put: Put, fields: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """The update that sets `fields` and removes the other fields in `own`."""
    removed = [name for name in own if name not in fields]
    changed = dict(fields)
    if put.source is not None:
        changed[put.path] = require("bson.int64", extra="mongo").Int64(put.version)
        removed.append(f"{GUARD}.deleted")  # otherwise the TTL index would delete a document that has fields again
    update = {"$set": changed, "$unset": dict.fromkeys(removed, "")}
    return {operator: names for operator, names in update.items() if names}


def _escape(text: str) -> str:
    """Escape a text so that it is a single step of a path."""
    return quote(text, safe=":").replace(".", "%2E")

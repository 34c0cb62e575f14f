"""Stores and sinks by name: Headrace's own, and those that other packages register as entry points."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from headrace import sinks, stores
from headrace.core.offset_store import OffsetStore
from headrace.core.sink import Sink
from headrace.errors import ConfigError
from headrace.support.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def store_kinds() -> dict[str, Callable[..., OffsetStore]]:
    """`{"sqlite": stores.SQLite, …}`; other packages register theirs in the entry point group `headrace.stores`."""
    return _kinds(stores, OffsetStore, "headrace.stores")


def sink_kinds() -> dict[str, Callable[..., Sink]]:
    """`{"duckdb": sinks.DuckDB, …}`; other packages register theirs in the entry point group `headrace.sinks`."""
    return _kinds(sinks, Sink, "headrace.sinks")


def store_at(address: str, options: Mapping[str, str] | None = None) -> OffsetStore:
    """The store of a command-line argument: `sqlite:offsets.db`, `postgresql://…`, `redis://…`, `kafka:host:9092`,
    `zookeeper:host:2181`, `cassandra:host:9042/keyspace`. `options` are Kafka settings, for offsets in Kafka."""
    kinds = store_kinds()
    scheme, colon, rest = address.partition(":")
    name = {"postgresql": "postgres", "rediss": "redis", "unix": "redis"}.get(scheme, scheme).lower()
    if not colon or not rest or name not in kinds:
        raise ConfigError(
            f"{scheme!r} is not a store; stores are: {', '.join(sorted(kinds))}",
            hint=did_you_mean(scheme, kinds) or "--store sqlite:offsets.db",
        )
    if rest.startswith("//"):
        return kinds[name](address)
    if name == "cassandra":
        hosts, slash, keyspace = rest.rpartition("/")
        if not slash:
            raise ConfigError(f"{address}: a keyspace is needed", hint="--store cassandra:127.0.0.1:9042/app")
        return kinds[name](hosts, keyspace=keyspace)
    return kinds[name](rest, options=options) if name == "kafka" and options else kinds[name](rest)


def _kinds(module: Any, kind: type[Any], group: str) -> dict[str, Callable[..., Any]]:
    exported = (getattr(module, name) for name in module.__all__)
    found: dict[str, Callable[..., Any]] = {
        cls.__name__.lower(): cls
        for cls in exported
        if isinstance(cls, type) and issubclass(cls, kind) and not inspect.isabstract(cls)
    }
    for point in entry_points(group=group):
        found.setdefault(point.name.lower(), point.load())
    return found

"""Offset stores for pipelines, and the base classes of custom stores. Each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.connectors.cassandra.offset_store import Cassandra
    from headrace.connectors.duckdb.offset_store import DuckDB
    from headrace.connectors.hbase.offset_store import HBase
    from headrace.connectors.kafka.offset_store import Kafka
    from headrace.connectors.memory.offset_store import Memory
    from headrace.connectors.postgres.offset_store import Postgres
    from headrace.connectors.redis.offset_store import Redis
    from headrace.connectors.sqlite.offset_store import SQLite
    from headrace.connectors.zookeeper.offset_store import ZooKeeper
    from headrace.core.offset_store import DocumentStore, OffsetStore
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Cassandra": "headrace.connectors.cassandra.offset_store",
            "DocumentStore": "headrace.core.offset_store",
            "DuckDB": "headrace.connectors.duckdb.offset_store",
            "HBase": "headrace.connectors.hbase.offset_store",
            "Kafka": "headrace.connectors.kafka.offset_store",
            "Memory": "headrace.connectors.memory.offset_store",
            "OffsetStore": "headrace.core.offset_store",
            "Postgres": "headrace.connectors.postgres.offset_store",
            "Redis": "headrace.connectors.redis.offset_store",
            "SQLite": "headrace.connectors.sqlite.offset_store",
            "ZooKeeper": "headrace.connectors.zookeeper.offset_store",
        },
    )

__all__ = [
    "Cassandra",
    "DocumentStore",
    "DuckDB",
    "HBase",
    "Kafka",
    "Memory",
    "OffsetStore",
    "Postgres",
    "Redis",
    "SQLite",
    "ZooKeeper",
]

"""Where offsets are kept. One system per file."""

from headrace.stores.base import DocumentStore, OffsetStore
from headrace.stores.cassandra import Cassandra
from headrace.stores.duckdb import DuckDB
from headrace.stores.hbase import HBase
from headrace.stores.kafka import Kafka
from headrace.stores.memory import Memory
from headrace.stores.postgres import Postgres
from headrace.stores.redis import Redis
from headrace.stores.sqlite import SQLite
from headrace.stores.zookeeper import ZooKeeper

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

"""Where offsets are kept. One system per file."""

from headrace.stores.base import DocumentStore, OffsetStore
from headrace.stores.cassandra import Cassandra
from headrace.stores.duckdb import DuckDB
from headrace.stores.memory import Memory
from headrace.stores.postgres import Postgres
from headrace.stores.redis import Redis
from headrace.stores.sqlite import SQLite

__all__ = ["Cassandra", "DocumentStore", "DuckDB", "Memory", "OffsetStore", "Postgres", "Redis", "SQLite"]

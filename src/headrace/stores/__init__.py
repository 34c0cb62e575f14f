"""Where offsets are kept. One system per file."""

from headrace.stores.base import DocumentStore, OffsetStore
from headrace.stores.duckdb import DuckDB
from headrace.stores.memory import Memory
from headrace.stores.sqlite import SQLite

__all__ = ["DocumentStore", "DuckDB", "Memory", "OffsetStore", "SQLite"]

"""Where rows go. One system per file; the guarantee a sink can give is its type."""

from headrace.sinks.base import IdempotentSink, LetterKeeper, QuarantiningSink, Sink, TransactionalSink
from headrace.sinks.console import Console
from headrace.sinks.delta import Delta
from headrace.sinks.duckdb import DuckDB
from headrace.sinks.fanout import Fanout
from headrace.sinks.hive import Hive
from headrace.sinks.iceberg import Iceberg
from headrace.sinks.jdbc import Jdbc
from headrace.sinks.memory import Memory
from headrace.sinks.parquet import Parquet
from headrace.sinks.postgres import Postgres
from headrace.sinks.sqlite import SQLite

__all__ = [
    "Console",
    "Delta",
    "DuckDB",
    "Fanout",
    "Hive",
    "Iceberg",
    "IdempotentSink",
    "Jdbc",
    "LetterKeeper",
    "Memory",
    "Parquet",
    "Postgres",
    "QuarantiningSink",
    "SQLite",
    "Sink",
    "TransactionalSink",
]

"""Where rows go. One system per file; the guarantee a sink can give is its type."""

from headrace.sinks.base import IdempotentSink, Sink, TransactionalSink
from headrace.sinks.console import Console
from headrace.sinks.duckdb import DuckDB
from headrace.sinks.memory import Memory
from headrace.sinks.parquet import Parquet

__all__ = ["Console", "DuckDB", "IdempotentSink", "Memory", "Parquet", "Sink", "TransactionalSink"]

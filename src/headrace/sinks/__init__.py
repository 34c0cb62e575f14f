"""Where rows go. One system per file; the guarantee a sink can give is its type."""

from headrace.sinks.base import IdempotentSink, LetterKeeper, QuarantiningSink, Sink, TransactionalSink
from headrace.sinks.cassandra import Cassandra
from headrace.sinks.console import Console
from headrace.sinks.delta import Delta
from headrace.sinks.duckdb import DuckDB
from headrace.sinks.dynamodb import DynamoDB
from headrace.sinks.fanout import Fanout
from headrace.sinks.foreach import Foreach
from headrace.sinks.hbase import HBase
from headrace.sinks.hive import Hive
from headrace.sinks.iceberg import Iceberg
from headrace.sinks.jdbc import Jdbc
from headrace.sinks.kafka import Kafka
from headrace.sinks.memory import Memory
from headrace.sinks.mongo import Mongo
from headrace.sinks.parquet import Parquet
from headrace.sinks.postgres import Postgres
from headrace.sinks.redis import Redis
from headrace.sinks.sqlite import SQLite

__all__ = [
    "Cassandra",
    "Console",
    "Delta",
    "DuckDB",
    "DynamoDB",
    "Fanout",
    "Foreach",
    "HBase",
    "Hive",
    "Iceberg",
    "IdempotentSink",
    "Jdbc",
    "Kafka",
    "LetterKeeper",
    "Memory",
    "Mongo",
    "Parquet",
    "Postgres",
    "QuarantiningSink",
    "Redis",
    "SQLite",
    "Sink",
    "TransactionalSink",
]

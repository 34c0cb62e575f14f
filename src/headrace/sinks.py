"""Sinks for pipelines, and the base classes of custom sinks. Each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.connectors.cassandra.sink import Cassandra
    from headrace.connectors.console import Console
    from headrace.connectors.delta.sink import Delta
    from headrace.connectors.duckdb.sink import DuckDB
    from headrace.connectors.dynamodb.sink import DynamoDB
    from headrace.connectors.fanout import Fanout
    from headrace.connectors.foreach.sink import Foreach
    from headrace.connectors.hbase.sink import HBase
    from headrace.connectors.hive.sink import Hive
    from headrace.connectors.iceberg.sink import Iceberg
    from headrace.connectors.jdbc.sink import Jdbc
    from headrace.connectors.kafka.sink import Kafka
    from headrace.connectors.memory.sink import Memory
    from headrace.connectors.mongo.sink import Mongo
    from headrace.connectors.parquet.sink import Parquet
    from headrace.connectors.postgres.sink import Postgres
    from headrace.connectors.redis.sink import Redis
    from headrace.connectors.shared.keyed_sink import KeyedSink
    from headrace.connectors.sqlite.sink import SQLite
    from headrace.core.sink import (
        DeadLetterTableSink,
        IdempotentSink,
        RowRejectingSink,
        Sink,
        TransactionalSink,
        without_metadata,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Cassandra": "headrace.connectors.cassandra.sink",
            "Console": "headrace.connectors.console",
            "DeadLetterTableSink": "headrace.core.sink",
            "Delta": "headrace.connectors.delta.sink",
            "DuckDB": "headrace.connectors.duckdb.sink",
            "DynamoDB": "headrace.connectors.dynamodb.sink",
            "Fanout": "headrace.connectors.fanout",
            "Foreach": "headrace.connectors.foreach.sink",
            "HBase": "headrace.connectors.hbase.sink",
            "Hive": "headrace.connectors.hive.sink",
            "Iceberg": "headrace.connectors.iceberg.sink",
            "IdempotentSink": "headrace.core.sink",
            "Jdbc": "headrace.connectors.jdbc.sink",
            "Kafka": "headrace.connectors.kafka.sink",
            "KeyedSink": "headrace.connectors.shared.keyed_sink",
            "Memory": "headrace.connectors.memory.sink",
            "Mongo": "headrace.connectors.mongo.sink",
            "Parquet": "headrace.connectors.parquet.sink",
            "Postgres": "headrace.connectors.postgres.sink",
            "Redis": "headrace.connectors.redis.sink",
            "RowRejectingSink": "headrace.core.sink",
            "SQLite": "headrace.connectors.sqlite.sink",
            "Sink": "headrace.core.sink",
            "TransactionalSink": "headrace.core.sink",
            "without_metadata": "headrace.core.sink",
        },
    )

__all__ = [
    "Cassandra",
    "Console",
    "DeadLetterTableSink",
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
    "KeyedSink",
    "Memory",
    "Mongo",
    "Parquet",
    "Postgres",
    "Redis",
    "RowRejectingSink",
    "SQLite",
    "Sink",
    "TransactionalSink",
    "without_metadata",
]

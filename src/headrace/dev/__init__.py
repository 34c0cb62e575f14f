"""Real servers for development on this machine, one module each."""

from headrace.dev.cassandra import Cassandra
from headrace.dev.dynamodb import DynamoDB
from headrace.dev.hbase import HBase
from headrace.dev.kafka import Kafka
from headrace.dev.mongo import Mongo
from headrace.dev.postgres import Postgres
from headrace.dev.redis import Redis
from headrace.dev.schema_registry import SchemaRegistry
from headrace.dev.secure_kafka import SecureKafka
from headrace.dev.spark import Spark
from headrace.dev.zookeeper import ZooKeeper

__all__ = [
    "Cassandra",
    "DynamoDB",
    "HBase",
    "Kafka",
    "Mongo",
    "Postgres",
    "Redis",
    "SchemaRegistry",
    "SecureKafka",
    "Spark",
    "ZooKeeper",
]

"""Real servers on this machine, one per file."""

from headrace.dev.cassandra import Cassandra
from headrace.dev.hbase import HBase
from headrace.dev.kafka import Kafka
from headrace.dev.postgres import Postgres
from headrace.dev.redis import Redis
from headrace.dev.zookeeper import ZooKeeper

__all__ = ["Cassandra", "HBase", "Kafka", "Postgres", "Redis", "ZooKeeper"]

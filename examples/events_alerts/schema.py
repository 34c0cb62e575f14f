"""Make the keyspace and its two tables: python examples/events_alerts/schema.py"""

import os

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy

STATEMENTS = [
    """CREATE KEYSPACE IF NOT EXISTS exactlyonce
    WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}""",
    """CREATE TABLE IF NOT EXISTS exactlyonce.events (
    id bigint, ts timestamp, partition int, offset bigint, source text, client text, health int,
    PRIMARY KEY (partition, offset)) WITH CLUSTERING ORDER BY (offset DESC)""",
    """CREATE TABLE IF NOT EXISTS exactlyonce.alerts (
    ts timestamp, source text, event_count int, PRIMARY KEY (source, ts))""",
]

host, port = os.environ.get("CASSANDRA_HOSTS", "localhost:9042").split(",")[0].split(":")
profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())}
with Cluster([host], port=int(port), protocol_version=4, execution_profiles=profiles) as cluster:
    session = cluster.connect()
    for statement in STATEMENTS:
        session.execute(statement)

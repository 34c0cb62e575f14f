"""The names of fixtures that start a server or a JVM."""

SERVERS = frozenset(
    {"cassandra", "dynamodb", "hbase", "hdfs", "kafka", "mongo", "postgres", "redis", "schema_registry", "spark"}
    | {"zookeeper"}
)

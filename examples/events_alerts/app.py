"""Events as they came, and alerts counted from them, in Cassandra: headrace run examples/events_alerts/app.py:events"""

import os

from pyspark.sql import functions as sql

import headrace as hr
from headrace import sinks, stores

HOSTS = os.environ.get("CASSANDRA_HOSTS", "localhost:9042")
TOPIC = "exactlyonce.events"
UNWELL = 20

source = hr.Kafka(
    os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    topics=[TOPIC],
    format=hr.Json("id BIGINT, ts TIMESTAMP, source STRING, client STRING, health INT"),
)


def counted(rows):
    """Of each source and minute in the batch: how many events told that it is unwell, at the time of the last one."""
    return (
        rows.where(sql.col("health") < UNWELL)
        .groupBy("source", sql.date_trunc("minute", "ts"))
        .agg(sql.max("ts").alias("ts"), sql.count("*").cast("int").alias("event_count"))
        .select("source", "ts", "event_count")
    )


events = hr.Pipeline(
    name="events",
    source=source,
    sink=sinks.Cassandra(HOSTS, "exactlyonce.events", key=("partition", "offset")),
    offsets=stores.Cassandra.from_table(HOSTS, table="exactlyonce.events", topic=TOPIC),
    guarantee="exactly-once",
)

alerts = hr.Pipeline(
    name="alerts",
    source=source,
    transform=counted,
    sink=sinks.Cassandra(HOSTS, "exactlyonce.alerts", key=("source", "ts")),
    offsets=stores.Cassandra(HOSTS, keyspace="exactlyonce"),
    guarantee="exactly-once",
)

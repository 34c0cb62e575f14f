"""Clicks from Kafka into a SQLite table, exactly once: headrace run examples/clicks.py:clicks"""

import os

import headrace as hr
from headrace import sinks

clicks = hr.Pipeline(
    name="clicks",
    source=hr.Kafka(
        os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
        topics=["clicks"],
        format=hr.Json("user STRING, page STRING, at TIMESTAMP"),
    ),
    transform=lambda rows: rows.where("page IS NOT NULL"),
    sink=sinks.SQLite("clicks.db", table="clicks"),
    guarantee="exactly-once",
)

if __name__ == "__main__":
    clicks.run()

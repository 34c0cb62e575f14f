"""Trades far from what is usual, as they happen: headrace run examples/anomalies/app.py"""

import os
from pathlib import Path

from pyspark.sql import functions as sql

import headrace as hr
from headrace import sinks

MODEL = Path(os.environ.get("ANOMALIES_MODEL", "model.json"))


def unusual(rows):
    """Called once per batch: a model that was made anew counts from the next one on."""
    model = rows.sparkSession.read.schema("ticker STRING, usual DOUBLE").json(str(MODEL))
    return rows.join(sql.broadcast(model), "ticker").where("abs(ask_price - usual) > 0.2 * usual")


anomalies = hr.Pipeline(
    name="anomalies",
    source=hr.Kafka(
        os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
        topics=["trades"],
        format=hr.Json("ticker STRING, ask_price DOUBLE, ask_size INT"),
        # An alarm about yesterday is none: start at what comes now, and never lag.
        start="latest",
        resume=False,
        max_lag="5m",
    ),
    transform=unusual,
    sink=sinks.Console(),
    guarantee="at-most-once",
    limits=hr.Limits(batch_seconds=1),
)

if __name__ == "__main__":
    anomalies.run()

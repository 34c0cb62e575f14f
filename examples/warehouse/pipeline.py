"""Clicks with the section and author of their article, by day: headrace run examples/warehouse/pipeline.py"""

import os
from pathlib import Path

from pyspark.sql import functions as sql

import headrace as hr
from headrace import sinks

ARTICLES = Path(__file__).with_name("articles.csv")
COLUMNS = "page STRING, section STRING, author STRING"


def enriched(rows):
    """Called once per batch, so an edited file counts from the next batch on."""
    articles = rows.sparkSession.read.csv(str(ARTICLES), schema=COLUMNS, header=True)
    return rows.join(sql.broadcast(articles), "page", "left").selectExpr(
        "user", "page", "coalesce(section, 'unknown') AS section", "author", "at", "to_date(at) AS day"
    )


warehouse = hr.Pipeline(
    name="warehouse",
    source=hr.Kafka(
        os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
        topics=["clicks"],
        format=hr.Json("user STRING, page STRING, at TIMESTAMP"),
    ),
    transform=enriched,
    expect={"user IS NOT NULL": 0.99, "day IS NOT NULL": 1},
    sink=sinks.Parquet("clicks", partition_by="day"),
    guarantee="exactly-once",
)

if __name__ == "__main__":
    warehouse.run()

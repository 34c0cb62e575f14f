"""What is usual for each ticker, from the trades there are: python examples/anomalies/model.py

Run it now and then: the pipeline reads the file again with every batch.
"""

import json
import os
from pathlib import Path

import headrace as hr
from headrace import stores

MODEL = Path(os.environ.get("ANOMALIES_MODEL", "model.json"))

source = hr.Kafka(
    os.environ.get("KAFKA_BOOTSTRAP", "localhost:9092"),
    topics=["trades"],
    format=hr.Json("ticker STRING, ask_price DOUBLE"),
)

if __name__ == "__main__":
    # A loop in hand whose offsets are forgotten: all trades, once.
    usual = {}
    for batch in hr.stream(source, offsets=stores.Memory(), until="caught-up"):
        # A trade may lack its price, and then tells nothing about what is usual.
        priced = batch.rows().where("ticker IS NOT NULL AND ask_price IS NOT NULL")
        found = priced.groupBy("ticker").agg({"ask_price": "avg", "*": "count"}).collect()
        for row in found:
            count, total = usual.get(row["ticker"], (0, 0.0))
            usual[row["ticker"]] = (count + row["count(1)"], total + row["avg(ask_price)"] * row["count(1)"])
        batch.commit()
    lines = [json.dumps({"ticker": ticker, "usual": total / count}) + "\n" for ticker, (count, total) in usual.items()]
    fresh = MODEL.with_suffix(".new")
    fresh.write_text("".join(lines))
    fresh.replace(MODEL)  # at once: a batch reads the old one or the new one
    print(f"{MODEL}: {len(usual)} tickers")

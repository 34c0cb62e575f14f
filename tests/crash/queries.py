"""Structured Streaming queries that the crash suites kill: plain PySpark, with `hr.exactly_once` in foreachBatch.

python queries.py --jvm: a JVM for the next command; prints its address as environment variables, ends with its input.
python queries.py QUERY-AS-JSON [POINT…]: in that JVM, up to the end of the topic; dies at the first point that is not
among those given.
python queries.py --own-jvm QUERY-AS-JSON: in a session of its own, until it is killed; it prints each point.
"""

import hashlib
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import headrace as hr
from crash import documents, effects, tables, wide_columns
from crash.pipelines import KINDS, SERVERS, ClaimsToBeIdempotent
from headrace import sinks
from headrace.spark import session
from headrace.support import crashpoints
from headrace.testing.shared_jvm import attached_session, gateway_environment

EVERY = "every point"
SMALL = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
WINDOW = 10
SLOTS = 8


def _postgres(directory, **how):
    return sinks.Postgres(os.environ[SERVERS["postgres"]], _table(directory), create=True, **how)


def _kafka(directory, **how):
    return sinks.Kafka(os.environ[SERVERS["kafka"]], _table(directory), create={"partitions": 3}, **how)


def _table(directory):
    return "t_" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


UPSERT = {"key": "id", "mode": "upsert"}
BY_ID = {"key": "id"}
SINKS = {
    "postgres": (_postgres, {}, UPSERT),
    "sqlite": (lambda d, **how: sinks.SQLite(d / "rows.db", table="rows", **how), {}, UPSERT),
    "duckdb": (lambda d, **how: sinks.DuckDB(d / "rows.duckdb", table="rows", **how), {}, UPSERT),
    "kafka": (_kafka, {}, BY_ID),
    "cassandra": (wide_columns.cassandra, BY_ID, BY_ID),
    "hbase": (wide_columns.hbase, BY_ID, BY_ID),
    "mongo": (documents.mongo, BY_ID, BY_ID),
    "dynamodb": (documents.dynamodb, BY_ID, BY_ID),
    "redis": (effects.redis_hash, BY_ID, BY_ID),
    "delta": (tables.delta, {}, None),
    "iceberg": (tables.iceberg, {}, None),
    "parquet": (lambda d: sinks.Parquet(d / "rows"), {}, None),
}
"""The sink of a directory, its arguments in the output mode append, and those in the mode update, if it can."""

BROKEN = "a sink that claims to be idempotent"
CASES = [
    (kind, mode)
    for kind, (_, _, update) in SINKS.items()
    for mode in ("append", "windows", *(["update"] if update else []))
]


SINKS[BROKEN] = (lambda d: ClaimsToBeIdempotent(d / "rows.txt"), {}, None)


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query on one topic. `mode`: "append", "update" (values per key) or "windows" (append, with a watermark)."""

    kind: str
    mode: str
    bootstrap: str
    topic: str
    directory: str
    checkpoint: str = "checkpoint"
    per_batch: int = 40

    @property
    def servers(self):
        return [name for name in (self.kind,) if name in SERVERS]

    @property
    def output_mode(self):
        return "update" if self.mode == "update" else "append"

    def sink(self):
        make, append, update = SINKS[self.kind]
        return make(Path(self.directory), **(update if self.mode == "update" else append))

    def rows(self):
        """All rows in the sink, as (id, value)."""
        if self.kind == "redis":
            return effects.redis_hash_rows(Path(self.directory))
        kind = "appending" if self.kind == BROKEN else self.kind
        return KINDS[kind].rows(Path(self.directory))

    def command(self, *spared, own_jvm=False):
        return [sys.executable, __file__, *(["--own-jvm"] if own_jvm else []), json.dumps(asdict(self)), *spared]

    def frame(self, spark):
        from pyspark.sql import functions as F

        source = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": self.per_batch,
        }
        records = spark.readStream.format("kafka").options(**source).load()
        event = F.from_json(records.value.cast("string"), "id BIGINT, value STRING")
        events = records.select(event.alias("event")).select("event.*")
        if self.mode == "append":
            return events
        if self.mode == "update":
            grouped = events.groupBy((events.id % SLOTS).alias("slot"))
            return grouped.agg(F.count("*").alias("n"), F.max("id").alias("last")).select(
                F.col("slot").alias("id"), F.concat_ws(":", "n", "last").alias("value")
            )
        timed = events.withColumn("at", F.timestamp_seconds("id")).withWatermark("at", "0 seconds")
        counted = timed.groupBy(F.window("at", f"{WINDOW} seconds")).count()
        return counted.select(
            F.unix_timestamp("window.start").alias("id"), F.col("count").cast("string").alias("value")
        )

    def start(self, spark, **trigger):
        write = hr.exactly_once(self.sink(), name=f"on-{self.topic}")
        return (
            self.frame(spark)
            .writeStream.foreachBatch(write)
            .outputMode(self.output_mode)
            .option("checkpointLocation", f"{self.directory}/{self.checkpoint}")
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def expected(self, records):
        """The rows of the final result over these records; of windows, those that are closed."""
        ids = [number for number, _ in records]
        if self.mode == "append":
            return Counter(records)
        if self.mode == "update":
            slots = {slot: [number for number in ids if number % SLOTS == slot] for slot in range(SLOTS)}
            return Counter((slot, f"{len(found)}:{max(found)}") for slot, found in slots.items() if found)
        windows = Counter(number // WINDOW * WINDOW for number in ids)
        return Counter({(start, str(n)): 1 for start, n in windows.items() if start + WINDOW <= max(ids)})

    def stored(self):
        """The rows in the sink; of a topic with keys, the newest record of each key."""
        rows = self.rows()
        if self.kind == "kafka" and self.mode == "update":
            assert max(Counter(rows).values()) == 1, "a record was committed twice"  # a count is never sent again
            rows = [max((row for row in rows if row[0] == slot), key=_count) for slot in {slot for slot, _ in rows}]
        return Counter(rows)


def _count(row):
    return int(row[1].partition(":")[0])


def main(query, *spared):
    def hook(point):
        if point not in spared and EVERY not in spared:
            os.write(1, f"{point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    spark = attached_session()
    crashpoints.install(hook)
    Query(**json.loads(query)).start(spark).awaitTermination()


def main_with_own_jvm(query):
    """A job as a user would write it."""
    from pyspark.sql import SparkSession

    spark = hr.configure(SparkSession.builder.master("local[2]").config(map=SMALL)).getOrCreate()
    crashpoints.install(lambda point: os.write(1, f"{point}\n".encode()))
    Query(**json.loads(query)).start(spark, processingTime="0 seconds").awaitTermination()


def serve_jvm():
    """No function of this process is called from the JVM: it would call the wrong process."""
    print(json.dumps(gateway_environment(session.create(SMALL | {"spark.master": "local[2]"}))), flush=True)
    sys.stdin.read()


COMMANDS = {"--jvm": serve_jvm, "--own-jvm": main_with_own_jvm}

if __name__ == "__main__":
    try:
        if sys.argv[1] in COMMANDS:
            COMMANDS[sys.argv[1]](*sys.argv[2:])
        else:
            main(*sys.argv[1:])
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    if sys.argv[1] != "--jvm":
        os._exit(0)  # Spark belongs to another process: do not stop it

"""Rows a second of JSON records into a PostgreSQL table."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import psycopg

import headrace as hr
from benchmarks import structured, topic
from benchmarks.frame import Benchmark, Bound, Contender, Schedule, Setting
from headrace import dev, sinks
from headrace.jars.bundles import Bundle
from headrace.jars.ivy import Artifact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

DRIVER = Bundle.of("postgresql-jdbc", Artifact("org.postgresql", "postgresql", "42.7.7"))
TOPIC = "clicks-into-sql"
SCHEMA = "user STRING, page STRING, at TIMESTAMP, ms INT"
TABLE = '("user" text, page text, at timestamptz, ms integer)'


class IntoPostgres(Benchmark):
    """From the call to its return, one batch on each side, into an empty table without an index.

    Headrace gives exactly-once: rows and offsets in one transaction per partition. Structured Streaming with
    `foreachBatch` and Spark's JDBC writer gives at-least-once; its checkpoint is on the same disk.
    """

    name = "postgres"
    title = "JSON records into PostgreSQL"
    unit = "rows/s"
    bounds = (
        Bound("Spark JDBC, default, at-least-once", 1.2, "at least"),
        Bound("Spark JDBC, rewritten inserts of 10,000, at-least-once", 1.0, "at least"),
        Bound("Headrace, at-least-once", 0.95, "at least"),
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._records = 100_000 if setting.quick else 2_000_000
        topic.fill(setting.bootstrap, TOPIC, self._records)
        self._server = setting.servers.enter_context(dev.Postgres(setting.scratch / "postgres-rows"))
        self._dsn = self._server.address

    def schedule(self) -> Schedule:
        return Schedule(1, 1) if self.setting.quick else Schedule(warm_up=1, counted=3)

    def contenders(self) -> Sequence[Contender]:
        rewritten = {"reWriteBatchedInserts": "true"}
        return (
            Contender("Headrace, exactly-once", self._headrace),
            Contender("Headrace, exactly-once, visible by batch", lambda: self._headrace(visible="batch")),
            Contender("Headrace, at-least-once", lambda: self._headrace("at-least-once")),
            Contender("Spark JDBC, default, at-least-once", lambda: self._jdbc({}, {})),
            Contender(
                "Spark JDBC, rewritten inserts of 10,000, at-least-once",
                lambda: self._jdbc(rewritten, {"batchsize": "10000"}),
            ),
        )

    def _headrace(self, guarantee: Any = "exactly-once", **how: Any) -> float:
        table = self._table()
        pipeline = hr.Pipeline(
            name=f"bench-{table}",
            source=hr.Kafka(self.setting.bootstrap, topics=[TOPIC], format=hr.Json(SCHEMA)),
            sink=sinks.Postgres(self._dsn, table, **how),
            guarantee=guarantee,
            limits=hr.Limits(max_records=self._records),
        )
        began = time.perf_counter()
        pipeline.run(until="caught-up", session=self.setting.spark, fail_fast=True)
        return self._rate(table, time.perf_counter() - began)

    def _jdbc(self, driver: Mapping[str, str], writer: Mapping[str, str]) -> float:
        table, setting = self._table(), self.setting
        server = urlsplit(self._dsn)
        options = urlencode({"user": server.username, "password": server.password, **driver})
        url = f"jdbc:postgresql://{server.hostname}:{server.port}{server.path}?{options}"

        def write(rows: DataFrame, batch_id: int) -> None:
            out = rows.write.format("jdbc").option("url", url).option("driver", "org.postgresql.Driver")
            out.options(**writer).option("dbtable", table).mode("append").save()

        tuned = structured.TUNED  # reading is not what is compared
        with structured.configured(setting.spark, tuned.session):
            began = time.perf_counter()
            records = structured.records(setting, tuned, topic=TOPIC)
            parsed = records.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS row").select("row.*")
            stream = parsed.writeStream.option("checkpointLocation", structured.checkpoint(setting))
            query = stream.foreachBatch(write).trigger(availableNow=True).start()
            query.awaitTermination()
            seconds = time.perf_counter() - began
        return self._rate(table, seconds)

    def _table(self) -> str:
        name = f"clicks_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._dsn) as connection:
            connection.execute(f"CREATE TABLE {name} {TABLE}")
        return name

    def _rate(self, table: str, seconds: float) -> float:
        with psycopg.connect(self._dsn) as connection:
            ((stored,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
            connection.execute(f"DROP TABLE {table}")
        if stored != self._records:
            raise AssertionError(f"{stored} rows are in the table where the topic has {self._records}")
        return self._records / seconds

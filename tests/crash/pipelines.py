"""The pipelines that the crash suites kill: every sink, with its store, under every guarantee that it can give.

A line in KINDS adds a new sink or store to all suites. It reads addresses from the environment, and writes to a
directory that no other case uses.
"""

import hashlib
import json
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import headrace as hr
from headrace import sinks, stores
from headrace.testing.committed_records import read_committed

sys.path.append(str(Path(__file__).parents[1]))  # a run loads only this file
from crash import documents, effects, lake, tables, wide_columns

TARGET = f"{Path(__file__)}:crash"
# The environment has the addresses of the servers, as `headrace dev env` prints them.
SERVERS = {
    "cassandra": "CASSANDRA_HOSTS",
    "dynamodb": "DYNAMODB_ENDPOINT",
    "hbase": "HBASE_THRIFT",
    "hdfs": "HDFS_URL",
    "kafka": "KAFKA_BOOTSTRAP",
    "mongo": "MONGO_URL",
    "postgres": "POSTGRES_DSN",
    "redis": "REDIS_URL",
    "zookeeper": "ZOOKEEPER_HOSTS",
}
FORMAT = hr.Json("id BIGINT, value STRING")
GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")


class Appending(sinks.Sink):
    """A minimal sink: appends a line per row to a file. It stores a repeated batch twice."""

    def __init__(self, path):
        self._path = Path(path)

    def write(self, batch, rows):
        lines = "".join(f"{row['id']} {row['value']}\n" for row in rows.select("id", "value").toArrow().to_pylist())
        with self._path.open("a") as out:
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())


class ClaimsToBeIdempotent(Appending, sinks.IdempotentSink):
    """Broken on purpose: claims to be idempotent, but appends a repeated batch again."""


class WithoutJournal(stores.SQLite):
    """Broken on purpose: forgets the batch in flight, so that a run reads another range after a crash."""

    def begin(self, batch):
        """Journal nothing."""


class MovesEarly(stores.SQLite):
    """Broken on purpose: the offsets move before the rows are written."""

    def begin(self, batch):
        super().commit(batch)

    def commit(self, batch):
        if not any(len(r) for r in batch.ranges):
            super().commit(batch)


def _duckdb_rows(directory):
    import duckdb

    file = directory / "rows.duckdb"
    if not file.exists():
        return []
    with duckdb.connect(str(file), read_only=True) as connection:
        (tables,) = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'rows'").fetchone()
        return connection.execute("SELECT id, value FROM rows").fetchall() if tables else []


def _parquet_rows(directory):
    import duckdb

    files = [str(file) for file in (directory / "rows").glob("headrace_batch=*/*.parquet")]
    return duckdb.sql(f"SELECT id, value FROM read_parquet({files})").fetchall() if files else []


def _appended_rows(directory):
    file = directory / "rows.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(number), value) for number, value in (line.split() for line in lines)]


def _address(server):
    return os.environ[SERVERS[server]]


def _table(directory):
    return "t_" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def _postgres_rows(directory):
    import psycopg

    with psycopg.connect(_address("postgres")) as connection:
        ((there,),) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [_table(directory)]).fetchall()
        return connection.execute(f"SELECT id, value FROM {_table(directory)}").fetchall() if there else []


def _sqlite_rows(directory):
    file = directory / "rows.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(file)) as connection:
        there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchall()
        return connection.execute("SELECT id, value FROM rows").fetchall() if there else []


def _fanout_rows(directory):
    """The rows of all three sinks: one missing in any of them is missing, a duplicate in any of them is a duplicate."""
    found = [Counter(rows(directory)) for rows in (_postgres_rows, _parquet_rows, _sqlite_rows)]
    everywhere = set.intersection(*(set(counts) for counts in found))
    return [row for row in everywhere for _ in range(max(counts[row] for counts in found))]


def _kafka_rows(directory):
    """The records that a read_committed client reads; those of an open transaction would be missing."""
    from confluent_kafka.admin import AdminClient

    there = AdminClient({"bootstrap.servers": _address("kafka"), "log_level": 0}).list_topics(timeout=30).topics
    if _table(directory) not in there:
        return []
    rows = [json.loads(record.value()) for record in read_committed(_address("kafka"), _table(directory))]
    return [(row["id"], row["value"]) for row in rows]


def _unchanged(rows):
    return rows


def _one_source(bootstrap, topic):
    return hr.Kafka(bootstrap, topics=[topic], format=FORMAT)


def _two_sources(bootstrap, topic):
    """Two sources with one partition of the topic each, as if they were topics of two clusters."""
    return {
        name: hr.Kafka(bootstrap, partitions={topic: [number]}, format=FORMAT, cluster=name)
        for number, name in enumerate(("east", "west"))
    }


def _sqlite(directory):
    return stores.SQLite(directory / "offsets.db")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A sink, its offset store (None: the sink has its own), and a function that reads all rows in the sink.

    `random_kills` is the number of process group kills by the short suite under exactly-once, which take seconds each.
    `plain` sinks store a repeated batch twice. `servers` must be up, each with its address in the environment under
    the name in SERVERS. `partitions` is the number of partitions in the long suite.
    """

    sink: Callable[[Path], sinks.Sink]
    offsets: Callable[[Path], stores.OffsetStore] | None
    rows: Callable[[Path], list[tuple[int, str]]]
    random_kills: int = 3
    servers: tuple[str, ...] = ()
    plain: bool = False
    dead_letters: hr.DeadLetters | None = None
    transform: Callable = _unchanged
    source: Callable = _one_source
    partitions: int = 3

    @property
    def transactional(self):
        return self.offsets is None

    @property
    def repeatable(self):
        """Whether it has a batch once that was written twice."""
        return not self.plain


KINDS = {
    "duckdb": Kind(
        sink=lambda directory: sinks.DuckDB(directory / "rows.duckdb", table="rows"),
        offsets=None,
        rows=_duckdb_rows,
        random_kills=4,
    ),
    "parquet": Kind(sink=lambda directory: sinks.Parquet(directory / "rows"), offsets=_sqlite, rows=_parquet_rows),
    "postgres": Kind(
        sink=lambda directory: sinks.Postgres(_address("postgres"), _table(directory), create=True),
        offsets=None,
        rows=_postgres_rows,
        servers=("postgres",),
    ),
    "postgres by batch": Kind(
        sink=lambda directory: sinks.Postgres(_address("postgres"), _table(directory), create=True, visible="batch"),
        offsets=None,
        rows=_postgres_rows,
        random_kills=1,
        servers=("postgres",),
    ),
    "sqlite": Kind(
        sink=lambda directory: sinks.SQLite(directory / "rows.db", table="rows"),
        offsets=None,
        rows=_sqlite_rows,
        random_kills=1,
    ),
    "kafka": Kind(
        sink=lambda directory: sinks.Kafka(_address("kafka"), _table(directory), create={"partitions": 3}),
        offsets=None,
        rows=_kafka_rows,
        random_kills=2,
        servers=("kafka",),
    ),
    "kafka by batch": Kind(
        sink=lambda directory: sinks.Kafka(_address("kafka"), _table(directory), create={"partitions": 3}),
        offsets=None,
        rows=_kafka_rows,
        random_kills=1,
        servers=("kafka",),
        transform=lambda rows: rows.repartition(3),
    ),
    "parquet of two sources": Kind(
        sink=lambda directory: sinks.Parquet(directory / "rows"),
        offsets=_sqlite,
        rows=_parquet_rows,
        random_kills=1,
        source=_two_sources,
        partitions=2,  # one for each source
        transform=lambda rows: rows["east"].union(rows["west"]),
    ),
    "fanout": Kind(
        sink=lambda directory: sinks.Fanout(
            [
                sinks.Postgres(_address("postgres"), _table(directory), create=True),
                sinks.Parquet(directory / "rows"),
                sinks.SQLite(directory / "rows.db", table="rows"),
            ]
        ),
        offsets=_sqlite,
        rows=_fanout_rows,
        random_kills=1,
        servers=("postgres",),
    ),
    "appending": Kind(
        sink=lambda directory: Appending(directory / "rows.txt"), offsets=_sqlite, rows=_appended_rows, plain=True
    ),
}

# Stores on servers, each with a pipeline that writes Parquet.
STORES = {
    "cassandra": lambda place: stores.Cassandra(place, keyspace="crash", create=True),
    "hbase": stores.HBase,
    "kafka": stores.Kafka,
    "postgres": stores.Postgres,
    "redis": stores.Redis,
    "zookeeper": stores.ZooKeeper,
}


def _on(name, make):
    return replace(KINDS["parquet"], offsets=lambda directory: make(_address(name)), servers=(name,))


ON_SERVERS = {f"parquet, offsets in {name}": _on(name, make) for name, make in STORES.items()}
ON_SERVERS["parquet, offsets in duckdb"] = replace(
    KINDS["parquet"], offsets=lambda directory: stores.DuckDB(directory / "offsets.duckdb")
)

WITH_LETTERS = {
    f"{name} with dead letters": replace(KINDS[name], dead_letters=hr.DeadLetters(table="dead_letters"))
    for name in ("postgres", "sqlite", "duckdb")
}
# Records that can be decoded, but on which the transform fails.
_REFUSED = "if(startswith(value, 'poison'), raise_error('the transform cannot take this'), value) AS value"
POISON = "sqlite with a transform that fails"
WITH_LETTERS[POISON] = replace(
    WITH_LETTERS["sqlite with dead letters"], transform=lambda rows: rows.selectExpr("id", _REFUSED, "_kafka")
)

BROKEN = {
    "a sink that claims to be idempotent": replace(
        KINDS["appending"], sink=lambda directory: ClaimsToBeIdempotent(directory / "rows.txt")
    ),
    "a store without a journal": replace(
        KINDS["parquet"], offsets=lambda directory: WithoutJournal(directory / "offsets.db")
    ),
    "a store that moves offsets early": replace(
        KINDS["parquet"], offsets=lambda directory: MovesEarly(directory / "offsets.db")
    ),
}

# Separate processes cannot share the metastore of the suite, which is in one JVM.
KINDS |= {
    name: Kind(sink=sink, offsets=_sqlite, rows=rows, random_kills=0) for name, (sink, rows) in lake.KINDS.items()
}
KINDS["parquet on hdfs"] = Kind(
    sink=lake.on_hdfs, offsets=_sqlite, rows=lake.rows_on_hdfs, random_kills=1, servers=("hdfs",)
)
KINDS |= {
    name: Kind(sink=sink, offsets=_sqlite, rows=rows, random_kills=1) for name, (sink, rows) in tables.TABLES.items()
}
# The zombie tests run these as separate processes, and the long suite kills them at random.
KINDS |= {
    name: Kind(sink=sink, offsets=offsets, rows=rows, random_kills=0, servers=(name,))
    for name, (sink, offsets, rows) in wide_columns.KINDS.items()
}
KINDS |= {
    name: Kind(sink=sink, offsets=_sqlite, rows=rows, random_kills=0, servers=("redis",))
    for name, (sink, rows) in effects.EXACT.items()
}
MARKED = {
    name: Kind(sink=sink, offsets=_sqlite, rows=rows, random_kills=0, servers=("redis",))
    for name, (sink, rows) in effects.MARKED.items()
}
KINDS |= {
    name: Kind(sink=sink, offsets=_sqlite, rows=rows, random_kills=0, servers=(name,))
    for name, (sink, rows) in documents.KINDS.items()
}
# Only as separate processes: a run that is killed in a shared JVM leaves its transaction open there.
OWN_JVM = {
    name: Kind(sink=sink, offsets=_sqlite, rows=rows, random_kills=2)
    for name, (sink, rows) in tables.TABLES_WITH_OWN_JVM.items()
}
# A row takes a millisecond, so that a transaction lasts long enough to interrupt it.
_SLEEP = "substring(concat(value, reflect('java.lang.Thread', 'sleep', 1L)), 1, 12) AS value"
SLOWLY = {"kafka, slowly": replace(KINDS["kafka"], transform=lambda rows: rows.selectExpr("id", _SLEEP, "_kafka"))}

# One value for each of eight keys, each key in one partition; slowly, so that a run is met while it writes.
_SLOT = ("id", _SLEEP, "id % 8 AS slot", "_kafka")


def _upserting(name, sink):
    return replace(
        KINDS[name],
        sink=lambda directory: sink(directory, key="slot"),
        transform=lambda rows: rows.selectExpr(*_SLOT),
    )


UPSERTING = {
    f"{name}, upserting": _upserting(name, sink)
    for name, sink in {
        "cassandra": wide_columns.cassandra,
        "dynamodb": documents.dynamodb,
        "hbase": wide_columns.hbase,
        "mongo": documents.mongo,
        "redis": effects.redis_hash,
    }.items()
}
UPSERTING["mongo, updating fields"] = _upserting("mongo", partial(documents.mongo, update="fields"))

ALL = OWN_JVM | SLOWLY | UPSERTING | KINDS | MARKED | ON_SERVERS | WITH_LETTERS | BROKEN

# The runner implements the weaker guarantees for all sinks, so one sink of each type is enough.
CASES = [
    (name, guarantee)
    for name, kind in KINDS.items()
    for guarantee in GUARANTEES
    if (kind.repeatable if guarantee == "exactly-once" else name in {"duckdb", "parquet", "appending"})
]
CASES += [(name, "at-least-once") for name in MARKED]
STORE_CASES = [(name, "exactly-once") for name in ON_SERVERS]

# Also killed as separate processes, at random times.
AT_RANDOM = [name for name, guarantee in CASES if guarantee == "exactly-once" and KINDS[name].random_kills]
AT_RANDOM += OWN_JVM


def record(number):
    """The record with this number. Its content follows from the number, so that a corrupted row is detected."""
    return {"id": number, "value": hashlib.sha256(str(number).encode()).hexdigest()[:12]}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline on one topic, in one directory."""

    kind: str
    guarantee: str
    bootstrap: str
    topic: str
    directory: str
    max_records: int = 1_000_000

    def __str__(self):
        return f"{self.kind}, {self.guarantee}"

    @property
    def name(self):
        """A unique name, because many cases may share a store."""
        return f"on-{self.topic}"

    @property
    def parts(self):
        return ALL[self.kind]

    @property
    def environment(self):
        """The environment variables of the process that runs it."""
        return {"CRASH": json.dumps(asdict(self))}

    @property
    def may_miss(self):
        return self.guarantee == "at-most-once" and not self.parts.transactional

    @property
    def may_repeat(self):
        return self.guarantee == "at-least-once" and not self.parts.repeatable

    def limited(self, max_records):
        return replace(self, max_records=max_records)

    def pipeline(self):
        directory = Path(self.directory)
        return hr.Pipeline(
            name=self.name,
            source=self.parts.source(self.bootstrap, self.topic),
            sink=self.parts.sink(directory),
            guarantee=self.guarantee,
            offsets=self.parts.offsets(directory) if self.parts.offsets else None,
            limits=hr.Limits(max_records=self.max_records),
            dead_letters=self.parts.dead_letters,
            transform=self.parts.transform,
        )

    def stored(self):
        """All rows in the sink, including duplicates. No run may be active."""
        return self.parts.rows(Path(self.directory))

    def progress(self):
        """The progress in the store."""
        with self.pipeline().store.open(self.name) as store:
            return store.load()


if "CRASH" in os.environ:
    crash = Case(**json.loads(os.environ["CRASH"])).pipeline()

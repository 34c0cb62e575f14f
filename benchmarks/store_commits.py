"""What a batch costs in each offset store: journal and commit, for 1, 100 and 1,000 partitions."""

from __future__ import annotations

import statistics
import time
import uuid
from typing import TYPE_CHECKING

from benchmarks import topic
from benchmarks.frame import Benchmark, Contender, Schedule
from headrace import dev, stores
from headrace.types import Batch, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.stores import OffsetStore

WIDE = "wide"
SIZES = (1, 100, 1000)


class StoreCommits(Benchmark):
    """No bound: the systems differ. SQLite on 1 partition, the default, is what the others are compared with."""

    name = "stores"
    title = "begin + commit of one batch"
    unit = "ms"
    digits = 2

    def schedule(self) -> Schedule:
        return Schedule(warm_up=0 if self.setting.quick else 1, counted=1 if self.setting.quick else 3)

    def contenders(self) -> Sequence[Contender]:
        topic.create(self.setting.bootstrap, WIDE, max(SIZES))
        return [
            Contender(f"{name}, {size:,} partition{'s' if size > 1 else ''}", self._timed(make, size))
            for name, make in self._stores().items()
            for size in SIZES
        ]

    def _stores(self) -> dict[str, Callable[[], OffsetStore]]:
        scratch, start = self.setting.scratch, self.setting.servers.enter_context
        postgres = start(dev.Postgres(scratch / "postgres"))
        redis = start(dev.Redis(scratch / "redis"))
        zookeeper = start(dev.ZooKeeper(scratch / "zookeeper"))
        cassandra = start(dev.Cassandra(scratch / "cassandra"))
        return {
            "SQLite": lambda: stores.SQLite(scratch / "offsets.db"),
            "DuckDB": lambda: stores.DuckDB(scratch / "offsets.duckdb"),
            "Postgres": lambda: stores.Postgres(postgres.address),
            "Redis": lambda: stores.Redis(redis.address),
            "ZooKeeper": lambda: stores.ZooKeeper(zookeeper.address),
            "Cassandra": lambda: stores.Cassandra(cassandra.address, keyspace="headrace_bench", create=True),
            "Kafka": lambda: stores.Kafka(self.setting.bootstrap),
        }

    def _timed(self, make: Callable[[], OffsetStore], size: int) -> Callable[[], float]:
        batches = 5 if self.setting.quick else 20

        def run() -> float:
            """The median batch of a fresh pipeline; its first one, which creates the rows, does not count."""
            took = []
            with make().open(f"bench-{uuid.uuid4().hex[:8]}") as store:
                for number in range(batches + 1):
                    ranges = tuple(Range(TopicPartition(WIDE, at), number, number + 1) for at in range(size))
                    batch = Batch(number + 1, ranges, {WIDE: "id"})
                    began = time.perf_counter()
                    store.begin(batch)
                    store.commit(batch)
                    took.append(1e3 * (time.perf_counter() - began))
            return statistics.median(took[1:])

        return run

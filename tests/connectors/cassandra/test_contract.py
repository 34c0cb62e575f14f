"""The Cassandra sink and offset store, held to the contract suites."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from headrace import sinks, stores
from headrace.connectors.cassandra import client
from headrace.errors import ConfigError, OffsetConflict
from headrace.testing.sinks import KeyedSinkContract
from headrace.testing.stores import A, B, OffsetStoreContract, batch
from headrace.types import Progress


class TestCassandraStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, cassandra):
        self._hosts = cassandra.hosts

    def new_store(self):
        return stores.Cassandra(self._hosts, keyspace="contract", create=True)

    def test_many_runs_that_create_the_table_at_once_all_succeed(self, pipeline):
        table = f"t{uuid.uuid4().hex}"

        def opened(_):
            return stores.Cassandra(self._hosts, keyspace="contract", table=table).open(pipeline)

        self.new_store().open(pipeline).close()
        with ThreadPoolExecutor(4) as pool:
            for store in pool.map(opened, range(4)):
                store.close()


class TestCassandraStoreFromTable(OffsetStoreContract):
    """Beside an empty table it is a store as any other; beside rows it starts behind them."""

    @pytest.fixture(autouse=True)
    def server(self, cassandra):
        self._hosts = cassandra.hosts
        self._table = f"from_table.t{uuid.uuid4().hex}"
        with self.session() as session:
            session.execute(
                "CREATE KEYSPACE IF NOT EXISTS from_table"
                " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.execute(f"""CREATE TABLE {self._table} ("partition" int, "offset" bigint, source text,
                PRIMARY KEY ("partition", "offset")) WITH CLUSTERING ORDER BY ("offset" DESC)""")

    @contextmanager
    def session(self):
        cluster, session = client.connect(client.parse_hosts(self._hosts), None, None, {})
        yield session
        cluster.shutdown()

    def insert(self, *keys):
        with self.session() as session:
            for partition, offset in keys:
                session.execute(
                    f'INSERT INTO {self._table} ("partition", "offset", source) VALUES ({partition}, {offset}, \'s\')'
                )

    def new_store(self, **more):
        return stores.Cassandra.from_table(self._hosts, **{"table": self._table, "topic": "clicks", **more})

    def test_a_pipeline_without_offsets_starts_behind_the_last_row_of_each_partition(self, pipeline):
        self.insert((0, 0), (0, 1), (0, 41), (1, 5))
        progress = self.reload(pipeline)
        assert progress == Progress({A: 42, B: 6})

    def test_the_first_commit_keeps_the_partitions_it_does_not_name(self, pipeline, store):
        self.insert((0, 41), (1, 5))
        store.commit(batch(1, (A, 42, 50)))
        assert self.reload(pipeline).offsets == {A: 50, B: 6}

    def test_a_batch_that_does_not_start_behind_the_rows_is_refused(self, store):
        self.insert((0, 41))
        with pytest.raises(OffsetConflict):
            store.begin(batch(1, (A, 0, 10)))

    def test_offsets_that_are_stored_count_and_not_the_rows(self, pipeline, store):
        self.insert((0, 41))
        store.begin(batch(1, (A, 42, 50)))
        self.insert((0, 49), (1, 7))
        assert self.reload(pipeline).offsets == {A: 42}
        assert self.reload(pipeline).pending == batch(1, (A, 42, 50))

    def test_a_table_with_another_key_is_refused(self, pipeline):
        with self.session() as session:
            session.execute(f"CREATE TABLE {self._table}b (topic text, p int, o bigint, PRIMARY KEY ((topic, p), o))")
        with pytest.raises(ConfigError, match="its key begins with p, topic, o"):
            self.new_store(table=f"{self._table}b", partition_column="p", offset_column="o").open(pipeline).load()

    def test_a_table_that_is_not_there_is_refused(self, pipeline):
        with pytest.raises(ConfigError, match="it does not exist"):
            self.new_store(table="from_table.nowhere").open(pipeline).load()
        with pytest.raises(ConfigError, match="expected table= as keyspace"):
            self.new_store(table="nowhere")


@pytest.fixture(scope="module")
def cql(cassandra):
    """A session, and a keyspace."""
    from cassandra.cluster import Cluster

    stores.Cassandra(cassandra.hosts, keyspace="contract", create=True).open("keyspace").close()
    host, port = cassandra.hosts.split(":")
    with Cluster([host], port=int(port), protocol_version=4) as cluster:
        yield cluster.connect("contract")


class TestCassandra(KeyedSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, cassandra, cql):
        self._hosts, self._cql, self._table = cassandra.hosts, cql, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.Cassandra(self._hosts, f"contract.{self._table}", create=True)

    def new_upserting_sink(self):
        return sinks.Cassandra(self._hosts, f"contract.{self._table}_up", key="id", create=True)

    def stored(self):
        return [tuple(row) for row in self._cql.execute(f"SELECT id, text FROM {self._table}")]

    def upserted(self):
        return [tuple(row) for row in self._cql.execute(f"SELECT id, text FROM {self._table}_up")]

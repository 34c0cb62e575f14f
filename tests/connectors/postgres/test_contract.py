"""The PostgreSQL sink and offset store, held to the contract suites."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from headrace import sinks, stores
from headrace.connectors.postgres.client import ensure_tables
from headrace.connectors.sql import offset_tables
from headrace.connectors.sql.own_tables import OwnTable
from headrace.errors import ConfigError
from headrace.testing.sinks import TransactionalSinkContract
from headrace.testing.stores import OffsetStoreContract
from headrace.types import TopicPartition


class TestPostgres(TransactionalSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres):
        self._dsn, self._table = postgres.address, f"t_{uuid.uuid4().hex}"

    def new_sink(self):
        return sinks.Postgres(self._dsn, self._table, create=True)

    def stored(self):
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(f"SELECT id, text FROM {self._table}").fetchall()


class TestPostgresByBatch(TestPostgres):
    def new_sink(self):
        return sinks.Postgres(self._dsn, self._table, create=True, visible="batch")


class TestPostgresStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, postgres):
        self._dsn = postgres.dsn

    def new_store(self):
        return stores.Postgres(self._dsn)

    def test_many_runs_that_create_the_tables_at_once_all_succeed(self, pipeline):
        import psycopg

        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{pipeline}"')
        fresh = self._dsn.rpartition("/")[0] + f"/{pipeline}"
        with ThreadPoolExecutor(8) as pool:
            for store in pool.map(lambda _: stores.Postgres(fresh).open(pipeline), range(8)):
                store.close()

    @pytest.fixture
    def empty_database(self, pipeline):
        import psycopg

        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{pipeline}"')
        return self._dsn.rpartition("/")[0] + f"/{pipeline}"

    def test_tables_of_the_first_format_are_read_and_need_no_right_to_create(self, empty_database):
        import psycopg

        with psycopg.connect(empty_database, autocommit=True) as connection:
            for table in offset_tables.TABLES:  # as the first format has them: without a record of it
                connection.execute(table.create)
            connection.execute("INSERT INTO headrace_offsets VALUES ('clicks', 'clicks', 0, 120)")
            connection.execute("""INSERT INTO headrace_pipelines VALUES ('clicks', 7, '{"clicks": "id", "": "1"}')""")
            with stores.Postgres(empty_database).open("clicks") as store:
                progress = store.load()
            found = connection.execute("SELECT to_regclass('headrace_formats')").fetchall()
        assert (progress.offsets, progress.last_batch, progress.epoch) == ({TopicPartition("clicks", 0): 120}, 7, 1)
        assert found == [(None,)], "nothing is created where nothing is missing"

    def test_tables_of_a_newer_format_are_refused_by_runs_and_by_readers(self, empty_database):
        import psycopg

        stores.Postgres(empty_database).open("clicks").close()
        with psycopg.connect(empty_database, autocommit=True) as connection:
            connection.execute("UPDATE headrace_formats SET format = 2 WHERE table_name = 'headrace_history'")
        for kind in ("open", "open_for_reading"):
            with (
                pytest.raises(ConfigError, match="table headrace_history is stored in format 2"),
                closing(stores.Postgres(empty_database)) as store,
            ):
                getattr(store, kind)("clicks")

    def test_runs_that_upgrade_a_table_at_once_alter_it_once(self, empty_database):
        """The step fails if it is taken twice."""
        import psycopg

        with psycopg.connect(empty_database, autocommit=True) as connection:
            connection.execute("CREATE TABLE headrace_things (id INTEGER)")

        newer = OwnTable("headrace_things", "", ("ALTER TABLE headrace_things ADD size INT",))

        def upgraded(_):
            with psycopg.connect(empty_database, autocommit=True) as connection:
                ensure_tables(connection, newer)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(upgraded, range(8)))
        with psycopg.connect(empty_database, autocommit=True) as connection:
            formats = connection.execute("SELECT table_name, format FROM headrace_formats").fetchall()
            connection.execute("SELECT id, size FROM headrace_things")
        assert formats == [("headrace_things", 2)]

"""Stores whose server is killed, frozen, or not the one that was meant."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from headrace import dev, sinks, stores
from headrace.connectors.cassandra import client as cql
from headrace.connectors.redis import client as redis_client
from headrace.connectors.sql import offset_tables
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError, RetriableError
from headrace.types import Batch, Progress, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.dev.server import Server

AT = [TopicPartition("outage", number) for number in range(20)]
QUICK = 12.0
NOBODY = "127.0.0.1:1"  # no server listens there, and none answers that it does not


class Place:
    """A server of the test's own, and how to reach it."""

    def __init__(self, server: Server, new_store: Callable[[], stores.OffsetStore], kills: int) -> None:
        self.server = server
        self.new_store = new_store
        self.kills = kills


@pytest.fixture
def pipeline() -> str:
    return f"outage-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with dev.Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield Place(server, lambda: stores.Postgres(server.dsn), kills=5)


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    # They are the dev server's own settings too; here they are what is tested.
    options = {"appendonly": "yes", "appendfsync": "always"}
    with dev.Redis(tmp_path_factory.mktemp("redis"), options=options) as server:
        yield Place(server, lambda: stores.Redis(server.url), kills=10)


@pytest.fixture(scope="module")
def own_cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with dev.Cassandra(tmp_path_factory.mktemp("cassandra")) as server:
        yield Place(server, lambda: stores.Cassandra(server.hosts, keyspace="outage", create=True), kills=2)


@pytest.fixture(scope="module")
def own_hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    pytest.importorskip("happybase")
    with dev.HBase(tmp_path_factory.mktemp("hbase")) as server:
        yield Place(server, lambda: stores.HBase(server.thrift), kills=1)


@pytest.fixture(params=["postgres", "redis", "cassandra", "hbase"], scope="module")
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"own_{request.param}")
    return found


def eventually(ask: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The answer, as soon as there is one: what a runner does that backs off and repeats."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (RetriableError, ConfigError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def step(store: stores.OffsetStore, known: Progress) -> Progress:
    """Take the next step of a pipeline that knows `known`, and say what it knows then."""
    if known.pending is None:
        ranges = tuple(Range(at, known.offsets.get(at, 0), known.offsets.get(at, 0) + 10) for at in AT)
        batch = Batch(known.last_batch + 1, ranges, {"outage": "id"})
        wanted = Progress(known.offsets, batch, known.topic_ids, known.last_batch)
        attempt = store.begin
    else:
        batch, wanted, attempt = known.pending, known.advanced(known.pending), store.commit
    try:
        attempt(batch)
    except RetriableError as error:
        error.wanted = wanted
        raise
    return wanted


def until_it_fails(store: stores.OffsetStore, known: Progress, seconds: float = 30.0) -> tuple[Progress, Progress]:
    """Step until the server does not answer: what was acknowledged last, and what was asked for then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            known = step(store, known)
        except RetriableError as error:
            return known, error.wanted
    pytest.fail("no call failed while the server was down")


@pytest.mark.matrix(sample=3)
@pytest.mark.parametrize("fresh", [False, True], ids=["same handle", "new handle"])
def test_a_server_killed_between_begin_and_commit_loses_nothing(place: Place, pipeline: str, fresh: bool) -> None:
    with place.new_store().open(pipeline) as store:
        acknowledged = store.load()
        for _ in range(place.kills):
            steps = acknowledged.last_batch
            killer = threading.Timer(random.uniform(0.05, 0.5), place.server.kill)
            killer.start()
            acknowledged, wanted = until_it_fails(store, acknowledged)
            killer.join()

            began = time.monotonic()
            with pytest.raises(RetriableError):
                place.new_store().open(pipeline)
            assert time.monotonic() - began < QUICK

            place.server.start()
            if fresh:
                store.close()
                eventually(lambda: store.open(pipeline))
            found = eventually(store.load)
            assert found in (acknowledged, wanted)
            acknowledged = found
            assert acknowledged.last_batch >= steps
        assert acknowledged.last_batch > 0
        assert step(store, acknowledged) != acknowledged


@pytest.mark.matrix(sample=2)
def test_a_server_restarted_between_two_batches_costs_at_most_a_repeat(place: Place, pipeline: str) -> None:
    with place.new_store().open(pipeline) as store:
        known = step(store, step(store, store.load()))
        place.server.kill()
        place.server.start()
        assert eventually(store.load) == known
        assert step(store, known).pending is not None


def test_a_swap_whose_answer_is_lost_is_neither_repeated_nor_taken_for_a_rivals(
    own_redis: Place, pipeline: str
) -> None:
    impatient = own_redis.server.url + "?socket_timeout=0.5"
    (node,) = own_redis.server.nodes
    with stores.Redis(impatient).open(pipeline) as store:
        known = step(store, store.load())
        old, version = store.read()
        new = old.committed(known.pending)
        os.kill(node.pid, signal.SIGSTOP)
        try:
            with pytest.raises(RetriableError):
                store.swap(version, old, new)
        finally:
            os.kill(node.pid, signal.SIGCONT)
        assert store.load() in (old.progress, new.progress)


def test_a_commit_in_flight_is_waited_for_before_the_offsets_are_read(own_postgres: Place, pipeline: str) -> None:
    import psycopg

    new = own_postgres.new_store
    with new().open(pipeline) as store, new().open(pipeline) as slow:
        known = step(store, store.load())
        after = known.advanced(known.pending)
        state = store.read()[0]
        with pytest.raises(RetriableError), store.transaction() as connection:
            with psycopg.connect(own_postgres.server.dsn, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [connection.driver.info.backend_pid])
            connection.execute("SELECT 1")
        # The other handle plays our lost transaction: it still holds the lock, and commits while we look.
        with slow.transaction() as connection:
            looking = threading.Thread(target=lambda: seen.append(store.load()))
            seen: list[Progress] = []
            looking.start()
            looking.join(0.5)
            assert seen == []
            offset_tables.write(connection, pipeline, state, state.committed(known.pending))
        looking.join(20)
        assert seen == [after]


def refused(store: stores.OffsetStore, kind: type[Exception]) -> str:
    """What the first words say, and that they come soon and without the password."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        store.open("refused").load()
    store.close()
    assert time.monotonic() - began < QUICK
    error = caught.value
    assert error.hint
    shown = "".join(traceback.format_exception(error, limit=0))
    assert "falsch" not in repr(store) + shown + error.hint
    return str(error)


def test_postgres_says_what_is_wrong(own_postgres: Place) -> None:
    import psycopg

    server = own_postgres.server
    hba = server.directory / "data" / "pg_hba.conf"
    hba.write_text("host all app 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS app; CREATE ROLE app LOGIN PASSWORD 'richtig'")
        connection.execute("DROP DATABASE IF EXISTS closed")
        connection.execute("CREATE DATABASE closed")
        connection.execute("SELECT pg_reload_conf()")
    at = f"127.0.0.1:{server.port}"
    app = f"postgresql://app:richtig@{at}"
    eventually(lambda: refused(stores.Postgres(f"{app}/nowhere"), ConfigError))
    assert "password" in refused(stores.Postgres(f"postgresql://app:falsch@{at}/postgres"), ConfigError)
    assert "password" in refused(stores.Postgres(f"postgresql://app@{at}/postgres"), ConfigError)
    assert "nowhere" in refused(stores.Postgres(f"{app}/nowhere"), ConfigError)
    assert "permission denied" in refused(stores.Postgres(f"{app}/closed"), ConfigError)
    assert "refused" in refused(stores.Postgres(f"postgresql://app:falsch@{NOBODY}/app"), RetriableError)
    assert "libpq" in refused(stores.Postgres(f"postgresql://app:falsch@falsch@{at}/app"), ConfigError)
    assert "libpq" in refused(stores.Postgres("host=h password=fal'falsch x"), ConfigError)
    assert "***" in repr(stores.Postgres("host=h password='fal\\'sch falsch' user=app"))
    refused(stores.Postgres("host=no-such-host.invalid password=falsch"), RetriableError)


def test_redis_says_what_is_wrong(own_redis: Place) -> None:
    at = f"127.0.0.1:{own_redis.server.port}"
    refused(stores.Redis(f"redis://:falsch@{at}/0"), ConfigError)
    refused(stores.Redis(f"redis://app:falsch@{at}/0"), ConfigError)
    refused(stores.Redis(f"redis://{at}/0"), ConfigError)
    refused(stores.Redis(f"redis://{at}/0?password=falsch"), ConfigError)
    refused(stores.Redis(f"redis://app:falsch/falsch@{at}/0"), ConfigError)
    assert "range" in refused(stores.Redis(f"redis://:{own_redis.server.password}@{at}/999"), ConfigError)
    assert "refused" in refused(stores.Redis(f"redis://:falsch@{NOBODY}/0"), RetriableError)
    with pytest.raises(ConfigError):
        stores.Redis("localhost")


def test_redis_moves_no_offsets_when_the_history_cannot_be_written(own_redis: Place, pipeline: str) -> None:
    import redis

    at = f"127.0.0.1:{own_redis.server.port}"
    with redis.Redis.from_url(own_redis.server.url) as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-rpush")
    with stores.Redis(f"redis://reader:pw@{at}/0").open(pipeline) as store:
        store.commit(Batch(1, (Range(AT[0], 0, 5),)))
        with pytest.raises(ConfigError, match="user"):
            store.set_offsets(store.load(), {AT[0]: 0}, AuditEntry(0.0, "me", "seek"))
        assert store.load().offsets == {AT[0]: 5}
    with own_redis.new_store().open(pipeline) as store:
        store.set_offsets(store.load(), {AT[0]: 0}, AuditEntry(0.0, "me", "seek"))
        assert (store.load().offsets, len(store.history())) == ({AT[0]: 0}, 1)


def test_cassandra_says_what_is_wrong(own_cassandra: Place) -> None:
    hosts = own_cassandra.server.hosts
    wrong = {"username": "cassandra", "password": "falsch"}
    assert "nowhere" in refused(stores.Cassandra(hosts, keyspace="nowhere"), ConfigError)
    refused(stores.Cassandra([NOBODY], keyspace="outage", **wrong), RetriableError)
    refused(stores.Cassandra("no-such-host.invalid", keyspace="outage", **wrong), RetriableError)
    for missing in ("", [], "host:port", "host:9042,,"):
        with pytest.raises(ConfigError):
            stores.Cassandra(missing, keyspace="outage")
    with pytest.raises(ConfigError):
        stores.Cassandra(hosts, keyspace="outage; DROP KEYSPACE outage")


def test_cassandra_says_that_a_password_or_a_right_is_missing(tmp_path: Any) -> None:
    locked = {"authenticator": "PasswordAuthenticator", "authorizer": "CassandraAuthorizer"}
    server = dev.Cassandra(tmp_path, options=locked)
    root = {"username": "cassandra", "password": "cassandra"}
    store = stores.Cassandra(server.hosts, keyspace="locked", create=True, **root)
    server.fetch()
    try:
        server.nodes[0].launch()  # without waiting: the dev server asks its question without a password
        eventually(lambda: store.open("first"), seconds=90)
        store._session.execute("CREATE ROLE app WITH PASSWORD = 'richtig' AND LOGIN = true")
        store.close()
        hosts = server.hosts
        refused(stores.Cassandra(hosts, keyspace="locked"), ConfigError)
        refused(stores.Cassandra(hosts, keyspace="locked", username="app", password="falsch"), ConfigError)
        app = stores.Cassandra(hosts, keyspace="locked", username="app", password="richtig")
        assert "app" in refused(app, ConfigError)
        assert_the_sink_says_so_too(hosts, username="app")
    finally:
        server.kill()


def assert_the_sink_says_so_too(hosts: str, username: str) -> None:
    from pyspark.sql.types import StructType

    def sink(password: str) -> sinks.Cassandra:
        return sinks.Cassandra(hosts, "locked.rows", key="id", create=True, username=username, password=password)

    with pytest.raises(ConfigError, match="incorrect") as caught:
        sink("falsch").open("refused")
    assert "falsch" not in str(caught.value)
    with sink("richtig").open("refused") as opened, pytest.raises(ConfigError, match="permission"):
        opened.prepare(StructType.fromDDL("id BIGINT"))


def test_a_redis_that_may_lose_data_is_reported_and_a_durable_one_is_not(tmp_path: Any, own_redis: Place) -> None:
    assert own_redis.new_store().durability_warnings("p") == []
    import redis

    options = {"appendonly": "no", "maxmemory": "10mb", "maxmemory-policy": "allkeys-lru"}
    with dev.Redis(tmp_path, options=options) as server, redis.Redis.from_url(server.url) as client:
        client.config_set("save", "60 1")
        store = stores.Redis(server.url)
        forgetting, evicting = store.durability_warnings("p")
        assert "snapshot" in forgetting
        assert "appendfsync always" in forgetting
        assert "allkeys-lru" in evicting
        with store.open("p"):
            assert len(store.durability_warnings("p")) == 2
    assert "once a second" in redis_client.loss_warnings({"appendonly": "yes", "appendfsync": "everysec"}, 0)[0]
    assert "failover" in redis_client.loss_warnings({"appendonly": "yes", "appendfsync": "always"}, 2)[0]


def test_a_cassandra_with_one_copy_is_reported(own_cassandra: Place) -> None:
    store = own_cassandra.new_store()
    store.open("p").close()
    (said,) = store.durability_warnings("p")
    assert "one copy" in said


def test_a_postgres_that_does_not_wait_for_the_disk_is_reported(tmp_path: Any, own_postgres: Place) -> None:
    assert own_postgres.new_store().durability_warnings("p") == []
    with dev.Postgres(tmp_path, options={"fsync": "off"}) as server:
        (said,) = stores.Postgres(server.dsn).durability_warnings("p")
    assert "fsync" in said


def cassandra_errors() -> Iterator[tuple[Exception, type[Exception]]]:
    import cassandra
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionShutdown
    from cassandra.protocol import OverloadedErrorMessage, ServerError

    yield cassandra.WriteTimeout("CAS", write_type=cassandra.WriteType.CAS), RetriableError
    yield cassandra.Unavailable("2 of 3"), RetriableError
    yield cassandra.OperationTimedOut(), RetriableError
    yield ConnectionShutdown("gone"), RetriableError
    yield ServerError(0, "oops", None), RetriableError
    yield OverloadedErrorMessage(0x1001, "busy", None), RetriableError
    yield NoHostAvailable("none", {}), RetriableError
    yield cassandra.AuthenticationFailed("Unable to perform authentication: no quorum"), RetriableError
    yield cassandra.AuthenticationFailed("password incorrect"), ConfigError
    yield NoHostAvailable("none", {"h": cassandra.AuthenticationFailed("password incorrect")}), ConfigError
    yield cassandra.Unauthorized("no right"), ConfigError
    yield cassandra.InvalidRequest("no such column"), ConfigError


def redis_errors() -> Iterator[tuple[Exception, type[Exception]]]:
    from redis import exceptions

    yield exceptions.TimeoutError("slow"), RetriableError
    yield exceptions.BusyLoadingError("loading"), RetriableError
    yield exceptions.ReadOnlyError("a replica now"), RetriableError
    yield exceptions.OutOfMemoryError("full"), RetriableError
    yield exceptions.ResponseError("MISCONF no disk"), RetriableError
    yield exceptions.AuthenticationError("WRONGPASS"), ConfigError
    yield exceptions.NoPermissionError("NOPERM"), ConfigError
    yield exceptions.MovedError("1 host:1"), ConfigError
    yield exceptions.ResponseError("WRONGTYPE of key"), ConfigError


@pytest.mark.parametrize(("error", "ours"), list(cassandra_errors()), ids=repr)
def test_errors_of_cassandra_are_named_by_the_reaction_they_ask_for(error: Exception, ours: type[Exception]) -> None:
    with pytest.raises(ours) as caught, cql.translate_errors("somebody"):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("error", "ours"), list(redis_errors()), ids=repr)
def test_errors_of_redis_are_named_by_the_reaction_they_ask_for(error: Exception, ours: type[Exception]) -> None:
    store = stores.Redis("redis://localhost")
    with pytest.raises(ours) as caught, store._translating_errors("a client"):
        raise error
    assert caught.value.__cause__ is error

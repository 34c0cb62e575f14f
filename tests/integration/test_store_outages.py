"""Stores whose server is killed, frozen, or not the one that was meant."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from headrace import dev, stores
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

    def __init__(self, server: Server, new_store: Callable[[], stores.OffsetStore]) -> None:
        self.server = server
        self.new_store = new_store


@pytest.fixture
def pipeline() -> str:
    return f"outage-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with dev.Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield Place(server, lambda: stores.Postgres(server.dsn))


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    # The first settings are the dev server's own; here they are what is tested.
    options = {"appendonly": "yes", "appendfsync": "always", "requirepass": "geheim"}
    with dev.Redis(tmp_path_factory.mktemp("redis"), options=options) as server:
        yield Place(server, lambda: stores.Redis(server.url.replace("://", "://:geheim@")))


@pytest.fixture(scope="module")
def own_cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    options = {"authenticator": "PasswordAuthenticator"}
    with dev.Cassandra(tmp_path_factory.mktemp("cassandra"), options=options) as server:
        place = Place(server, lambda: cassandra_store(server, "cassandra"))
        eventually(lambda: place.new_store().open("first").close())  # it makes its first user in its own time
        yield place


def cassandra_store(server: dev.Cassandra, password: str) -> stores.Cassandra:
    return stores.Cassandra(server.hosts, keyspace="outage", create=True, username="cassandra", password=password)


@pytest.fixture(params=["postgres", "redis", "cassandra"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"own_{request.param}")
    return found


def eventually[Found](ask: Callable[[], Found], seconds: float = 60.0) -> Found:
    """The answer, as soon as there is one: what a runner does that backs off and repeats."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (RetriableError, ConfigError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

"""The Redis sink in each of its structures and the Redis offset store, held to the contract suites."""

import json
import uuid

import pytest
import redis as driver

from headrace import sinks, stores
from headrace.errors import ConfigError
from headrace.testing.sinks import IdempotentSinkContract, KeyedSinkContract, batch, frame, numbered
from headrace.testing.stores import OffsetStoreContract


class TestRedisStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis):
        self._url = redis.url

    def new_store(self):
        return stores.Redis(self._url)


class Place:
    """Names of their own on the shared server."""

    @pytest.fixture(autouse=True)
    def place(self, redis):
        self._url, self._name, self._users = redis.url, uuid.uuid4().hex, uuid.uuid4().hex
        with driver.Redis.from_url(redis.url, decode_responses=True) as client:
            self._client = client
            yield


class TestRedisHash(Place, KeyedSinkContract):
    def new_sink(self):
        return sinks.Redis(self._url, self._name)

    def stored(self):
        return self._rows(self._name)

    def new_upserting_sink(self):
        return sinks.Redis(self._url, self._users, key="id")

    def upserted(self):
        return self._rows(self._users)

    def _rows(self, name):
        found = [self._client.hgetall(key) for key in self._client.scan_iter(f"{name}:*", count=10_000)]
        return [(int(row["id"]), row.get("text")) for row in found]


class TestRedisString(TestRedisHash):
    def new_sink(self):
        return sinks.Redis(self._url, self._name, structure="string")

    def new_upserting_sink(self):
        return sinks.Redis(self._url, self._users, structure="string", key="id")

    def _rows(self, name):
        found = [json.loads(self._client.get(key)) for key in self._client.scan_iter(f"{name}:*", count=10_000)]
        return [(row["id"], row["text"]) for row in found]


class Appending(Place, IdempotentSinkContract):
    def test_rows_that_are_equal_are_stored_as_often_as_they_came(self, sink, spark):
        """Of one record here, whose rows are appended in one step: the offset tells what was appended."""
        equal = frame(spark, [(7, "same")])
        sink.write(batch(1, 7, 8), equal.union(equal))
        sink.write(batch(1, 7, 8), equal.union(equal))
        self.expect(sink, [(7, "same"), (7, "same")])

    def test_rows_without_their_origin_are_stored_too(self, sink, spark):
        """Not here: the offset is what tells whether they were appended."""
        with pytest.raises(ConfigError, match="_kafka"):
            sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)).select("id", "text"))

    def test_nulls_and_every_script_come_through(self, sink, spark):
        """As in the contract, in a batch that has these offsets."""
        rows = [(0, None), (1, ""), (2, "naïve ✓ 漢字 😀"), (3, "a'b\"c\\d\te\nf"), (2**62, "long")]
        sink.write(batch(1, 0, 2**62 + 1), frame(spark, rows))
        self.expect(sink, rows)


class TestRedisStream(Appending):
    def new_sink(self):
        return sinks.Redis(self._url, self._name, structure="stream")

    def stored(self):
        return [(int(row["id"]), row.get("text")) for _, row in self._client.xrange(self._name)]


class TestRedisList(Appending):
    def new_sink(self):
        return sinks.Redis(self._url, self._name, structure="list")

    def stored(self):
        return [(row["id"], row["text"]) for row in map(json.loads, self._client.lrange(self._name, 0, -1))]


class TestRedisSet(Place, IdempotentSinkContract):
    appends = False

    def new_sink(self):
        return sinks.Redis(self._url, self._name, structure="set")

    def stored(self):
        return [(row["id"], row["text"]) for row in map(json.loads, self._client.smembers(self._name))]

    def test_rows_that_are_equal_are_stored_as_often_as_they_came(self, sink, spark):
        """Not here: a set has each once."""
        equal = frame(spark, [(7, "same")])
        sink.write(batch(1, 7, 8), equal.union(equal))
        self.expect(sink, [(7, "same")])

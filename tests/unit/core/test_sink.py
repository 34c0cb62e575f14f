"""The template of a sink: prepared once for each schema."""

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from headrace.core.sink import Sink
from headrace.errors import ConfigError
from headrace.sinks import Fanout

IDS = StructType().add("id", LongType())
USERS = StructType().add("user", StringType())


class Recording(Sink):
    def __init__(self, identity="recording"):
        self._identity = identity
        self.prepared = []

    @property
    def identity(self):
        return self._identity

    def prepare(self, schema):
        if "user" in schema.names and not self.prepared:
            raise ConfigError("the table has no column user")
        self.prepared.append(schema)

    def write(self, batch, rows):
        raise NotImplementedError


def test_a_sink_is_prepared_once_for_each_schema():
    sink = Recording().open("clicks")
    for schema in (IDS, StructType().add("id", LongType()), USERS, IDS):
        sink.ensure_prepared(schema)
    assert sink.prepared == [IDS, USERS, IDS]


def test_a_sink_that_was_opened_again_is_prepared_again():
    sink = Recording().open("clicks")
    sink.ensure_prepared(IDS)
    sink.close()
    sink.open("clicks").ensure_prepared(IDS)
    assert sink.prepared == [IDS, IDS]


def test_a_prepare_that_failed_is_repeated():
    sink = Recording().open("clicks")
    for _ in range(2):
        with pytest.raises(ConfigError):
            sink.ensure_prepared(USERS)


def test_a_fan_out_prepares_its_sinks_once():
    one, other = Recording("one"), Recording("other")
    with Fanout([one, other]).open("clicks") as fanout:
        one.ensure_prepared(IDS)
        for _ in range(2):
            fanout.ensure_prepared(IDS)
    assert one.prepared == other.prepared == [IDS]

"""What the Cassandra sink makes of rows before a server sees them, and of what servers say that we cannot run here."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace.connectors.cassandra import writer as cassandra_writer
from headrace.connectors.cassandra.types import CqlType, fits
from headrace.connectors.cassandra.writer import CassandraConnection, CassandraWriter
from headrace.connectors.shared.keyed_sink import Row
from headrace.core.dead_letters import RecordId
from headrace.support.retry import RetryPolicy

MOMENT = datetime(2024, 3, 31, 1, 30, 0, 123_000, UTC)


class Session(cassandra_writer._WriteSession):
    """Has a prepared statement of the driver's own, of a table with the key ((user, shop), at), and no connection."""

    def __init__(self):
        self._session = None
        self.stored = []

    def statement(self, text, consistency):
        from cassandra.cqltypes import Int32Type, LongType, TimestampType, UTF8Type
        from cassandra.protocol import ColumnMetadata
        from cassandra.query import PreparedStatement

        kinds = {"user": UTF8Type, "shop": UTF8Type, "at": TimestampType, "stamp": LongType, "ttl": Int32Type}
        if text == "delete":
            kinds = {name: kinds[name] for name in ("stamp", "user", "shop", "at")}
        columns = [ColumnMetadata("k", "t", name, kind) for name, kind in kinds.items()]
        places = [list(kinds).index(name) for name in ("user", "shop")]
        return PreparedStatement(columns, b"", places, text, "k", 4, [], b"")

    def prepare(self, text, consistency):
        return self.statement(text, consistency)

    def execute(self, writes):
        self.stored += [row.origin.offset for row, _ in writes]
        return super().execute(writes) if self._session else []


@pytest.fixture
def writer():
    key = ("user", "shop", "at")
    kinds = {"user": CqlType("text"), "shop": CqlType("text"), "at": CqlType("timestamp")}
    connection = CassandraConnection((), None, None, {}, "")
    return CassandraWriter("sink", connection, "insert", "delete", key, kinds, key, 1, None, "ONE")


def row(offset, user="ann", at=MOMENT, *, deleted=False):
    values = {"user": user, "shop": "a", "at": at}
    return Row(tuple(values.values()), values, RecordId("clicks", 0, offset), "s", offset, deleted)


def test_a_key_that_cassandra_would_cut_to_that_of_another_row_is_refused(writer):
    session, late = Session(), MOMENT + timedelta(microseconds=4)
    refused = writer._store(session, [row(0), row(1, at=late), row(2, at=late, deleted=True)])
    reasons = [(rejected.origin.offset, reason.partition(":")[0]) for rejected, reason in refused]
    assert reasons == [(1, "at"), (2, "at")]
    assert "microseconds" in refused[0][1]
    assert session.stored == [0]


def test_a_part_of_the_partition_key_above_64_kb_is_its_own_rows_fault(writer):
    session = Session()
    ((rejected, reason),) = writer._store(session, [row(0), row(1, user="x" * 65_536), row(2, user="x" * 65_535)])
    assert (rejected.origin.offset, session.stored) == (1, [0, 2])
    assert "64 KB" in reason


@pytest.mark.parametrize(
    ("spark", "taken", "rounded"),
    [
        ("ShortType", {"smallint", "bigint", "varint", "decimal", "float", "double"}, set()),
        ("IntegerType", {"tinyint", "int", "bigint", "double"}, {"float"}),
        ("LongType", {"int", "bigint", "varint", "decimal"}, {"float", "double"}),
        ("DecimalType", {"decimal"}, {"float", "double"}),
        ("FloatType", {"float", "double"}, set()),
        ("DoubleType", {"double"}, {"float"}),
    ],
)
def test_a_column_that_would_round_numbers_does_not_fit_them(spark, taken, rounded):
    from pyspark.sql import types

    kind = getattr(types, spark)()
    assert {name for name in taken | rounded if fits(kind, CqlType(name))} == taken


def test_a_row_that_an_old_server_fails_to_write_for_its_size_is_refused_and_others_are_repeated(writer, monkeypatch):
    import cassandra
    from cassandra import concurrent

    failed = cassandra.WriteFailure("failed", failures=1, write_type="SIMPLE")
    monkeypatch.setattr(concurrent, "execute_concurrent", lambda session, writes, *a, **k: [(False, failed)])
    monkeypatch.setattr(cassandra_writer, "_BUSY", RetryPolicy(attempts=1))
    session = Session()
    session._session = object()
    bound = type("Bound", (), {"values": [b"x" * (16 * 2**20 + 1)], "routing_key": b"1"})
    assert session.execute([(row(0), bound)]) == [(row(0), "the server fails to write a row of 16,777,217 bytes")]
    with pytest.raises(cassandra.WriteFailure):
        session.execute([(row(0), type("Bound", (), {"values": [b"x"], "routing_key": b"1"}))])

"""Which row of a key is handed to a writer, and which keys tell records apart."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from headrace import sinks
from headrace.connectors.shared.keyed_sink import RowKey, _KeyedWriteTask
from headrace.connectors.sql.upsert import OFFSET, ORIGIN
from headrace.core.dead_letters import RecordId
from headrace.errors import ConfigError
from headrace.spark.origin_columns import ORIGIN_COLUMNS


@dataclass
class Keeping:
    """A store that takes what it is given, but for some texts."""

    refused: tuple[str, ...] = ()
    there: dict = field(default_factory=dict)

    def __call__(self, rows):
        assert len({row.key for row in rows}) == len(rows)
        self.there |= {row.key: row.values["text"] for row in rows if row.values["text"] not in self.refused}
        return [(row, "no such text") for row in rows if row.values["text"] in self.refused]


def arrow(*rows, key=None):
    """Of (key, text, partition, offset)."""
    keys, texts, partitions, offsets = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(keys, key),
            "text": texts,
            ORIGIN: [f"topic:{partition}" for partition in partitions],
            OFFSET: offsets,
            ORIGIN_COLUMNS[0]: ["clicks"] * len(rows),
            ORIGIN_COLUMNS[1]: partitions,
            ORIGIN_COLUMNS[2]: offsets,
        }
    )


def stored(*rows, refused=(), by_offset=False, key=None):
    keeping = Keeping(refused)
    report = _KeyedWriteTask(keeping, "a sink", ("id",), by_offset, 10)(iter([arrow(*rows, key=key)]))
    assert report.error is None
    return keeping.there, [origin.offset for origin, _ in report.refused]


def test_where_the_newest_row_of_a_key_is_refused_the_next_older_one_is_stored():
    rows = [(1, "good", 0, 1), (2, "other", 0, 2), (1, "bad", 0, 3), (1, "worse", 0, 4), (2, "bad", 0, 5)]
    assert stored(*rows, refused=("bad", "worse")) == ({(1,): "good", (2,): "other"}, [4, 5, 3])
    assert stored((1, "bad", 0, 1), (1, "good", 0, 2), refused=("bad",)) == ({(1,): "good"}, [])


def test_of_several_partitions_the_last_one_seen_counts_with_its_highest_offset():
    rows = [(1, "A5", 0, 5), (1, "B3", 1, 3), (1, "A4", 0, 4)]
    assert stored(*rows) == ({(1,): "A5"}, [])
    assert stored(*rows, (1, "B1", 1, 1)) == ({(1,): "B3"}, [])


def test_where_the_offset_alone_is_the_version_the_highest_of_all_partitions_counts():
    assert stored((1, "A5", 0, 5), (1, "B3", 1, 3), by_offset=True) == ({(1,): "A5"}, [])


def test_two_times_of_the_hour_that_a_zone_has_twice_are_two_keys():
    times = [datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    found, _ = stored(
        (times[0], "summer", 0, 0), (times[1], "winter", 0, 1), key=pa.timestamp("us", tz="Europe/Berlin")
    )
    assert found == {(times[0],): "summer", (times[1],): "winter"}


def test_a_row_that_cannot_be_read_is_refused_and_the_others_are_stored():
    days = pa.array([0, 3_000_000, 1], pa.date32())
    batch = arrow(*[(n, f"row {n}", 0, n) for n in range(3)]).append_column("day", days)
    keeping = Keeping()
    report = _KeyedWriteTask(keeping, "a sink", ("id",), False, 10)(iter([batch]))
    assert [origin for origin, _ in report.refused] == [RecordId("clicks", 0, 1)]
    assert keeping.there == {(0,): "row 0", (2,): "row 2"}


@pytest.mark.parametrize("key", ["offset", "partition", ("topic", "offset"), ("topic", "partition")])
def test_a_key_that_records_share_is_refused_unless_the_rows_have_such_columns(key):
    identity = RowKey.of(key, None)
    with pytest.raises(ConfigError, match="cannot be distinguished"):
        identity.columns(["id", "_kafka"])
    assert identity.columns([*identity.key, "id", "_kafka"]) == [*identity.key, "id"]


@pytest.mark.parametrize(
    ("names", "takes"),
    [
        ("Cassandra DynamoDB HBase Mongo Redis Console Memory Foreach", True),
        ("Parquet Hive Delta Iceberg Jdbc Postgres SQLite DuckDB Kafka", False),
    ],
)
def test_sinks_whose_rows_stand_alone_take_what_is_left_of_a_batch(names, takes):
    """A sink that knows batches as a whole would take a part of one for another batch."""
    assert {name: getattr(sinks, name).accepts_partial_batches for name in names.split()} == dict.fromkeys(
        names.split(), takes
    )


def test_a_fan_out_takes_what_is_left_of_a_batch_if_all_of_its_sinks_do(tmp_path):
    rows, batches = sinks.Redis("redis://h/0", "clicks", key="id"), sinks.Parquet(tmp_path / "out")
    assert sinks.Fanout([rows, sinks.Memory()]).accepts_partial_batches
    assert not sinks.Fanout([rows, batches]).accepts_partial_batches

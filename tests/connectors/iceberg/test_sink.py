"""What the Iceberg sink does beyond its contract: one winner among two runs, a name mapping, refusals."""

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql.types import StructType

from headrace.connectors.iceberg.sink import Iceberg
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.testing.sinks import batch, frame, numbered
from support.interleaving import Died, die, meanwhile


class Place:
    """A catalog of its own in a SQLite file, and its table as others see it."""

    def __init__(self, directory):
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{directory / 'catalog.db'}",
            "warehouse": (directory / "warehouse").as_uri(),
        }
        self.directory = directory

    def sink(self, **settings):
        return Iceberg("web.rows", properties=self.properties, **settings)

    def catalog(self):
        return load_catalog("default", **self.properties)

    def table(self):
        return self.catalog().load_table("web.rows")

    def make(self, schema, **settings):
        self.catalog().create_namespace("web")
        return self.catalog().create_table("web.rows", schema, **settings)

    def rows(self):
        return Counter((row["id"], row["text"]) for row in self.table().scan().to_arrow().to_pylist())

    def folders(self):
        return sorted(path.name for path in self.directory.glob("warehouse/web/rows/data/headrace/clicks/*"))


@pytest.fixture
def place(tmp_path, spark):
    return Place(tmp_path)


def test_a_zombie_that_wakes_after_its_successor_wrote_changes_nothing(place, spark):
    with place.sink().open("clicks") as zombie, place.sink().open("clicks") as successor:
        zombie.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        successor.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        successor.write(batch(3, 5, 6), frame(spark, numbered(5, 6)))
        before = place.folders()
        with pytest.raises(OffsetConflict, match=r"batch 2 .* comes too late"):
            zombie.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        assert place.folders() == before
    assert place.rows() == Counter(numbered(0, 6))


@pytest.mark.parametrize("point", ["iceberg: files written", "iceberg: files durable"])
@pytest.mark.parametrize("first", [numbered(0, 1), []])
def test_of_two_runs_committing_the_same_batch_at_once_one_wins_and_the_other_agrees(place, spark, point, first):
    with place.sink().open("clicks") as slow, place.sink().open("clicks") as fast:
        slow.write(batch(1, 0, 1), frame(spark, first))
        with meanwhile(point, lambda: fast.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))):
            slow.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))
        slow.write(batch(3, 3, 4), frame(spark, numbered(3, 4)))
    assert place.rows() == Counter(first + numbered(1, 4))


@pytest.mark.parametrize("rows", [numbered(1, 4), []])
@pytest.mark.parametrize("others", [numbered(1, 3), []])
def test_of_two_runs_committing_different_batches_at_once_one_is_refused(place, spark, rows, others):
    with place.sink().open("clicks") as slow, place.sink().open("clicks") as fast:
        slow.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with (
            meanwhile("iceberg: files durable", lambda: fast.write(batch(2, 1, 3), frame(spark, others))),
            pytest.raises(OffsetConflict),
        ):
            slow.write(batch(2, 1, 4), frame(spark, rows))
    assert place.rows() == Counter(numbered(0, 1) + others)


def test_writers_of_other_kinds_do_not_disturb(place, spark):
    more = pa.table({"id": pa.array([100], pa.int64()), "text": ["more"]})

    def others():
        place.table().append(more)
        with place.sink().open("other") as other:
            other.write(batch(2, 0, 1), frame(spark, [(200, "other")]))

    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with meanwhile("iceberg: files durable", others):
            sink.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))
    assert place.rows() == Counter([*numbered(0, 3), (100, "more"), (200, "other")])
    assert place.sink().open("clicks").last_batch() == 2
    assert "commit.retry.num-retries" not in place.table().properties


def test_a_table_that_others_never_leave_alone_is_tried_again_later(place, spark):
    class Busy(Iceberg):
        def _load_table(self):
            table = super()._load_table()
            if table is not None and busy:
                place.table().append(pa.table({"id": pa.array([100], pa.int64()), "text": ["more"]}))
            return table

    busy = False
    with Busy("web.rows", properties=place.properties).open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        busy = True
        with pytest.raises(RetriableError, match="commits of others"):
            sink.write(batch(2, 1, 2), frame(spark, numbered(1, 2)))
    assert place.sink().open("clicks").last_batch() == 1


def test_the_newest_batch_is_known_to_the_next_run_also_when_snapshots_were_expired(place, spark):
    with place.sink().open("clicks") as sink:
        assert sink.last_batch() == 0
        for number in (1, 7):
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
    table = place.table()
    stored = json.loads(table.current_snapshot().summary["headrace.batch"])
    assert stored["ranges"] == [["clicks", 0, 7, 8]]
    old = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(old).commit()
    with place.sink().open("clicks") as sink:
        assert sink.last_batch() == 7
        sink.write(batch(7, 7, 8), frame(spark, numbered(7, 8)))
        with pytest.raises(OffsetConflict):
            sink.write(batch(7, 7, 9), frame(spark, numbered(7, 9)))
    assert place.rows() == Counter([*numbered(1, 2), *numbered(7, 8)])


def test_what_dead_runs_left_goes_with_the_next_commit(place, spark):
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        for point in ("iceberg: files written", "iceberg: files durable"):
            with meanwhile(point, die), pytest.raises(Died):
                sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
        assert [name.split("-")[0] for name in place.folders()] == ["1", "2", "2"]
        sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
    assert [name.split("-")[0] for name in place.folders()] == ["1", "2"]
    assert place.rows() == Counter(numbered(0, 4))


EVERY_TYPE = """
    SELECT CAST(id AS BOOLEAN) AS truth, CAST(id AS INT) AS whole, id AS big, CAST(id AS FLOAT) AS single,
      IF(id = 0, DOUBLE('NaN'), id) AS x, CAST(id + 0.25 AS DECIMAL(38, 10)) AS exact,
      CAST(id AS DECIMAL(9, 2)) AS cents,
      CAST(id AS STRING) AS text, CAST('ab' AS BINARY) AS bytes, DATE'1500-02-28' AS day,
      TIMESTAMP'2024-05-06 07:08:09.123456' AS moment, TIMESTAMP_NTZ'2024-05-06 07:08:09.123456' AS wall,
      named_struct('a', id, 'b', array(id, NULL)) AS nested, array(named_struct('x', id)) AS list,
      map('k', CAST(id AS DECIMAL(10, 2)), 'n', NULL) AS pairs, CAST(NULL AS TIMESTAMP) AS nothing,
      repeat('漢', 3000) AS long
    FROM range(3)
"""


def test_every_type_comes_back_as_it_was_and_is_found_by_filters(place, spark):
    rows = spark.sql(EVERY_TYPE)
    with place.sink().open("clicks") as sink:
        sink.prepare(rows.schema)
        sink.write(batch(1, 0, 3), rows)
    (row,) = place.table().scan(row_filter="big = 2").to_arrow().to_pylist()
    assert row == {
        "truth": True,
        "whole": 2,
        "big": 2,
        "single": 2.0,
        "x": 2.0,
        "exact": Decimal("2.25").quantize(Decimal("1e-10")),
        "cents": Decimal("2.00"),
        "text": "2",
        "bytes": b"ab",
        "day": date(1500, 2, 28),
        "moment": datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
        "wall": datetime(2024, 5, 6, 7, 8, 9, 123456),
        "nested": {"a": 2, "b": [2, None]},
        "list": [{"x": 2}],
        "pairs": [("k", Decimal("2.00")), ("n", None)],
        "nothing": None,
        "long": "漢" * 3000,
    }
    for condition, count in {
        "x >= 1.0": 2,
        "x is nan": 1,
        "text = '1'": 1,
        f"long = '{'漢' * 3000}'": 3,
        "day = '1500-02-28'": 3,
        "moment = '2024-05-06T07:08:09.123456+00:00'": 3,
        "nothing is null": 3,
        "cents = 2.00": 1,
    }.items():
        assert place.table().scan(row_filter=condition).to_arrow().num_rows == count, condition


@pytest.mark.parametrize(
    "column", ["INTERVAL '1' DAY", "NULL", "parse_json('{}')", "CAST(1 AS TINYINT)", "CAST(1 AS SMALLINT)"]
)
def test_a_type_that_iceberg_does_not_have_is_refused_by_column_and_type(place, spark, column):
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError, match="column c is of type"):
        sink.prepare(spark.sql(f"SELECT {column} AS c").schema)


def test_rows_that_do_not_fit_are_refused_with_both_sides_before_anything_is_read(place, spark):
    place.make(pa.schema([("id", pa.int64()), ("text", pa.int32())]))
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError) as refused:
        sink.prepare(frame(spark, []).schema)
    assert "rows: id bigint, text string; table: id bigint, text int" in refused.value.message


def test_a_table_with_partitions_or_required_columns_is_refused(place, spark):
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "text", StringType()))
    by = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="id"))
    place.make(schema, partition_spec=by)
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError, match="it is partitioned"):
        sink.prepare(frame(spark, []).schema)
    place.catalog().drop_table("web.rows")
    place.catalog().create_table("web.rows", Schema(NestedField(1, "id", LongType(), required=True)))
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError, match="id is required"):
        sink.prepare(StructType.fromDDL("id BIGINT"))


def test_evolve_adds_columns_and_only_then(place, spark):
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    wider = frame(spark, numbered(1, 2)).selectExpr("*", "1.5D AS x")
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError, match=r"lacks x \(evolve=True"):
        sink.write(batch(2, 1, 2), wider)
    with place.sink(evolve=True).open("clicks") as sink:
        sink.write(batch(2, 1, 2), wider)
        sink.write(batch(3, 2, 3), frame(spark, numbered(2, 3)))
    rows = sorted(place.table().scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["x"]) for row in rows] == [(0, None), (1, 1.5), (2, None)]


def test_a_name_mapping_that_lacks_a_column_is_refused_because_it_would_be_null(place, spark):
    place.make(pa.schema([("id", pa.int64()), ("text", pa.string())]))
    with place.table().transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": '[{"field-id": 1, "names": ["id"]}]'})
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError, match="name mapping lacks text"):
        sink.prepare(frame(spark, []).schema)


def test_a_table_that_is_not_there_is_made_only_with_create(place, spark):
    with place.sink(create=False).open("clicks") as sink:
        assert sink.last_batch() == 0
        with pytest.raises(ConfigError, match="create=False"):
            sink.prepare(frame(spark, []).schema)


def test_a_secret_is_not_shown_and_a_name_without_a_namespace_is_refused():
    assert "hidden" not in repr(Iceberg("web.rows", properties={"uri": "postgresql://me:hidden@db/app"}))
    with pytest.raises(ConfigError, match="a namespace and a name"):
        Iceberg("rows")

"""What the Delta sink does beyond its contract: one winner among two runs, statistics that hide no row, refusals."""

import json
import threading
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from pyspark.sql.types import StructType

import headrace as hr
from headrace import stores
from headrace.connectors.delta import compaction
from headrace.connectors.delta.sink import Delta
from headrace.connectors.fanout import Fanout
from headrace.engine.engine import DirectEngine
from headrace.errors import ConfigError, HeadraceError, OffsetConflict
from headrace.runtime.launch import open_sources
from headrace.runtime.runner import Runner
from headrace.testing.sinks import batch, frame, numbered
from support.interleaving import Died, die, meanwhile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows"


def rows_of(path):
    return Counter((row["id"], row["text"]) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def query_with_readers(path, query):
    """The answer of delta-rs and, of the same table as Arrow, of DuckDB: both prune files by the statistics."""
    table = DeltaTable(path)
    by_rust = pa.table(QueryBuilder().register("t", table).execute(query)).to_pylist()
    t = table.to_pyarrow_dataset()
    by_duckdb = duckdb.sql(query).to_arrow_table().to_pylist()
    assert t is not None
    return by_rust, by_duckdb


def folders(path, pipeline="clicks"):
    return sorted(folder.name for folder in (path / "headrace" / pipeline).iterdir())


# Two runs


def test_a_zombie_that_wakes_after_its_successor_wrote_changes_nothing(spark, path):
    with Delta(path).open("clicks") as zombie, Delta(path).open("clicks") as successor:
        zombie.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        successor.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        successor.write(batch(3, 5, 6), frame(spark, numbered(5, 6)))
        before = folders(path)
        with pytest.raises(OffsetConflict, match=r"batch 2 .* comes too late"):
            zombie.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        assert folders(path) == before
    assert rows_of(path) == Counter(numbered(0, 6))


@pytest.mark.parametrize("members", [1, 2])
def test_two_runs_of_a_pipeline_store_a_batch_once_though_one_was_suspended_at_its_start(
    spark, topic, path, monkeypatch, members
):
    """Suspended between the questions, to store and sinks, while the other run writes a batch and dies."""
    paths = [path, path.parent / "more"][:members]
    clicks = topic()
    clicks.produce([{"id": n, "text": f"row {n}"} for n in range(3)])
    pipeline = hr.Pipeline(
        name="clicks",
        source=hr.Kafka(clicks.bootstrap, topics=[clicks.name], format=hr.Json("id BIGINT, text STRING")),
        sink=Delta(path) if members == 1 else Fanout([Delta(one) for one in paths]),
        guarantee="exactly-once",
        offsets=stores.Memory(),
    )

    def run():
        Runner(pipeline, open_sources(pipeline.sources), DirectEngine(spark, pipeline), fail_fast=True).run("caught-up")

    run()
    clicks.produce([{"id": n, "text": f"row {n}"} for n in range(3, 5)])
    load, last_batch = stores.Memory.load, Delta.last_batch
    answered = []

    def suspended(answer):
        answered.append(answer)
        if len(answered) == 1:
            with meanwhile("before commit", die), pytest.raises(Died):
                run()
        return answer

    monkeypatch.setattr(stores.Memory, "load", lambda store: suspended(load(store)))
    monkeypatch.setattr(Delta, "last_batch", lambda sink: suspended(last_batch(sink)))
    run()
    for one in paths:
        assert rows_of(one) == Counter({(n, f"row {n}"): 1 for n in range(5)})


def test_the_same_number_over_other_ranges_is_refused(spark, path):
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        with pytest.raises(OffsetConflict, match="nothing was written"):
            sink.write(batch(1, 0, 5), frame(spark, numbered(0, 5)))
    assert rows_of(path) == Counter(numbered(0, 3))


@pytest.mark.parametrize("point", ["delta: files written", "delta: files durable"])
def test_of_two_runs_committing_the_same_batch_at_once_one_wins_and_the_other_agrees(spark, path, point):
    with Delta(path).open("clicks") as slow, Delta(path).open("clicks") as fast:
        slow.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with meanwhile(point, lambda: fast.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))):
            slow.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))
        slow.write(batch(3, 3, 4), frame(spark, numbered(3, 4)))
    assert rows_of(path) == Counter(numbered(0, 4))


@pytest.mark.parametrize("rows", [numbered(1, 4), []])
def test_of_two_runs_committing_different_batches_at_once_one_is_refused(spark, path, rows):
    with Delta(path).open("clicks") as slow, Delta(path).open("clicks") as fast:
        slow.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with (
            meanwhile("delta: files durable", lambda: fast.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))),
            pytest.raises(OffsetConflict),
        ):
            slow.write(batch(2, 1, 4), frame(spark, rows))
    assert rows_of(path) == Counter(numbered(0, 3))


def test_a_run_that_was_overtaken_by_several_batches_is_refused(spark, path):
    def overtake():
        for number in range(2, 5):
            fast.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))

    with Delta(path).open("clicks") as slow, Delta(path).open("clicks") as fast:
        slow.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        with meanwhile("delta: files durable", overtake), pytest.raises(OffsetConflict):
            slow.write(batch(5, 2, 6), frame(spark, numbered(2, 6)))
    assert rows_of(path) == Counter(numbered(0, 5))


def test_pipelines_that_share_a_table_do_not_disturb_each_other(spark, path):
    with Delta(path).open("one") as one, Delta(path).open("other") as other:
        one.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with meanwhile("delta: files durable", lambda: other.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))):
            one.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))
        assert (one.last_batch(), other.last_batch()) == (2, 1)
    assert rows_of(path) == Counter(numbered(0, 3) + numbered(0, 2))


# What the table remembers


def test_the_newest_batch_is_known_to_the_next_run_and_to_a_pipeline_of_another_name(spark, path):
    with Delta(path).open("clicks") as sink:
        assert sink.last_batch() == 0
        sink.write(batch(7, 0, 3), frame(spark, numbered(0, 3)))
        assert sink.last_batch() == 7
    assert Delta(path).open("clicks").last_batch() == 7
    assert Delta(path).open("renamed").last_batch() == 0
    assert Delta(path, app_id="clicks").open("renamed").last_batch() == 7


def test_a_repeat_is_known_when_the_log_was_cleaned_and_the_files_compacted(spark, path):
    with Delta(path).open("clicks") as sink:
        for number in range(1, 4):
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
    table = DeltaTable(path)
    table.optimize.compact()
    table.create_checkpoint()
    for entry in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    with Delta(path).open("clicks") as sink:
        sink.write(batch(3, 3, 4), frame(spark, numbered(3, 4)))
        with pytest.raises(OffsetConflict):
            sink.write(batch(3, 3, 5), frame(spark, numbered(3, 5)))
    assert rows_of(path) == Counter(numbered(1, 4))


def test_the_commit_says_which_ranges_it_holds(spark, path):
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    (metadata,) = [json.loads(entry["headrace"]) for entry in DeltaTable(path).history() if "headrace" in entry]
    assert metadata["pipeline"] == "clicks"
    assert metadata["batch"]["ranges"] == [["clicks", 0, 0, 3]]


def test_what_dead_runs_left_goes_with_the_next_commit_and_nothing_else_does(spark, path):
    class Died(Exception):
        pass

    def die():
        raise Died

    with Delta(path).open("clicks") as sink, Delta(path).open("other") as other:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        for point in ("delta: files written", "delta: files durable"):
            with meanwhile(point, die), pytest.raises(Died):
                sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
            with meanwhile(point, die), pytest.raises(Died):
                other.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        assert [name.split("-")[0] for name in folders(path)] == ["1", "2", "2"]
        sink.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
        assert [name.split("-")[0] for name in folders(path)] == ["1", "2"]
        assert len(folders(path, "other")) == 2
        sink.write(batch(3, 4, 5), frame(spark, numbered(4, 5)))
    assert rows_of(path) == Counter(numbered(0, 5))


def test_compactions_beside_a_running_pipeline_double_and_lose_nothing(spark, path):
    done, merged, failed = threading.Event(), [], []

    def compacting():
        while not done.is_set():
            try:
                merged.append(compaction.compact(str(path), target=1_000_000, execute=True).files)
            except HeadraceError as error:
                failed.append(error)

    with Delta(path, partition_by="kind").open("clicks") as sink:

        def write(number):
            rows = frame(spark, numbered(number - 1, number)).selectExpr("id", "text", "id % 2 AS kind")
            sink.write(batch(number, number - 1, number), rows)

        write(1)
        compactor = threading.Thread(target=compacting)
        compactor.start()
        try:
            for number in range(2, 20):
                write(number)
                if number % 3 == 0:
                    write(number)  # a repeat, of a batch that may be merged by now
        finally:
            done.set()
            compactor.join(60)
    assert not failed
    assert sum(merged) > 0
    assert rows_of(path) == Counter(numbered(0, 19))
    compaction.compact(str(path), target=1_000_000, execute=True)
    assert len(DeltaTable(path).file_uris()) == 2
    with Delta(path).open("clicks") as sink:
        write(19)
    assert rows_of(path) == Counter(numbered(0, 19))


def test_vacuum_removes_what_is_left_and_keeps_the_rows(spark, path):
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    left = path / "headrace" / "clicks" / "1-dead" / "part.parquet"
    left.parent.mkdir()
    pq.write_table(pa.table({"id": [1]}), left)
    removed = DeltaTable(path).vacuum(full=True, retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert any("1-dead" in name for name in removed)
    assert not left.exists()
    assert rows_of(path) == Counter(numbered(0, 2))


# Types, partitions, statistics

EVERY_TYPE = """
    SELECT CAST(id AS BOOLEAN) AS truth, CAST(id AS TINYINT) AS tiny, CAST(id AS SMALLINT) AS small,
      CAST(id AS INT) AS whole, id AS big, CAST(id AS FLOAT) AS single, CAST(id AS DOUBLE) AS double_,
      CAST(id + 0.25 AS DECIMAL(38, 10)) AS exact, CAST(id AS STRING) AS text, CAST('ab' AS BINARY) AS bytes,
      DATE'1500-02-28' AS day, TIMESTAMP'2024-05-06 07:08:09.123456' AS moment,
      TIMESTAMP_NTZ'2024-05-06 07:08:09.123456' AS wall, named_struct('a', id, 'b', array(id, NULL)) AS nested,
      array(named_struct('x', id)) AS list, map('k', CAST(id AS DECIMAL(10, 2)), 'n', NULL) AS pairs,
      CAST(NULL AS TIMESTAMP) AS nothing
    FROM range({start}, {until})
"""


def test_every_type_comes_back_as_it_was(spark, path):
    with Delta(path).open("clicks") as sink:
        sink.prepare(spark.sql(EVERY_TYPE.format(start=0, until=3)).schema)
        sink.write(batch(1, 0, 3), spark.sql(EVERY_TYPE.format(start=0, until=3)))
    (row,) = [row for row in DeltaTable(path).to_pyarrow_table().to_pylist() if row["big"] == 2]
    assert row == {
        "truth": True,
        "tiny": 2,
        "small": 2,
        "whole": 2,
        "big": 2,
        "single": 2.0,
        "double_": 2.0,
        "exact": Decimal("2.25").quantize(Decimal("1e-10")),
        "text": "2",
        "bytes": b"ab",
        "day": date(1500, 2, 28),
        "moment": datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
        "wall": datetime(2024, 5, 6, 7, 8, 9, 123456),
        "nested": {"a": 2, "b": [2, None]},
        "list": [{"x": 2}],
        "pairs": [("k", Decimal("2.00")), ("n", None)],
        "nothing": None,
    }
    counted, same = query_with_readers(path, "SELECT count(*) AS n FROM t")
    assert counted == same == [{"n": 3}]


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("INTERVAL '1' DAY", "c is of type interval day"),
        ("INTERVAL '1' MONTH", "c is of type interval month"),
        ("NULL", "c is of type void"),
        ("parse_json('{}')", "c is of type variant"),
        ("array(named_struct('x', NULL))", r"c\[\].x is of type void"),
    ],
)
def test_a_type_that_delta_does_not_have_is_refused_by_column_and_type(spark, path, column, named):
    with Delta(path).open("clicks") as sink, pytest.raises(ConfigError, match=named):
        sink.prepare(spark.sql(f"SELECT {column} AS c").schema)
    assert not path.exists()


def test_a_session_keeps_its_own_settings_and_no_file_has_the_old_timestamps(spark, path):
    setting = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(setting)
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 1), spark.sql(EVERY_TYPE.format(start=0, until=1)).coalesce(1))
    assert spark.conf.get(setting) == before
    (file,) = path.glob("headrace/clicks/*/*.parquet")
    columns = pq.read_metadata(file).schema
    assert "INT96" not in {columns.column(number).physical_type for number in range(len(columns))}


ODD = ["plain", "a/b", "100%", "%20", "x=y", "späße 漢字", 'it\'s "q"', "__", " ", "a:b?#&+", "\\n\n", "", None]


def test_partitions_by_odd_texts_by_dates_and_by_nothing_are_found_again(spark, path):
    days = [date(2024, 1, 1), None, date(1999, 12, 31)]
    rows = [(number, text, days[number % 3]) for number, text in enumerate(ODD)]
    with Delta(path, partition_by=["text", "day"]).open("clicks") as sink:
        sink.write(batch(1, 0, 9), spark.createDataFrame(rows, "id BIGINT, text STRING, day DATE"))
    for text in ODD:
        literal = "'" + text.replace("'", "''") + "'" if text else "NULL"
        # Delta has no empty text as a partition: it is read as null.
        wanted = sorted(number for number, odd, _ in rows if (odd or None) == (text or None))
        for answer in query_with_readers(path, f"SELECT id, text FROM t WHERE text IS NOT DISTINCT FROM {literal}"):
            assert sorted(row["id"] for row in answer) == wanted
            assert {row["text"] for row in answer} == {text or None}
    for answer in query_with_readers(path, "SELECT id FROM t WHERE day = DATE '1999-12-31'"):
        assert sorted(row["id"] for row in answer) == [number for number, _, day in rows if day == days[2]]


def test_partitions_by_every_kind_allowed_are_typed_again(spark, path):
    kinds = {"b": "BOOLEAN", "t": "TINYINT", "s": "SMALLINT", "i": "INT", "l": "BIGINT"}
    chosen = ", ".join(f"CAST(IF(id = 2, NULL, id - 1) AS {kind}) AS {name}" for name, kind in kinds.items())
    with Delta(path, partition_by=list(kinds)).open("clicks") as sink:
        sink.write(batch(1, 0, 3), spark.sql(f"SELECT id, {chosen} FROM range(3)"))
    for answer in query_with_readers(path, "SELECT * FROM t ORDER BY id"):
        assert [tuple(row[name] for name in kinds) for row in answer] == [
            (True, -1, -1, -1, -1),
            (False, 0, 0, 0, 0),
            (None, None, None, None, None),
        ]


@pytest.mark.parametrize("dropped", [(), ("d",), ("d", "x")])  # each lets more files state their bounds
def test_statistics_hide_no_row(spark, path, dropped):
    nan = float("nan")
    rows = [
        (2**62, "a" * 500 + "z", nan, Decimal("0.1"), datetime(2024, 1, 1, 0, 0, 0, 999999), date(2024, 1, 1)),
        (2**62 + 1, "ä", 1.5, Decimal("12345678901234567890.1234567891"), datetime(1960, 1, 1, 0, 0, 0, 1), None),
        (-1, "", -0.0, None, None, date(1, 1, 1)),
        (6, "漢" * 3000, 3.5, None, None, None),
        (None, None, None, None, datetime(9999, 12, 31, 23, 59, 59, 999999), date(9999, 12, 31)),
    ]
    schema = "n BIGINT, text STRING, x DOUBLE, d DECIMAL(38, 10), moment TIMESTAMP, day DATE"
    with Delta(path).open("clicks") as sink:
        for number, row in enumerate(rows, 1):  # a file each, so that every bound is one of a single value
            sink.write(batch(number, number, number + 1), spark.createDataFrame([row], schema).drop(*dropped))
    found = {
        "n = 4611686018427387904": 1,
        "n > 4611686018427387904": 1,
        "n < 0": 1,
        "n IS NULL": 1,
        f"text = '{'a' * 500}z'": 1,
        "text = 'ä'": 1,
        f"text = '{'漢' * 3000}'": 1,
        "text > 'b'": 2,
        "text = ''": 1,
        "text IS NULL": 1,
        "x <= 0": 1,
        "x < 1": 1,
        "x > 3": 2,
        "x = 0": 1,
        "x = 1.5": 1,
        "x IS NULL": 1,
        "d = CAST('12345678901234567890.1234567891' AS DECIMAL(38, 10))": 1,
        "moment = TIMESTAMP '2024-01-01 00:00:00.999999+00'": 1,
        "moment >= TIMESTAMP '2024-01-01 00:00:00.999999+00' AND moment < TIMESTAMP '2024-01-01 00:00:01+00'": 1,
        "moment = TIMESTAMP '1960-01-01 00:00:00.000001+00'": 1,
        "day = DATE '0001-01-01'": 1,
        "day = DATE '9999-12-31'": 1,
        "day IS NULL": 2,
    }
    for condition, count in found.items():
        if condition.split()[0] in dropped:
            continue
        for answer in query_with_readers(path, f"SELECT count(*) AS c FROM t WHERE {condition}"):
            assert answer == [{"c": count}], (condition, answer)


def test_statistics_are_those_of_the_rows(spark, path):
    rows = [(5, "m", datetime(2024, 1, 1, 0, 0, 0, 1500)), (3, None, datetime(2024, 1, 1, 0, 0, 0, 2500))]
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 2), spark.createDataFrame(rows, "n BIGINT, text STRING, at TIMESTAMP").coalesce(1))
    actions = [json.loads(line) for line in (path / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    (stats,) = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
    assert stats == {
        "numRecords": 2,
        "minValues": {"n": 3, "text": "m", "at": "2024-01-01T00:00:00.001Z"},
        "maxValues": {"n": 5, "text": "m", "at": "2024-01-01T00:00:00.003Z"},
        "nullCount": {"n": 0, "text": 1, "at": 0},
    }


def test_a_file_states_bounds_of_every_column_or_of_none(spark, path):
    """Bounds of some would be right, and deltalake's Arrow dataset would hide the rows of the others."""
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 2), spark.sql("SELECT id, -0.0D AS x, true AS b FROM range(2)").coalesce(1))
        sink.write(batch(2, 2, 3), spark.sql("SELECT 2L AS id, double('NaN') AS x, false AS b"))
        sink.write(batch(3, 3, 4), spark.sql("SELECT 3L AS id, CAST(NULL AS DOUBLE) AS x, false AS b"))
    found = pa.table(DeltaTable(path).get_add_actions(flatten=True)).sort_by("path").to_pylist()
    assert [(add["min.id"], add["max.id"], add["min.x"], add["null_count.x"]) for add in found] == [
        (0, 1, 0.0, 0),
        (None, None, None, 0),
        (3, 3, None, 1),
    ]
    for condition, wanted in {
        "x <= 0": [0, 1],
        "x = 0": [0, 1],
        "b": [0, 1],
        "NOT b": [2, 3],
        "id > 1": [2, 3],
    }.items():
        for answer in query_with_readers(path, f"SELECT id FROM t WHERE {condition} ORDER BY id"):
            assert [row["id"] for row in answer] == wanted, condition


# Schemas


def schema(ddl):
    return StructType.fromDDL(ddl)


def made(path, ddl, **settings):
    DeltaTable.create(path, Schema.from_json(schema(ddl).json()), **settings)


@pytest.mark.parametrize("there", ["id BIGINT", "id BIGINT, text INT", "id BIGINT, text STRING, more INT NOT NULL"])
def test_rows_that_do_not_fit_are_refused_with_both_sides_before_anything_is_read(spark, path, there):
    made(path, there)
    with Delta(path).open("clicks") as sink, pytest.raises(ConfigError) as refused:
        sink.prepare(frame(spark, []).schema)
    assert "rows: id bigint, text string; table: id bigint" in refused.value.message
    assert DeltaTable(path).version() == 0


def test_columns_go_by_name_and_those_the_rows_lack_become_null(spark, path):
    made(path, "text STRING, more INT, id BIGINT")
    with Delta(path).open("clicks") as sink:
        sink.prepare(frame(spark, []).schema)
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    assert DeltaTable(path).to_pyarrow_table().to_pylist() == [{"text": "row 0", "more": None, "id": 0}]


def test_evolve_adds_columns_and_only_then(spark, path):
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    wider = frame(spark, numbered(1, 2)).selectExpr("*", "1.5D AS x", "TIMESTAMP_NTZ'2024-01-01 00:00:00' AS wall")
    with Delta(path).open("clicks") as sink, pytest.raises(ConfigError, match=r"lacks x, wall \(evolve=True"):
        sink.write(batch(2, 1, 2), wider)
    with Delta(path, evolve=True).open("clicks") as sink:
        sink.prepare(wider.schema)
        sink.write(batch(2, 1, 2), wider)
        sink.write(batch(3, 2, 3), frame(spark, numbered(2, 3)))
    rows = sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["x"]) for row in rows] == [(0, None), (1, 1.5), (2, None)]


def test_a_table_that_is_not_there_is_made_only_with_create(spark, path):
    with Delta(path, create=False).open("clicks") as sink:
        assert sink.last_batch() == 0
        with pytest.raises(ConfigError, match="create=False"):
            sink.prepare(frame(spark, []).schema)
    assert not path.exists()


def test_a_null_in_a_column_that_forbids_it_is_refused_with_nothing_committed(spark, path):
    made(path, "id BIGINT NOT NULL, text STRING NOT NULL")
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with pytest.raises(ConfigError, match="text is NOT NULL"):
            sink.write(batch(2, 1, 3), frame(spark, [(1, "one"), (2, None)]))
    assert rows_of(path) == Counter(numbered(0, 1))


def test_a_table_that_asks_more_of_a_writer_is_refused(spark, path):
    made(path, "id BIGINT, text STRING")
    DeltaTable(path).alter.add_constraint({"positive": "id > 0"})
    with Delta(path).open("clicks") as sink, pytest.raises(ConfigError, match="CHECK constraints"):
        sink.prepare(frame(spark, []).schema)


def test_another_partitioning_than_the_tables_is_refused(spark, path):
    made(path, "id BIGINT, text STRING", partition_by=["text"])
    with Delta(path, partition_by="id").open("clicks") as sink, pytest.raises(ConfigError, match="not by id"):
        sink.prepare(frame(spark, []).schema)
    with Delta(path).open("clicks") as sink, pytest.raises(ConfigError, match="partitioned by text"):
        sink.prepare(schema("id BIGINT"))
    with Delta(path).open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert rows_of(path) == Counter(numbered(0, 2))


@pytest.mark.parametrize(
    ("ddl", "settings", "message"),
    [
        ("id BIGINT, x DOUBLE", {"partition_by": "x"}, "got double"),
        ("id BIGINT, x DOUBLE", {"partition_by": "y"}, "no column of the rows"),
        ("id BIGINT", {"partition_by": "id"}, "a column outside"),
        ("`a b` BIGINT", {}, "column 'a b'"),
    ],
)
def test_a_table_that_cannot_be_is_refused(path, ddl, settings, message):
    with Delta(path, **settings).open("clicks") as sink, pytest.raises(ConfigError, match=message):
        sink.prepare(schema(ddl))
    assert not path.exists()


def test_a_path_and_a_name_that_cannot_be_are_refused_when_written_down(tmp_path):
    with pytest.raises(ConfigError, match="%"):
        Delta(tmp_path / "a%20b")
    with pytest.raises(ConfigError, match="app_id"):
        Delta(tmp_path / "rows", app_id="a/b")
    assert "secret" not in repr(Delta("s3://bucket/t", storage_options={"AWS_SECRET_ACCESS_KEY": "secret"}))


def test_a_folder_that_cannot_be_written_is_a_mistake_and_not_retried(spark, tmp_path):
    (tmp_path / "file").write_text("")
    with (
        Delta(tmp_path / "file" / "rows").open("clicks") as sink,
        pytest.raises(ConfigError, match="cannot be written"),
    ):
        sink.prepare(frame(spark, []).schema)


def test_a_version_that_somebody_else_wrote_under_our_name_is_respected(spark, path):
    """What delta-rs itself would accept: it does not compare the versions of a transaction identifier."""
    made(path, "id BIGINT, text STRING")
    table = DeltaTable(path)
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction("headrace:clicks", 9)]),
    )
    with Delta(path).open("clicks") as sink:
        assert sink.last_batch() == 9
        for number in (8, 9):
            with pytest.raises(OffsetConflict):
                sink.write(batch(number, 0, 1), frame(spark, numbered(0, 1)))


@pytest.mark.parametrize("name", ["two words", "naïve", "a+b"])
def test_a_path_may_have_odd_characters(spark, tmp_path, name):
    with Delta(tmp_path / name / "rows").open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 3, 4), frame(spark, numbered(3, 4)))
    assert rows_of(tmp_path / name / "rows") == Counter(numbered(0, 4))
    assert sorted(place.name for place in tmp_path.iterdir()) == [name]


def test_columns_that_differ_in_capitals_alone_are_refused(spark, path):
    rows = spark.createDataFrame([(1, "x")], "id BIGINT, text STRING").withColumnRenamed("text", "ID")
    with Delta(path).open("clicks") as sink, pytest.raises(ConfigError, match="two columns named id"):
        sink.prepare(rows.schema)

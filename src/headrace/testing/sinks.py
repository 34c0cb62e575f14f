"""The contracts of sinks, as tests. Subclass the contract of your sink, and implement `new_sink` and `stored`.

class TestMySink(IdempotentSinkContract):
    def new_sink(self):
        return MySink(...)           # not opened; each call returns a new handle to the same target
    def stored(self):
        return [...]                 # all stored rows as (id, text), in any order

The fixture `spark` comes from `headrace.testing.fixtures`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from headrace.core.sink import IdempotentSink, Sink, TransactionalSink
from headrace.core.state import AuditEntry
from headrace.errors import BadRecord, ConfigError, OffsetConflict
from headrace.testing.stores import OffsetStoreContract
from headrace.types import Batch, Progress, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

AT = TopicPartition("clicks", 0)
SCHEMA = (
    "id BIGINT, text STRING, _kafka STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP,"
    " key: BINARY, headers: ARRAY<STRUCT<key: STRING, value: BINARY>>, tombstone: BOOLEAN>"
)
Rows = list[tuple[int, str | None]]


def batch(number: int, start: int, until: int) -> Batch:
    return Batch(number, (Range(AT, start, until),), {"clicks": "id-1"})


def frame(spark: SparkSession, rows: Sequence[tuple[int, str | None]]) -> DataFrame:
    """Rows as a transform returns them: the columns `id` and `text`, and the origin of each row."""
    return spark.createDataFrame(
        [(number, text, ("clicks", 0, number, None, None, None, False)) for number, text in rows], SCHEMA
    )


def upserts(spark: SparkSession, *rows: tuple[int, int | None, str | None]) -> DataFrame:
    """Rows as (offset, id, text). If the text is None, the record is a tombstone with the id as its key."""
    records = [
        (None, None, ("clicks", 0, offset, None, str(number).encode(), None, True))
        if text is None
        else (number, text, ("clicks", 0, offset, None, None, None, False))
        for offset, number, text in rows
    ]
    return spark.createDataFrame(records, SCHEMA)


def numbered(start: int, until: int) -> Rows:
    return [(number, f"row {number}") for number in range(start, until)]


class SinkContract(ABC):
    """The contract of all sinks."""

    kind: ClassVar[type] = Sink

    @abstractmethod
    def new_sink(self) -> Any:
        """A handle to the target under test, not opened yet. All handles of one test have the same rows."""

    @abstractmethod
    def stored(self) -> Sequence[tuple[int, str | None]]:
        """All rows in the sink, including duplicates, as (id, text)."""

    @pytest.fixture
    def pipeline(self) -> str:
        return f"contract-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def sink(self, pipeline: str) -> Iterator[Any]:
        with self.new_sink().open(pipeline) as opened:
            yield opened

    def expect(self, sink: Sink, rows: Rows) -> None:
        """Compare as multisets, with the sink closed: some sinks are locked while they are open."""
        sink.close()
        assert Counter(self.stored()) == Counter(rows)

    def test_the_sink_has_the_type_of_its_contract(self) -> None:
        assert isinstance(self.new_sink(), self.kind)

    def test_its_identity_is_one_line_and_does_not_depend_on_the_repr(self) -> None:
        one, other = self.new_sink(), self.new_sink()
        shown = type("Shown", (type(other),), {"__repr__": lambda self: "otherwise"})
        other.__class__ = shown
        assert one.identity == other.identity
        assert one.identity.isprintable()
        assert one.identity.strip()
        assert not [secret for secret in one.secrets() if secret in one.identity]

    @pytest.mark.parametrize("cached", [False, True])
    def test_it_describes_a_write_of_such_rows_without_being_opened(self, spark: SparkSession, cached: bool) -> None:
        described = self.new_sink().describe_write(frame(spark, []), cached=cached)
        assert described is None or (described.isprintable() and described.strip())

    def test_every_row_of_every_batch_is_stored(self, sink: Any, spark: SparkSession) -> None:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        self.expect(sink, numbered(0, 5))

    def test_a_batch_without_rows_is_stored_as_nothing(self, sink: Any, spark: SparkSession) -> None:
        sink.write(batch(1, 0, 3), frame(spark, []))
        sink.write(batch(2, 3, 4), frame(spark, numbered(3, 4)))
        self.expect(sink, numbered(3, 4))

    def test_nulls_and_every_script_come_through(self, sink: Any, spark: SparkSession) -> None:
        rows: Rows = [(0, None), (1, ""), (2, "naïve ✓ 漢字 😀"), (3, "a'b\"c\\d\te\nf"), (2**62, "long")]
        sink.write(batch(1, 0, 5), frame(spark, rows))
        self.expect(sink, rows)

    def test_rows_that_are_equal_are_stored_as_often_as_they_came(self, sink: Any, spark: SparkSession) -> None:
        sink.write(batch(1, 0, 2), frame(spark, [(7, "same")]).union(frame(spark, [(7, "same")])))
        self.expect(sink, [(7, "same"), (7, "same")])

    def test_rows_without_their_origin_are_stored_too(self, sink: Any, spark: SparkSession) -> None:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)).select("id", "text"))
        self.expect(sink, numbered(0, 2))

    def test_what_was_written_is_there_for_the_next_run(self, sink: Any, spark: SparkSession, pipeline: str) -> None:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        sink.close()
        with self.new_sink().open(pipeline) as later:
            later.write(batch(2, 2, 4), frame(spark, numbered(2, 4)))
            self.expect(later, numbered(0, 4))

    def test_a_failing_row_is_an_error_and_not_a_success(self, sink: Any, spark: SparkSession) -> None:
        broken = frame(spark, numbered(0, 3)).selectExpr(
            "IF(id = 2, raise_error('broken'), id) AS id", "text", "_kafka"
        )
        with pytest.raises(Exception, match="broken"):
            sink.write(batch(1, 0, 3), broken)

    def test_closing_twice_is_harmless(self, sink: Any) -> None:
        sink.close()
        sink.close()


class IdempotentSinkContract(SinkContract):
    """Writing a batch twice has the same result as writing it once."""

    kind: ClassVar[type] = IdempotentSink
    appends: ClassVar[bool] = True
    """Whether records that are read again after the offsets were moved back are stored again."""

    @pytest.mark.parametrize("until", [3, 2])
    def test_records_read_again_after_moving_offsets_back_are_stored_again_by_appending_sinks(
        self, sink: Any, spark: SparkSession, until: int
    ) -> None:
        """With the same ranges as before, or with different ones."""
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        for _ in range(2):
            sink.write(replace(batch(2, 0, until), epoch=1), frame(spark, numbered(0, until)))
        self.expect(sink, numbered(0, 3) + (numbered(0, until) if self.appends else []))

    def test_a_repeated_batch_leaves_the_rows_as_they_are(self, sink: Any, spark: SparkSession) -> None:
        for _ in range(3):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        self.expect(sink, numbered(0, 3))

    def test_a_batch_repeated_by_the_next_run_leaves_the_rows_as_they_are(
        self, sink: Any, spark: SparkSession, pipeline: str
    ) -> None:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.close()
        with self.new_sink().open(pipeline) as later:
            later.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
            later.write(batch(2, 3, 4), frame(spark, numbered(3, 4)))
            self.expect(later, numbered(0, 4))

    def test_a_batch_that_failed_half_way_is_whole_after_the_repeat(self, sink: Any, spark: SparkSession) -> None:
        broken = frame(spark, numbered(0, 3)).selectExpr(
            "IF(id = 2, raise_error('broken'), id) AS id", "text", "_kafka"
        )
        with pytest.raises(Exception, match="broken"):
            sink.write(batch(1, 0, 3), broken)
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        self.expect(sink, numbered(0, 3))

    def test_two_runs_writing_the_same_batch_at_once_store_it_once(
        self, sink: Any, spark: SparkSession, pipeline: str
    ) -> None:
        with self.new_sink().open(pipeline) as zombie:
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
            zombie.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        self.expect(sink, numbered(0, 3))


class KeyedSinkContract(IdempotentSinkContract):
    """One value per key: the key of the record, or a business key whose newest value survives late writes."""

    appends = False

    @abstractmethod
    def new_upserting_sink(self) -> Any:
        """A handle to another target, not opened yet, whose rows are keyed by `id`."""

    @abstractmethod
    def upserted(self) -> Sequence[tuple[int, str | None]]:
        """All rows in it, as (id, text), without deleted ones."""

    @pytest.fixture
    def upserting(self, pipeline: str) -> Iterator[Any]:
        with self.new_upserting_sink().open(pipeline) as opened:
            yield opened

    def expect_upserted(self, rows: Rows) -> None:
        assert Counter(self.upserted()) == Counter(rows)

    def test_rows_that_are_equal_are_stored_as_often_as_they_came(self, sink: Any, spark: SparkSession) -> None:
        """Not for keyed sinks: two rows of one record would become one, so they are refused."""
        with pytest.raises(ConfigError, match="several rows come from one record"):
            sink.write(batch(1, 0, 2), frame(spark, [(7, "same")]).union(frame(spark, [(7, "same")])))

    def test_several_rows_of_one_record_without_a_key_are_refused(self, sink: Any, spark: SparkSession) -> None:
        twice = frame(spark, [(7, "a")]).selectExpr("explode(array(id, id + 1)) AS id", "text", "_kafka")
        with pytest.raises(ConfigError, match="several rows come from one record"):
            sink.write(batch(1, 0, 2), twice)

    def test_rows_without_their_origin_are_stored_too(self, sink: Any, spark: SparkSession) -> None:
        """Not for keyed sinks: such rows have no key."""
        with pytest.raises(ConfigError, match="_kafka"):
            sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)).select("id", "text"))

    def test_of_several_rows_with_one_key_the_newest_stays(self, upserting: Any, spark: SparkSession) -> None:
        upserting.write(batch(1, 0, 3), upserts(spark, (0, 1, "a"), (1, 2, "b"), (2, 1, "c")))
        upserting.write(batch(2, 3, 4), upserts(spark, (3, 2, "d")))
        self.expect_upserted([(1, "c"), (2, "d")])

    def test_an_older_value_never_takes_the_place_of_a_newer_one(
        self, upserting: Any, spark: SparkSession, pipeline: str
    ) -> None:
        """In a replay, and in a run that resumes after its successor wrote."""
        with self.new_upserting_sink().open(pipeline) as zombie:
            upserting.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, 2, "b")))
            upserting.write(batch(2, 2, 3), upserts(spark, (2, 1, "newer")))
            zombie.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, 2, "b")))
        self.expect_upserted([(1, "newer"), (2, "b")])

    def test_a_tombstone_deletes_and_an_older_value_does_not_come_back(
        self, upserting: Any, spark: SparkSession, pipeline: str
    ) -> None:
        with self.new_upserting_sink().open(pipeline) as zombie:
            upserting.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, 2, "b")))
            upserting.write(batch(2, 2, 4), upserts(spark, (2, 1, None), (3, 3, None)))
            zombie.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, 2, "b")))
        self.expect_upserted([(2, "b")])
        upserting.write(batch(3, 4, 5), upserts(spark, (4, 1, "again")))
        self.expect_upserted([(1, "again"), (2, "b")])

    def test_a_recreated_topic_starts_at_offset_0_and_its_values_count(
        self, upserting: Any, spark: SparkSession
    ) -> None:
        upserting.write(batch(1, 7, 9), upserts(spark, (7, 1, "a"), (8, 2, "b")))
        recreated = replace(batch(2, 0, 1), topic_ids={"clicks": "id-2"})
        upserting.write(recreated, upserts(spark, (0, 1, "new")))
        self.expect_upserted([(1, "new"), (2, "b")])

    def test_a_null_in_the_key_is_a_bad_record(self, upserting: Any, spark: SparkSession) -> None:
        with pytest.raises(BadRecord, match=r"(?s)clicks\[0\] offset 1.*NULL"):
            upserting.write(batch(1, 0, 2), upserts(spark, (0, 1, "a"), (1, None, "b")))

    def test_a_value_that_python_cannot_represent_is_a_bad_record(self, sink: Any, spark: SparkSession) -> None:
        far = frame(spark, numbered(0, 3)).selectExpr("id", "text", "DATE'+10000-01-01' AS day", "_kafka")
        with pytest.raises((BadRecord, ConfigError), match=r"(?s)clicks\[0\] offset 0|day"):
            sink.write(batch(1, 0, 3), far)

    def test_rows_with_a_key_need_no_origin(self, upserting: Any, spark: SparkSession) -> None:
        upserting.write(batch(1, 0, 2), frame(spark, numbered(0, 2)).select("id", "text"))
        upserting.write(batch(2, 2, 3), frame(spark, [(1, "later")]).select("id", "text"))
        self.expect_upserted([(0, "row 0"), (1, "later")])


class TransactionalSinkContract(SinkContract, OffsetStoreContract):
    """Rows and offsets are stored together or not at all. The sink's store must meet the contract of stores as well."""

    kind: ClassVar[type] = TransactionalSink

    def new_store(self) -> Any:
        return self.new_sink().offsets

    def test_its_store_is_one_object_that_is_open_while_the_sink_is(self, sink: Any) -> None:
        assert sink.offsets is sink.offsets
        assert sink.offsets.load() == Progress()

    def test_records_read_again_after_moving_offsets_back_are_stored_again(
        self, sink: Any, spark: SparkSession
    ) -> None:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.offsets.set_offsets(sink.offsets.load(), {AT: 0}, AuditEntry(1.0, "operator", "reset"))
        again = replace(batch(2, 0, 3), epoch=sink.offsets.load().epoch)
        sink.write(again, frame(spark, numbered(0, 3)))
        with pytest.raises(OffsetConflict):
            sink.write(again, frame(spark, numbered(0, 3)))
        self.expect(sink, numbered(0, 3) * 2)

    def test_a_write_moves_the_offsets_with_the_rows(self, sink: Any, spark: SparkSession, pipeline: str) -> None:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        assert sink.offsets.load().offsets == {AT: 3}
        sink.close()
        assert self.reload(pipeline).last_batch == 1

    def test_a_batch_that_is_already_stored_is_refused_with_nothing_written(
        self, sink: Any, spark: SparkSession
    ) -> None:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        with pytest.raises(OffsetConflict):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        assert sink.offsets.load().offsets == {AT: 3}
        self.expect(sink, numbered(0, 3))

    def test_a_zombie_that_wakes_after_its_successor_wrote_changes_nothing(
        self, sink: Any, spark: SparkSession, pipeline: str
    ) -> None:
        with self.new_sink().open(pipeline) as successor:
            successor.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
            with pytest.raises(OffsetConflict):
                sink.write(batch(1, 0, 5), frame(spark, numbered(0, 5)))
        self.expect(sink, numbered(0, 3))

    def test_a_write_that_fails_moves_neither_rows_nor_offsets(self, sink: Any, spark: SparkSession) -> None:
        broken = frame(spark, numbered(0, 3)).selectExpr(
            "IF(id = 2, raise_error('broken'), id) AS id", "text", "_kafka"
        )
        with pytest.raises(Exception, match="broken"):
            sink.write(batch(1, 0, 3), broken)
        assert sink.offsets.load().offsets == {}
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        self.expect(sink, numbered(0, 3))

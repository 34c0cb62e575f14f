"""The rows of a task that a sink refuses."""

import pyarrow as pa
import pytest

from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.core.dead_letters import RecordId
from headrace.errors import BadRecord
from headrace.spark.origin_columns import ORIGIN_COLUMNS

FIRST, SECOND = RecordId("clicks", 0, 7), RecordId("clicks", 1, 8)


def test_rows_are_refused_up_to_the_limit():
    rejected = RejectedRows("the sink", 2)
    rejected.add(FIRST, "too long")
    rejected.add(SECOND, "no user")
    assert rejected.rows == [(FIRST, "too long"), (SECOND, "no user")]
    with pytest.raises(BadRecord, match="too long"):
        rejected.add(FIRST, "once more")


@pytest.mark.parametrize(("limit", "origin"), [(None, FIRST), (0, FIRST), (5, None)])
def test_a_row_that_may_not_be_refused_ends_the_batch_with_its_reason(limit, origin):
    with pytest.raises(BadRecord, match="too long"):
        RejectedRows("the sink", limit).add(origin, "too long")


def test_a_reason_is_shortened():
    rejected = RejectedRows("the sink", 1)
    rejected.add(FIRST, "x" * 1_000_000)
    assert len(rejected.rows[0][1]) < 20_000


def rows(ids, **columns):
    origins = zip(*((one.topic, one.partition, one.offset) if one else (None, 0, 0) for one in ids), strict=True)
    named = dict(zip(ORIGIN_COLUMNS, map(list, origins), strict=True))
    return pa.RecordBatch.from_pydict({**{name: pa.array(made) for name, made in named.items()}, **columns})


def test_each_row_comes_with_its_record():
    accepted = list(RejectedRows("the sink", 1).accept(rows([FIRST, None, SECOND], n=pa.array([1, 2, 3]))))
    assert accepted == [(FIRST, {"n": 1}), (None, {"n": 2}), (SECOND, {"n": 3})]


@pytest.mark.parametrize("bad", range(5))
def test_a_row_that_python_has_no_value_for_is_refused_alone(bad):
    ids = [RecordId("clicks", 0, number) for number in range(5)]
    days = pa.array([5_000_000 if number == bad else number for number in range(5)], pa.int32()).cast(pa.date32())
    rejected = RejectedRows("the sink", 1)
    assert [origin for origin, _ in rejected.accept(rows(ids, day=days))] == [one for one in ids if one.offset != bad]
    ((origin, reason),) = rejected.rows
    assert origin == ids[bad]
    assert reason.startswith("it cannot be read: ")

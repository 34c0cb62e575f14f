"""Which transforms cannot be exactly-once with which sinks: the decision, without Spark."""

import functools
from pathlib import Path

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.core import transforms
from headrace.engine.lineage import Lineage
from headrace.engine.replay_check import refuse_volatile_keys, replay_warnings
from headrace.errors import ConfigError

CLOCK = Lineage(columns={"k": "now()"}, rows=["rand()"], per_batch=["limit"])


def pipeline(sink, guarantee="exactly-once"):
    own = isinstance(sink, sinks.TransactionalSink)
    return hr.Pipeline(
        name="clicks",
        source=hr.Kafka("localhost:9092", topics=["clicks"]),
        sink=sink,
        guarantee=guarantee,
        offsets=None if own else stores.Memory(),
    )


REFUSED = {
    "a key": lambda: sinks.Mongo("mongodb://h/app", "clicks", key=("user", "k")),
    "a member of a set": lambda: sinks.Redis("redis://h/0", "clicks", structure="set", member="k"),
    "a set of whole rows": lambda: sinks.Redis("redis://h/0", "clicks", structure="set"),
    "a partition column": lambda: sinks.Parquet("out", partition_by=["day", "k"]),
    "an effect by key": lambda: sinks.Foreach(print, once=stores.SQLite("x.db"), key="k"),
    "one of several sinks": lambda: sinks.Fanout([sinks.DuckDB("x.duckdb", "t"), sinks.Hive("t", partition_by="k")]),
}
TAKEN = {
    "another key": lambda: sinks.Mongo("mongodb://h/app", "clicks", key="user"),
    "the record's own key": lambda: sinks.Mongo("mongodb://h/app", "clicks"),
    "a list by offset": lambda: sinks.Redis("redis://h/0", "clicks", structure="list"),
    "no partition column": lambda: sinks.Parquet("out"),
    "rows and offsets in one transaction": lambda: sinks.DuckDB("x.duckdb", "t", key="k", mode="upsert"),
    "a transaction within several sinks": lambda: sinks.Fanout(
        [sinks.DuckDB("x.duckdb", "t", key="k", mode="upsert"), sinks.Parquet("out")]
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_volatile_key_is_refused_under_exactly_once(name):
    sink = REFUSED[name]()
    guarantee = "exactly-once" if isinstance(sink, sinks.IdempotentSink) else "at-least-once"
    if guarantee == "at-least-once":
        assert sink.identity_columns == ("k",)
        return
    with pytest.raises(ConfigError, match=r"now\(\) gives column k another value each time"):
        refuse_volatile_keys(pipeline(sink), CLOCK)
    refuse_volatile_keys(pipeline(sink, "at-least-once"), CLOCK)


@pytest.mark.parametrize("name", TAKEN)
def test_a_volatile_column_that_no_replay_rests_on_is_taken(name):
    refuse_volatile_keys(pipeline(TAKEN[name]()), CLOCK)


def test_everything_volatile_is_noted():
    column, rows, batch = replay_warnings(CLOCK)
    assert column == "column k has another value each time a batch is read: now()"
    assert rows == "a batch that is repeated may have other rows: rand()"
    assert batch.startswith("limit sees one batch only")


def two(rows, day):
    return rows


class Method:
    def two(self, rows, day):
        return rows

    def one(self, rows):
        return rows


@pytest.mark.parametrize("wrong", [two, Method().two, lambda: None])
def test_a_transform_that_cannot_take_the_rows_alone_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected one argument, the rows") as refused:
        transforms.refuse_wrong_arguments(wrong)
    assert f"{Path(__file__).name}:" in refused.value.message


@pytest.mark.parametrize(
    "right",
    [Method().one, lambda rows, day=None: rows, functools.partial(two, day=1), print, len],
)
def test_any_function_of_the_rows_is_taken(right):
    transforms.refuse_wrong_arguments(right)


@pytest.mark.parametrize(
    ("error", "cannot"),
    [
        (NameError("x"), True),
        (ModuleNotFoundError("x"), True),
        (TypeError("where() missing 1 required positional argument"), True),
        (AttributeError("'DataFrame' object has no attribute 'wear'"), True),
        (TypeError("'NoneType' object is not subscriptable"), False),
        (AttributeError("'NoneType' object has no attribute 'id'"), False),
        (IndexError("list index out of range"), False),
        (ZeroDivisionError("division by zero"), False),
    ],
)
def test_a_programming_error_is_distinguished_from_missing_rows(error, cannot):
    assert transforms.cannot_run(error) is cannot

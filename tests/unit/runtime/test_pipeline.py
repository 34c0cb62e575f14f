"""What is refused when a pipeline is built: each with what is wrong and what to write instead."""

import dataclasses
from contextlib import nullcontext

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.core.delivery import Step
from headrace.errors import ConfigError, UnsupportedGuarantee


class Plain(sinks.Sink):
    def __repr__(self):
        return "Plain()"

    def write(self, batch, rows):
        pass


class Idempotent(sinks.IdempotentSink):
    identity = "Idempotent()"

    def write(self, batch, rows):
        pass


SOURCE = hr.Kafka("localhost:9092", topics=["clicks"])


def pipeline(**changes):
    arguments = {"name": "clicks", "source": SOURCE, "sink": Plain(), "guarantee": "at-least-once", **changes}
    return hr.Pipeline(**arguments)


def refused(kind=ConfigError, **changes):
    with pytest.raises(kind) as caught:
        pipeline(**changes)
    return caught.value


@pytest.mark.parametrize("guarantee", ["exactly once", "at_least_once", "", None, 1, []])
def test_an_unknown_guarantee_is_refused_with_the_known_ones(guarantee):
    error = refused(guarantee=guarantee)
    expected = "one of at-most-once, at-least-once, exactly-once"
    assert error.message == f"clicks: guarantee: expected {expected}, got {guarantee!r}"
    nearest = {"exactly once": "did you mean exactly-once?", "at_least_once": "did you mean at-least-once?"}
    example = 'guarantee="at-least-once"'
    assert error.hint == (nearest.get(guarantee, example) if isinstance(guarantee, str) else example)


def test_a_plain_sink_under_exactly_once_is_refused_and_the_sinks_that_would_do_are_named():
    error = refused(UnsupportedGuarantee, guarantee="exactly-once")
    assert "Plain cannot give exactly-once" in error.message
    assert "sinks.Postgres" in error.hint
    assert "sinks.Parquet" in error.hint
    assert "at-least-once" in error.hint


@pytest.mark.parametrize("sink", [sinks.Console(), sinks.Memory()], ids=repr)
def test_the_shipped_plain_sinks_cannot_give_exactly_once(sink):
    assert type(sink).__name__ in refused(UnsupportedGuarantee, sink=sink, guarantee="exactly-once").message


@pytest.mark.parametrize(
    ("sink", "guarantee", "steps"),
    [
        (Plain(), "at-most-once", "commit write"),
        (Plain(), "at-least-once", "begin write commit"),
        (Idempotent(), "at-most-once", "commit write"),
        (Idempotent(), "at-least-once", "begin write commit"),
        (Idempotent(), "exactly-once", "begin write commit"),
        (sinks.DuckDB("x.duckdb", table="t"), "at-most-once", "write"),
        (sinks.DuckDB("x.duckdb", table="t"), "at-least-once", "write"),
        (sinks.DuckDB("x.duckdb", table="t"), "exactly-once", "write"),
    ],
    ids=str,
)
def test_the_steps_are_those_of_the_table_of_guarantees(sink, guarantee, steps):
    built = pipeline(sink=sink, guarantee=guarantee)
    assert built.steps == tuple(Step(step) for step in steps.split())
    assert built.guaranteed == guarantee


@pytest.mark.parametrize(
    ("argument", "value", "example"),
    [
        ("source", "localhost:9092", 'hr.Kafka("localhost:9092", topics=["clicks"])'),
        ("sink", "app.duckdb", 'sinks.DuckDB("app.duckdb", table="clicks")'),
        ("sink", sinks.DuckDB, 'sinks.DuckDB("app.duckdb", table="clicks")'),
        ("offsets", "offsets.db", 'stores.SQLite("offsets.db")'),
        ("limits", 1000, "hr.Limits(max_records=100_000)"),
        ("transform", "SELECT 1", "lambda rows: rows.where(…)"),
        ("engine", "turbo", 'engine="direct"'),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_with_an_example(argument, value, example):
    error = refused(**{argument: value})
    assert error.message.startswith("clicks: ")
    assert argument in error.message
    assert error.hint == example


@pytest.mark.parametrize("name", ["", "two words", "a/b", "../up", ".hidden", "é", "x" * 101, 5, None])
def test_a_name_that_is_no_plain_word_is_refused(name):
    error = refused(name=name)
    assert repr(name) in error.message
    assert error.hint == 'name="clicks"'


@pytest.mark.parametrize("name", ["clicks", "0", "a.b-c_D9", "x" * 100])
def test_plain_words_are_names(name):
    assert pipeline(name=name).name == name


def test_a_transactional_sink_with_a_second_store_is_refused():
    error = refused(sink=sinks.DuckDB("x.duckdb", table="t"), offsets=stores.Memory(), guarantee="exactly-once")
    assert "DuckDB keeps the offsets with the rows" in error.message
    assert error.hint == "leave offsets= out"


def test_the_own_store_of_a_transactional_sink_is_accepted():
    sink = sinks.DuckDB("x.duckdb", table="t")
    assert pipeline(sink=sink, offsets=sink.offsets, guarantee="exactly-once").store is sink.offsets


def test_offsets_are_kept_by_the_transactional_sink_or_else_in_the_state_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    sink = sinks.DuckDB("x.duckdb", table="t")
    assert pipeline(sink=sink, guarantee="exactly-once").store is sink.offsets
    assert repr(pipeline().store) == f"stores.SQLite({str(tmp_path / 'offsets.db')!r})"
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline().name = "other"


def test_building_a_pipeline_touches_no_disk(tmp_path):
    pipeline(sink=sinks.DuckDB(tmp_path / "a" / "x.duckdb", table="t"), guarantee="exactly-once")
    pipeline(sink=sinks.Parquet(tmp_path / "b"), offsets=stores.SQLite(tmp_path / "c" / "o.db"))
    assert list(tmp_path.iterdir()) == []


# several topics


SEVERAL = hr.Kafka("localhost:9092", topics=["clicks", "views"])


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (sinks.Cassandra("h", "app.t"), "rows of 2 topics cannot be distinguished by partition, offset"),
        (sinks.Redis("redis://h", "t", key=("partition", "offset")), "cannot be distinguished"),
        (sinks.Cassandra("h", "app.t", key="user"), "offsets of two topics do not tell"),
        (sinks.HBase("h:9090", "t", key="user"), "offsets of two topics do not tell"),
        (sinks.Fanout([Idempotent(), sinks.HBase("h:9090", "t", key="user")]), "offsets of two topics do not tell"),
    ],
    ids=repr,
)
def test_a_sink_that_cannot_tell_rows_of_two_topics_apart_is_refused_for_several(sink, said):
    assert said in refused(source=SEVERAL, sink=sink).message
    pipeline(sink=sink)


@pytest.mark.parametrize(
    "sink",
    [
        Plain(),
        sinks.Cassandra("h", "app.t", key=("topic", "partition", "offset")),
        sinks.HBase("h:9090", "t"),
        sinks.Redis("redis://h", "t", key="user"),
    ],
    ids=repr,
)
def test_a_sink_that_can_is_accepted(sink):
    pipeline(source=SEVERAL, sink=sink)


# the source


def refused_source(*arguments, **named):
    with pytest.raises(ConfigError) as caught:
        hr.Kafka(*arguments, **named)
    return caught.value


def test_one_string_for_topics_is_refused_with_the_list_that_was_meant():
    error = refused_source("localhost:9092", topics="clicks")
    assert "one string" in error.message
    assert error.hint == "topics=['clicks']"


@pytest.mark.parametrize("topics", [[], ["a b"], [""], ["."], [".."], ["x" * 250], [5], [None]])
def test_topics_that_kafka_could_not_have_are_refused(topics):
    assert refused_source("localhost:9092", topics=topics).exit_code == 2


@pytest.mark.parametrize("topics", [5, None, True])
def test_topics_that_are_no_list_are_refused(topics):
    assert "topics" in refused_source("localhost:9092", topics=topics).message


def test_a_topic_named_twice_is_read_once():
    assert hr.Kafka("k:9092", topics=["a", "b", "a"]).topics == ("a", "b")


@pytest.mark.parametrize("bootstrap", ["", "  ", None, 9092])
def test_a_source_without_a_broker_is_refused(bootstrap):
    assert "bootstrap" in refused_source(bootstrap, topics=["clicks"]).message


@pytest.mark.parametrize(
    "option",
    [
        "bootstrap.servers",
        "group.id",
        "key.deserializer",
        "value.deserializer",
        "enable.auto.commit",
        "auto.offset.reset",
    ],
)
def test_an_option_that_headrace_owns_is_refused_and_its_place_is_named(option):
    error = refused_source("localhost:9092", topics=["clicks"], options={option: "x"})
    assert f"the option {option} is set by Headrace: use " in error.message


@pytest.mark.parametrize("options", ["security.protocol=SSL", 5, ["security.protocol"]])
def test_options_that_are_no_mapping_are_refused(options):
    assert "options" in refused_source("localhost:9092", topics=["clicks"], options=options).message


def test_other_options_pass_untouched_and_as_text():
    source = hr.Kafka("k:9092", topics=["a"], options={"security.protocol": "SSL", "fetch.max.bytes": 100})
    assert source.options == {"security.protocol": "SSL", "fetch.max.bytes": "100"}


def test_a_password_in_the_options_is_not_shown():
    source = hr.Kafka("k:9092", topics=["a"], options={"sasl.password": "geheim"})
    assert "geheim" not in repr(source)
    assert "geheim" not in repr(pipeline(source=source))


def test_an_unknown_start_is_refused():
    error = refused_source("localhost:9092", topics=["clicks"], start="now")
    assert error.message == "start: expected a position or a time, got 'now'"
    assert error.hint == 'start="earliest", "latest", "stored", a time with its zone, or {"clicks": {0: 1200}}'


def test_a_format_that_is_none_is_refused_with_an_example():
    error = refused_source("localhost:9092", topics=["clicks"], format="json")
    assert "format='json' is not a format" in error.message
    assert "hr.Json(" in error.hint


# the sinks


@pytest.mark.parametrize("table", ["", "a.", ".b", None, 5])
def test_a_table_without_a_name_is_refused(table):
    with pytest.raises(ConfigError, match="table: expected the name of a table"):
        sinks.DuckDB("x.duckdb", table=table)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasbs", "oss", "unheard"])
def test_parquet_in_an_object_store_is_refused_with_the_sinks_that_can_write_there(scheme):
    with pytest.raises(
        ConfigError, match=f"expected a local path or hdfs://, got {scheme}://.*atomic rename"
    ) as refused:
        sinks.Parquet(f"{scheme}://bucket/clicks")
    assert "sinks.Delta or sinks.Iceberg" in refused.value.hint


def test_parquet_on_hdfs_is_taken_with_its_scheme():
    assert repr(sinks.Parquet("hdfs://nn:8020/clicks/", partition_by="day")) == (
        "sinks.Parquet('hdfs://nn:8020/clicks', partition_by=['day'])"
    )


@pytest.mark.parametrize("limit", [0, -1, "20"])
def test_a_console_of_no_rows_is_refused(limit):
    with pytest.raises(ConfigError, match="expected limit= of at least 1"):
        sinks.Console(limit=limit)


def test_what_is_held_back_longer_than_it_may_lag_is_refused():
    source = hr.Kafka("localhost:9092", topics=["clicks"], max_lag="30s")
    for limits, refused in ((hr.Limits(min_records=9), True), (hr.Limits(min_records=9, max_delay=5), False)):
        with pytest.raises(ConfigError, match=r"max_lag=0:00:30 would skip") if refused else nullcontext():
            hr.Pipeline(
                name="clicks",
                source=source,
                sink=sinks.Memory(),
                guarantee="at-least-once",
                offsets=stores.Memory(),
                limits=limits,
            )


# the group that mirrors the offsets


@pytest.mark.parametrize("group", ["", True, 7])
def test_what_is_not_the_name_of_a_group_is_refused_as_a_mirror(group):
    error = refused(mirror_group=group)
    assert error.message == f"clicks: mirror_group={group!r}: expected the name of a consumer group"
    assert error.hint == 'mirror_group="clicks-lag"'


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({"offsets": stores.Kafka("localhost:9092")}, "clicks"),
        ({"offsets": stores.Kafka("localhost:9092", group="kept")}, "kept"),
        ({"sink": sinks.Kafka("localhost:9092", "clean")}, "clicks"),
    ],
)
def test_a_mirror_into_the_group_that_keeps_the_offsets_is_refused(changes, group):
    assert "would commit over them" in refused(**changes, mirror_group=group).message
    assert pipeline(**changes, mirror_group="shown").mirror_group == "shown"

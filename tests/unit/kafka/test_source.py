"""What a source may be told, and what it refuses at once."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.connectors.kafka.sink_offsets import SinkOffsets
from headrace.errors import ConfigError
from headrace.kafka.source_set import sources_by_name
from headrace.kafka.subscription import Partitions, Pattern, Topics
from headrace.types import TopicPartition
from support.project import ROOT

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def source(**changes):
    return hr.Kafka("k:9092", **({"topics": ["clicks"]} | changes))


@pytest.mark.parametrize(
    "both",
    [
        {"topics": ["a"], "pattern": "a.*"},
        {"topics": ["a"], "partitions": {"a": [0]}},
        {"pattern": "a", "partitions": {"a": [0]}},
        {"topics": None},
    ],
)
def test_topics_and_patterns_exclude_each_other(both):
    with pytest.raises(ConfigError, match="expected topics or pattern or partitions"):
        source(**both)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topics": None, "pattern": "("}, "expected a regular expression"),
        ({"topics": None, "pattern": ""}, "expected a regular expression"),
        ({"topics": None, "partitions": {}}, "expected topics with their partitions"),
        ({"topics": None, "partitions": {"a": 0}}, "expected a list of numbers"),
        ({"topics": None, "partitions": {"a": [-1]}}, "expected a whole number, at least 0"),
        ({"topics": None, "partitions": {"a b": [0]}}, "not a valid topic name"),
        ({"start": datetime(2026, 11, 1)}, "has no time zone"),
        ({"start": {"clicks": {"first": 0}}}, "expected the number of a partition"),
        ({"start": {"clicks": {0: -1}}}, "expected an offset"),
        ({"start": {"clicks": 3}}, "expected an offset"),
        ({"start": 5}, "expected a position or a time, got 5"),
        ({"start": "stored", "resume": False}, "contradicts resume=False"),
        ({"resume": "no"}, "expected True or False"),
        ({"split": 1}, "expected True or False"),
        ({"max_lag": "soon"}, "expected a number of records or a duration"),
        ({"max_lag": -1}, "expected a number of records or a duration"),
        ({"refresh": 0}, "expected a number of seconds above 0"),
        ({"cluster": "a b"}, "expected a name"),
        ({"location": "anywhere"}, "expected consistent, brokers or"),
        ({"location": {"clicks": {0: ""}}}, "expected a host for each"),
        ({"key_format": "text"}, "is not a format"),
    ],
)
def test_what_cannot_work_is_refused_when_the_source_is_made(wrong, message):
    with pytest.raises(ConfigError, match=message):
        source(**wrong)


def test_ways_to_say_where_to_start():
    assert source(start="2026-11-01T12:00:00+02:00").start == datetime(2026, 11, 1, 10, tzinfo=UTC)
    assert source(start={"clicks": {"0": 5, 1: 6}}).start == {A: 5, B: 6}
    assert source(start={A: 5}).start == {A: 5}
    assert source(max_lag="10m").max_lag == timedelta(minutes=10)


def test_a_pattern_matches_whole_names_and_never_topics_of_kafkas_own():
    there = {"clicks": 2, "clicks.eu": 1, "my-clicks": 1, "__consumer_offsets": 4}
    assert list(Pattern("clicks.*").wanted(there)) == [A, B, TopicPartition("clicks.eu", 0)]
    assert "__consumer_offsets" not in {at.topic for at in Pattern(".*").wanted(there)}


def test_partitions_that_a_topic_does_not_have_are_refused():
    assert list(Partitions({"clicks": [1, 0, 1]}).wanted({"clicks": 2})) == [A, B]
    with pytest.raises(ConfigError, match="clicks has no partition 2: it has 2"):
        Partitions({"clicks": [0, 2]}).wanted({"clicks": 2})


def test_a_source_says_what_it_reads():
    assert str(source()) == "clicks on k:9092, from earliest, Bytes"
    assert "topics like c.*" in str(source(topics=None, pattern="c.*", start="latest"))
    assert "clicks[0, 1]" in str(source(topics=None, partitions={"clicks": [0, 1]}, start={"clicks": {0: 1}}))


def test_topics_of_a_named_cluster_are_known_by_both_names():
    east = source(cluster="east", start={"clicks": {0: 5}})
    assert east.names == ("east.clicks",)
    assert east.first == {TopicPartition("east.clicks", 0): 5}
    assert replace(east, resume=False).first == east.first
    placed = source(cluster="east", location={"clicks": {0: "host-1"}, "taps": "host-2"})
    assert placed.host(TopicPartition("east.clicks", 0)) == "host-1"
    assert placed.host(TopicPartition("east.clicks", 1)) is None
    assert placed.host(TopicPartition("east.taps", 5)) == "host-2"
    assert east.owns_topic("east.clicks")
    assert not east.owns_topic("clicks")
    assert east.cluster_topic_name("east.clicks") == "clicks"


def pipeline(sources, **changes):
    return hr.Pipeline(
        name="merged",
        source=sources,
        sink=sinks.Memory(),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        **changes,
    )


def test_sources_with_the_same_topic_need_names_for_their_clusters():
    with pytest.raises(ConfigError, match="both one and two read clicks") as refused:
        pipeline({"one": source(), "two": source()})
    assert "cluster=" in refused.value.hint
    made = pipeline({"one": source(cluster="east"), "two": source(cluster="west")})
    assert made.topics == ("east.clicks", "west.clicks")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({}, "expected at least one source"),
        ({"two words": source()}, "not a valid name of a source"),
        ({"one": "clicks"}, "source one: expected"),
        ([source()], "source: expected"),
    ],
)
def test_sources_that_are_none_are_refused(sources, message):
    with pytest.raises(ConfigError, match=message):
        pipeline(sources)


def test_dead_letters_of_two_clusters_have_no_topic_in_common():
    with pytest.raises(ConfigError, match="no topic in common"):
        pipeline(
            {"one": source(), "two": hr.Kafka("other:9092", topics=["taps"])},
            dead_letters=hr.DeadLetters(topic="dead"),
        )


def test_a_pattern_that_would_read_the_dead_letters_again_is_refused():
    with pytest.raises(ConfigError, match="would be read again"):
        pipeline(source(topics=None, pattern="clicks.*"), dead_letters=hr.DeadLetters(topic="clicks-dead"))


def test_a_list_of_topics_names_each_once():
    assert Topics(["a", "b", "a"]).names == ("a", "b")


def test_what_the_page_shows_can_be_made():
    page = (ROOT / "docs" / "sources.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    for block in blocks:
        if "hr.stream" not in block:  # which needs a broker; see the tests of the loop in hand
            exec(compile(block, "docs/sources.md", "exec"), names)
    assert list(names["source"].subscription.wanted({"clicks": 4})) == [A, TopicPartition("clicks", 2)]
    assert names["joined"].topics == ("clicks", "users")
    assert names["alarms"].max_lag == timedelta(minutes=5)


def test_a_source_that_reads_what_the_sink_writes_is_refused():
    def made(**reads):
        return hr.Pipeline(
            name="copy",
            source=hr.Kafka("k-1:9092,k-2:9092", **reads),
            sink=sinks.Kafka("k-2:9092", "clicks-clean"),
            guarantee="exactly-once",
        )

    for reads in ({"pattern": "clicks.*"}, {"topics": ["clicks", "clicks-clean"]}):
        with pytest.raises(ConfigError, match="rows written to clicks-clean would be read again"):
            made(**reads)
    assert made(topics=["clicks"])
    assert made(pattern="clicks")


def test_a_pattern_that_reads_a_topic_of_another_source_is_refused():
    with pytest.raises(ConfigError, match="both one and all read clicks"):
        pipeline({"one": source(), "all": source(topics=None, pattern="c.*")})
    with pytest.raises(ConfigError, match=r"both two and all read east\.clicks"):
        pipeline({"all": source(topics=None, pattern=".*"), "two": source(cluster="east")})
    assert pipeline({"one": source(), "all": source(topics=None, pattern="c.*", cluster="east")})


def test_settings_that_are_no_table_are_not_shown():
    with pytest.raises(ConfigError) as refused:
        source(options="sasl.password=hunter2")
    assert "hunter2" not in str(refused.value)


def test_consumers_with_other_settings_have_a_group_of_their_own():
    from headrace.engine.range_reader import _isolate_group

    application, first = "app-1", {"group.id": "headrace-clicks", "bootstrap.servers": "k:1"}
    other = {**first, "bootstrap.servers": "k:2"}
    assert [_isolate_group(dict(options), application)["group.id"] for options in (first, other, first, other)] == [
        "headrace-clicks",
        "headrace-clicks-2",
        "headrace-clicks",
        "headrace-clicks-2",
    ]
    assert _isolate_group(dict(other), "app-2")["group.id"] == "headrace-clicks"


def test_two_sources_whose_names_are_one_to_sql_are_refused():
    one, two = hr.Kafka("k:1", topics=["a"]), hr.Kafka("k:1", topics=["b"])
    with pytest.raises(ConfigError, match="Clicks have the same name in SQL"):
        sources_by_name({"clicks": one, "Clicks": two})


@pytest.mark.parametrize("wrong", [{"max_lag": "999999999999d"}, {"start": {"a": {"²": 3}}}])
def test_what_only_looks_like_a_number_is_refused(wrong):
    with pytest.raises(ConfigError):
        hr.Kafka("k:1", topics=["a"], **wrong)


@pytest.mark.parametrize(("here", "found"), [("one", True), ("other", False)])
def test_clusters_are_compared_by_their_ids(monkeypatch, here, found):
    monkeypatch.setattr(SinkOffsets, "cluster_id", lambda offsets: here)
    fixed = sinks.Kafka("localhost:9092", topic="clicks")
    assert fixed.writes_to_source_topic("127.0.0.1:9092", "clicks".__eq__) is None, "the addresses say nothing"
    assert fixed.writes_to_source_cluster(lambda: "one", "clicks".__eq__) == ("clicks" if found else None)
    chosen = sinks.Kafka("localhost:9092", topic_column="to", pattern="c.*")
    assert chosen.writes_to_source_cluster(lambda: "one", "clicks".__eq__) is None
    assert (chosen._allowed.rejection_reason("clicks") is not None) is found
    assert sinks.Fanout([chosen, fixed]).writes_to_source_cluster(lambda: "one", "clicks".__eq__) == (
        "clicks" if found else None
    )

"""What `check` asks before Spark starts: no server and no Spark here."""

from types import SimpleNamespace

import pytest

import headrace as hr
from headrace import check as checking
from headrace import sinks
from headrace.errors import ConfigError
from headrace.kafka.cluster import Cluster


class Brokers(Cluster):
    """A cluster that has these topics."""

    def __init__(self, *topics, makes=False):
        super().__init__("localhost:1", {})
        self.topics, self.makes = topics, makes

    def _describe(self, topics):
        return {topic: None for topic in topics if topic in self.topics}, [t for t in topics if t not in self.topics]

    def _all(self):
        return dict.fromkeys(self.topics, 1)

    def _makes_topics(self):
        return self.makes

    def led_logs(self, subscription):
        return dict.fromkeys(subscription.names)

    def largest(self, subscription):
        return {}


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Check a pipeline as far as it goes without Spark, which is never reached."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))

    def run(*, brokers=None, reaches_spark=False, **changes):
        asked = []
        monkeypatch.setattr(checking, "Cluster", SimpleNamespace(of=lambda source: brokers or Brokers("clicks")))
        monkeypatch.setattr(checking, "_check_rows", lambda *_: asked.append("Spark"))
        arguments = {"name": "clicks", "source": hr.Kafka("localhost:1", topics=["clicks"]), "sink": sinks.Memory()}
        report = checking.check(hr.Pipeline(**arguments, **{"guarantee": "at-least-once", **changes}), {})
        assert asked == (["Spark"] if reaches_spark else [])
        return report

    return run


def test_a_topic_for_dead_letters_that_is_not_there_is_an_error_with_the_command_that_makes_it(checked):
    (error,) = checked(dead_letters=hr.DeadLetters(topic="clicks-dead")).errors
    assert error.message == "dead letters: there is no topic clicks-dead on localhost:1"
    assert error.hint == "headrace topics create clicks-dead --bootstrap localhost:1"


def test_the_name_of_a_topic_for_dead_letters_that_was_meant_is_told(checked):
    brokers = Brokers("clicks", "clicks-dead")
    (error,) = checked(brokers=brokers, dead_letters=hr.DeadLetters(topic="click-dead")).errors
    assert error.hint.startswith("did you mean clicks-dead? Else headrace topics create click-dead")


def test_a_topic_for_dead_letters_that_is_there_is_no_matter(checked):
    brokers = Brokers("clicks", "clicks-dead")
    report = checked(brokers=brokers, reaches_spark=True, dead_letters=hr.DeadLetters(topic="clicks-dead"))
    assert report.errors == report.notes == ()


def test_a_topic_for_dead_letters_that_the_brokers_make_themselves_is_noted(checked):
    brokers = Brokers("clicks", makes=True)
    report = checked(brokers=brokers, reaches_spark=True, dead_letters=hr.DeadLetters(topic="clicks-dead"))
    assert report.errors == ()
    (note,) = report.notes
    assert note.startswith("dead letters: clicks-dead is not there; brokers make it when the first record is sent")


@pytest.mark.parametrize(
    ("sink", "table"),
    [
        (sinks.DuckDB("x.duckdb", table="clicks"), "CLICKS"),
        (sinks.SQLite("x.db", table="main.clicks"), "clicks"),
        (sinks.Postgres("postgresql://u@h/d", "clicks"), "public.clicks"),
    ],
    ids=str,
)
def test_dead_letters_do_not_go_to_the_table_of_the_rows(sink, table):
    with pytest.raises(ConfigError, match=f"got {table}, where the rows go") as refused:
        hr.Pipeline(
            name="clicks",
            source=hr.Kafka("localhost:1", topics=["clicks"]),
            sink=sink,
            guarantee="exactly-once",
            dead_letters=table,
        )
    assert refused.value.hint == f'dead_letters="{table}_dead"'


def test_a_table_of_another_schema_takes_dead_letters():
    assert not sinks.Postgres("postgresql://u@h/d", "clicks").holds_rows("dead.clicks")

"""What the brokers say, in our terms."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Uuid

import headrace as hr
from headrace.engine.range_reader import consumer_options
from headrace.kafka.cluster import Cluster
from headrace.runtime.launch import open_sources


@pytest.mark.parametrize(("reported", "known"), [(Uuid(0, 0), "clicks"), (Uuid(1, 2), str(Uuid(1, 2)))])
def test_a_topic_is_known_by_its_id_or_where_brokers_have_none_by_its_name(reported, known, monkeypatch):
    cluster = Cluster("localhost:1", {})
    described = SimpleNamespace(topic_id=reported, partitions=[])
    monkeypatch.setattr(cluster._admin, "describe_topics", lambda topics: {"clicks": described})
    assert cluster.logs_of(["clicks"])["clicks"].topic_id == known


def test_the_client_id_is_the_pipeline_name_by_default():
    sources = {"rows": hr.Kafka("localhost:1", topics=["clicks"])}
    named = {"rows": hr.Kafka("localhost:1", topics=["clicks"], options={"client.id": "mine"})}
    for given, expected in ((sources, "headrace-clicks"), (named, "mine")):
        (state,) = open_sources(given, "headrace-clicks")
        assert state.cluster._client.settings["client.id"] == expected
    # Of itself Java's consumer is called after its group, with a number behind: of these there are many in one process.
    assert "client.id" not in consumer_options("localhost:1", {}, "headrace-clicks")
    assert consumer_options("localhost:1", {}, "headrace-clicks")["group.id"] == "headrace-clicks"

"""What the brokers say, in our terms."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Uuid

from headrace.kafka.cluster import Cluster


@pytest.mark.parametrize(("said", "known"), [(Uuid(0, 0), "clicks"), (Uuid(1, 2), str(Uuid(1, 2)))])
def test_a_topic_is_known_by_its_id_or_where_brokers_have_none_by_its_name(said, known, monkeypatch):
    cluster = Cluster("localhost:1", {})
    described = SimpleNamespace(topic_id=said, partitions=[])
    monkeypatch.setattr(cluster, "_describe", lambda topics: ({"clicks": described}, []))
    assert cluster.logs_of(["clicks"])["clicks"].topic_id == known

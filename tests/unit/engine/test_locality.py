"""The preferred executor of each partition."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.engine.locality import LocalityHints, spread_evenly
from headrace.types import TopicPartition

PARTITIONS = [TopicPartition("clicks", number) for number in range(4)]
EXECUTORS = ["executor_a_1", "executor_b_2", "executor_c_3"]


def session(master):
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master))


@given(st.text(min_size=1, max_size=9), st.integers(1, 40), st.integers(1, 8))
def test_partitions_of_a_topic_are_spread_evenly_and_neighbours_apart(topic, partitions, executors):
    hosts = [f"executor_{number}" for number in range(executors)]
    spread = spread_evenly([TopicPartition(topic, number) for number in range(partitions)], hosts)
    counts = [list(spread.values()).count(host) for host in hosts]
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1
    chosen = [spread[TopicPartition(topic, number)] for number in range(partitions)]
    assert executors == 1 or all(one != other for one, other in pairwise(chosen))


def test_an_assignment_does_not_depend_on_the_other_partitions():
    assert spread_evenly(PARTITIONS, []) == {}
    every = spread_evenly(PARTITIONS, EXECUTORS)
    assert all(spread_evenly([at], EXECUTORS)[at] == every[at] for at in PARTITIONS)


@pytest.mark.parametrize(
    ("master", "asked"), [("local[2]", 0), ("local", 0), ("local-cluster[2,1,512]", 1), ("yarn", 1)]
)
def test_in_one_process_there_are_no_preferred_hosts(master, asked):
    requests = []
    source = hr.Kafka("nowhere:1", topics=["clicks"], location="brokers")
    hints = LocalityHints(session(master), source, lambda topics: requests.append(topics) or {PARTITIONS[0]: "host"})
    assert hints.preferred_hosts(PARTITIONS) == ({PARTITIONS[0]: "host"} if asked else {})
    assert len(requests) == asked


@pytest.mark.parametrize(("refresh", "asked"), [(1000.0, 2), (0.000_001, 3)])
def test_leaders_are_asked_for_new_partitions_and_after_each_refresh(refresh, asked):
    requests = []
    source = hr.Kafka("nowhere:1", topics=["clicks"], location="brokers", refresh=refresh)

    def leaders(topics):
        requests.append(topics)
        return dict.fromkeys(PARTITIONS[: len(requests)], "host")

    hints = LocalityHints(session("yarn"), source, leaders)
    for partitions in (PARTITIONS[:1], PARTITIONS[:1], PARTITIONS[:2]):
        assert hints.preferred_hosts(partitions) == dict.fromkeys(partitions, "host")
    assert len(requests) == asked


def test_named_hosts_are_preferred_as_they_are_named():
    source = hr.Kafka("nowhere:1", topics=["clicks"], location={"clicks": {"1": "host-1"}})
    assert LocalityHints(session("yarn"), source, dict).preferred_hosts(PARTITIONS) == {PARTITIONS[1]: "host-1"}

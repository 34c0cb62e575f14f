"""Names of the topics that stand for topics of another cluster."""

import pytest

from headrace.kafka.commit_metadata import CommittedOffset
from headrace.kafka.placeholder_topics import PlaceholderTopics
from headrace.types import TopicPartition

SOURCE = TopicPartition("clicks", 3)
PLACEHOLDER = TopicPartition("elsewhere.clicks", 3)


@pytest.mark.parametrize(
    ("prefix", "added", "local"), [("elsewhere.", True, PLACEHOLDER), ("elsewhere.", False, SOURCE), ("", True, SOURCE)]
)
def test_a_topic_of_another_cluster_has_a_placeholder(prefix, added, local):
    topics = PlaceholderTopics(prefix)
    if added:
        assert topics.add("clicks") == local.topic
    assert topics.to_local(SOURCE) == local
    assert topics.to_source(local) == SOURCE


def test_a_placeholder_that_is_found_is_remembered():
    topics = PlaceholderTopics("elsewhere.")
    assert topics.to_local(SOURCE) == SOURCE
    assert topics.to_source(PLACEHOLDER) == SOURCE
    assert topics.to_local(SOURCE) == PLACEHOLDER


def test_a_position_is_that_of_the_placeholder():
    topics = PlaceholderTopics("elsewhere.")
    topics.add("clicks")
    position = topics.to_position(SOURCE, CommittedOffset(7, "about it"))
    assert (position.topic, position.partition, position.offset) == ("elsewhere.clicks", 3, 7)

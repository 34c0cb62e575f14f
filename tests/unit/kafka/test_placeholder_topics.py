"""The names of topics of another cluster."""

import pytest

from headrace.kafka.commit_metadata import CommittedOffset
from headrace.kafka.placeholder_topics import PlaceholderTopics
from headrace.types import TopicPartition

HERE = TopicPartition("clicks", 3)
PLACEHOLDER = TopicPartition("elsewhere.clicks", 3)


@pytest.mark.parametrize(
    ("prefix", "added", "there"), [("elsewhere.", True, PLACEHOLDER), ("elsewhere.", False, HERE), ("", True, HERE)]
)
def test_a_topic_that_is_elsewhere_has_a_placeholder(prefix, added, there):
    topics = PlaceholderTopics(prefix)
    if added:
        assert topics.add("clicks") == there.topic
    assert topics.placed(HERE) == there
    assert topics.there(there) == HERE


def test_a_placeholder_that_is_met_is_remembered():
    topics = PlaceholderTopics("elsewhere.")
    assert topics.placed(HERE) == HERE
    assert topics.there(PLACEHOLDER) == HERE
    assert topics.placed(HERE) == PLACEHOLDER


def test_a_position_is_that_of_the_placeholder():
    topics = PlaceholderTopics("elsewhere.")
    topics.add("clicks")
    position = topics.position(HERE, CommittedOffset(7, "about it"))
    assert (position.topic, position.partition, position.offset) == ("elsewhere.clicks", 3, 7)

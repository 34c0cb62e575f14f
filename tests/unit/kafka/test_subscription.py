"""Which partitions of a cluster a source reads."""

import pytest

from headrace.errors import ConfigError
from headrace.kafka.subscription import Partitions, Pattern, Topics, check_topic_name
from headrace.types import TopicPartition

CLUSTER = {"clicks": 2, "clicks.eu": 1, "views": 1, "__consumer_offsets": 50}


def partitions(**topics):
    return [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]


@pytest.mark.parametrize(
    ("subscription", "found"),
    [
        (Topics(["clicks"]), partitions(clicks=[0, 1])),
        (Topics(("views", "clicks", "views")), partitions(views=[0], clicks=[0, 1])),
        (Pattern("clicks"), partitions(clicks=[0, 1])),
        (Pattern("clicks.*"), partitions(**{"clicks": [0, 1], "clicks.eu": [0]})),
        (Pattern(".*offsets|views"), partitions(views=[0])),
        (Pattern("taps"), []),
        (Partitions({"clicks": [1]}), partitions(clicks=[1])),
        (Partitions({"clicks": [1, 0, 1], "views": range(1)}), partitions(clicks=[0, 1], views=[0])),
    ],
    ids=str,
)
def test_a_subscription_wants_partitions_of_what_there_is(subscription, found):
    names = subscription.names
    asked = CLUSTER if names is None else {topic: CLUSTER[topic] for topic in names}
    assert list(subscription.wanted(asked)) == found
    assert {topic for topic in CLUSTER if subscription.reads(topic)} == {at.topic for at in found}


def test_a_partition_that_the_topic_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="views has no partition 1: it has 1"):
        list(Partitions({"views": [0, 1]}).wanted({"views": 1}))


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        *[(Topics, wrong) for wrong in ("clicks", [], 5, None, [""], ["a b"], ["clicks", 5])],
        *[(Pattern, wrong) for wrong in ("", "(", None)],
        *[(Partitions, wrong) for wrong in ({}, ["clicks"], {"clicks": []}, {"clicks": 0}, {"clicks": "01"})],
        *[(Partitions, {"clicks": wrong}) for wrong in ([-1], [True], [1.0], ["0"])],
    ],
)
def test_what_is_not_a_subscription_is_refused(make, wrong):
    with pytest.raises(ConfigError):
        make(wrong)


@pytest.mark.parametrize("name", ["clicks", "a.b_c-D9", "x" * 249])
def test_a_name_that_kafka_gives_is_taken(name):
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250, None, 5])
def test_a_name_that_kafka_never_gives_is_refused(name):
    with pytest.raises(ConfigError, match="not a valid topic name"):
        check_topic_name(name)

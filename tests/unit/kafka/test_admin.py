"""Admin requests to brokers: which answers are left out, and which errors are raised."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from headrace.errors import ConfigError, RetriableError
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.types import TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def answered(answer):
    future = Future()
    if isinstance(answer, int):
        future.set_exception(KafkaException(KafkaError(answer)))
    else:
        future.set_result(answer)
    return future


@pytest.fixture
def admin():
    """An admin whose driver gives these answers; a number is the code of an error."""

    def make(**answers):
        made = Admin(Client("127.0.0.1:1", {}))
        driver = {name: lambda *_, name=name, **__: answers[name] for name in answers}
        made._driver = SimpleNamespace(poll=lambda seconds: 0, **driver)
        return made

    return make


def test_topics_that_do_not_exist_are_left_out(admin):
    found = {"clicks": answered("described"), "gone": answered(KafkaError.UNKNOWN_TOPIC_OR_PART)}
    assert admin(describe_topics=found).describe_topics(["clicks", "gone"]) == {"clicks": "described"}
    assert admin().describe_topics([]) == {}


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigError), (KafkaError.LEADER_NOT_AVAILABLE, RetriableError)],
)
def test_other_errors_name_the_topic(admin, code, error):
    with pytest.raises(error, match="the topic clicks"):
        admin(describe_topics={"clicks": answered(code)}).describe_topics(["clicks"])


def test_settings_that_this_user_may_not_read_are_left_out_unless_wanted(admin):
    futures = {ConfigResource(ResourceType.TOPIC, "clicks"): answered(KafkaError.TOPIC_AUTHORIZATION_FAILED)}
    assert admin(describe_configs=futures).topic_configs(["clicks"]) == {}
    with pytest.raises(ConfigError, match="the topic clicks"):
        admin(describe_configs=futures).topic_configs(["clicks"], ignored=())


@pytest.mark.parametrize(("answer", "created"), [(None, True), (KafkaError.TOPIC_ALREADY_EXISTS, False)])
def test_creating_a_topic_says_whether_it_was_there(admin, answer, created):
    made = admin(create_topics={"clicks": answered(answer)}, describe_topics={"clicks": answered("described")})
    assert made.create_topic("clicks") is created


def test_a_new_topic_is_described_once_the_broker_that_answers_knows_it(admin):
    answers = iter([answered(KafkaError.UNKNOWN_TOPIC_OR_PART), answered("described")])
    made = admin()
    made._driver.describe_topics = lambda *_, **__: {"clicks": next(answers)}
    assert made.describe_new_topic("clicks") == "described"


def test_a_topic_that_cannot_be_created_names_the_cure_of_the_caller(admin):
    made = admin(create_topics={"clicks": answered(KafkaError.INVALID_REPLICATION_FACTOR)})
    with pytest.raises(ConfigError, match="refuses the creation of topic clicks") as refused:
        made.create_topic("clicks", hint="correct create=…")
    assert refused.value.hint == "correct create=…"


def test_more_partitions_than_asked_for_may_be_ignored(admin):
    made = admin(create_partitions={"clicks": answered(KafkaError.INVALID_PARTITIONS)})
    made.add_partitions("clicks", 3, ignored={"INVALID_PARTITIONS"})
    with pytest.raises(ConfigError, match="refuses 3 partitions of topic clicks"):
        made.add_partitions("clicks", 3)


def test_the_offsets_of_partitions_are_asked_for_by_edge_or_time(admin):
    asked = []

    def list_offsets(positions, **_):
        asked.append(
            [(at.partition, type(spec).__name__, getattr(spec, "_value", None)) for at, spec in positions.items()]
        )
        return {at: answered(SimpleNamespace(offset=7)) for at in positions}

    made = admin()
    made._driver.list_offsets = list_offsets
    assert made.offsets({A: "earliest", B: 1.2345}) == {A: 7, B: 7}
    assert made.offsets({}) == {}
    ((first, second),) = asked
    assert first[0] == 0
    assert second[2] == 1234


def test_groups_that_do_not_exist_are_left_out(admin):
    found = {"report": answered("described"), "gone": answered(KafkaError.GROUP_ID_NOT_FOUND)}
    made = admin(describe_consumer_groups=found, delete_consumer_groups=found)
    assert made.describe_groups(["report", "gone"]) == {"report": "described"}
    assert made.describe_groups([]) == {}
    made.delete_groups(["report", "gone"])

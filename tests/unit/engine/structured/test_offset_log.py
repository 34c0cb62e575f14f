"""Entries of an offset log as ranges of Kafka partitions."""

import pytest

from headrace.engine.structured.offset_log import content_hash, kafka_offsets, kafka_ranges
from headrace.types import Range, TopicPartition

CLICKS, MORE, VIEWS = TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("views", 0)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"clicks": {"0": 10, "1": 0}, "views": {"0": 7}}', {CLICKS: 10, MORE: 0, VIEWS: 7}),
        ("{}", {}),
        (None, {}),  # a source that has returned nothing yet
        ('{"logOffset": 3}', {}),  # files
        ('{"offset": 5, "timestamp": 1000}', {}),  # rate-micro-batch
        ("17", {}),  # rate
        ("page 4", {}),
        ('{"reservoirVersion": 4, "index": {"0": 1}}', {}),  # Delta
        ('{"shard": {"shard-01": 4}}', {}),
        ('{"clicks": {"0": -2}}', {}),  # not an offset: earliest
    ],
)
def test_only_the_offsets_of_kafka_sources_are_read(text, offsets):
    assert kafka_offsets(text) == offsets


@pytest.mark.parametrize(
    ("before", "after", "ranges"),
    [
        (['{"clicks": {"0": 4}}'], ['{"clicks": {"0": 10}}'], [Range(CLICKS, 4, 10)]),
        # The first batch, and a partition that was added: the start is not in the log.
        ([], ['{"clicks": {"0": 10}}'], [Range(CLICKS, 10, 10)]),
        (['{"clicks": {"0": 4}}'], ['{"clicks": {"0": 4, "1": 2}}'], [Range(CLICKS, 4, 4), Range(MORE, 2, 2)]),
        ([None, "1"], ['{"clicks": {"0": 3}}', "2"], [Range(CLICKS, 3, 3)]),
        (
            ['{"clicks": {"0": 1}}', '{"views": {"0": 2}}'],
            ['{"clicks": {"0": 3}}', '{"views": {"0": 4}}'],
            [Range(CLICKS, 1, 3), Range(VIEWS, 2, 4)],
        ),
        # A self-join: both sources read the partition, each at an offset of its own.
        (['{"clicks": {"0": 1}}'] * 2, ['{"clicks": {"0": 3}}', '{"clicks": {"0": 4}}'], []),
        (['{"logOffset": 0}'], ['{"logOffset": 1}'], []),
    ],
)
def test_a_batch_reads_from_the_offsets_before_it_to_its_own(before, after, ranges):
    assert list(kafka_ranges(before, after)) == ranges


def test_the_content_of_a_batch_does_not_depend_on_how_spark_writes_json():
    assert content_hash(['{"a": {"0": 1, "1": 2}}', None]) == content_hash(['{"a":{"1":2,"0":1}}', None])
    assert content_hash(["1", None]) != content_hash([None, "1"])

"""Offsets from a file and from a Spark checkpoint."""

import json

import pytest

from headrace.errors import ConfigError
from headrace.tools.offsets.imports import from_file, from_spark_checkpoint
from headrace.types import TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"clicks": {"0": 10, "1": 5}}',
        '{"pipeline": "p", "offsets": {"clicks": {"0": 10, "1": 5}}}',
        "clicks,0,10\nclicks,1,5\n",
        '"group","clicks","0","10"\n\n"group","clicks","1","5"',
    ],
    ids=["Spark", "export", "lines", "kafka-consumer-groups"],
)
def test_a_file_of_offsets_is_read(tmp_path, text):
    (tmp_path / "offsets").write_text(text)
    assert from_file(tmp_path / "offsets") == {A: 10, B: 5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ('{"clicks": 5}', "does not hold offsets"),
        ('{"clicks": {"0": -2}}', "-2 is not an offset"),
        ('{"clicks": {"zero": 1}}', "does not hold offsets"),
        ("clicks,0,10\nclicks,1", "line 2"),
        ("clicks,0,-1", "line 1"),
        ("clicks;0;1", "line 1"),
    ],
)
def test_a_file_without_offsets_is_refused_with_the_place(tmp_path, text, reason):
    (tmp_path / "offsets").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        from_file(tmp_path / "offsets")


def checkpoint(path, *, commits, planned=None, sources=('{"clicks":{"0":10,"1":5}}',), version="v1"):
    for folder, numbers in (("commits", commits), ("offsets", planned or commits)):
        (path / folder).mkdir()
        for number in numbers:
            (path / folder / str(number)).write_text(
                "\n".join([version, json.dumps({"batchWatermarkMs": 0}), *sources])
            )
        (path / folder / f".{max(numbers, default=0)}.crc").touch()
    return path


@pytest.mark.parametrize(
    ("log", "word"),
    [
        ({"commits": [0]}, "batch 0 of"),
        ({"commits": [8, 9, 10]}, "batch 10 of"),
        ({"commits": [9], "planned": [9, 10]}, "batch 10 was begun there and not committed"),
        ({"commits": [0], "version": "v2"}, "batch 0 of"),
        ({"commits": [0], "sources": ("-", '{"clicks":{"0":10,"1":5}}')}, "batch 0 of"),
        ({"commits": [0], "sources": ('{"logOffset":3}', '{"clicks":{"0":10,"1":5}}')}, "batch 0 of"),
    ],
)
def test_a_checkpoint_has_the_offsets_after_its_last_committed_batch(tmp_path, log, word):
    offsets, said = from_spark_checkpoint(checkpoint(tmp_path, **log))
    assert offsets == {A: 10, B: 5}
    assert word in said


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ({"commits": []}, "holds no committed batch"),
        ({"commits": [1], "planned": [0]}, "cannot be read"),
        ({"commits": [0], "version": "v3"}, "unknown version: 'v3'"),
        ({"commits": [0], "sources": ('{"logOffset":3}',)}, "holds no Kafka offsets"),
    ],
)
def test_a_directory_that_is_not_such_a_checkpoint_is_refused(tmp_path, log, reason):
    with pytest.raises(ConfigError, match=reason):
        from_spark_checkpoint(checkpoint(tmp_path, **log))

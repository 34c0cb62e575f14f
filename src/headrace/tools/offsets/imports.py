"""Imports offsets from a JSON file, a Spark checkpoint or a Kafka group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.kafka.admin import Admin
from headrace.kafka.client import Client
from headrace.tools.groups import group_offsets
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Offsets = dict[TopicPartition, int]


def to_spark_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The offsets in the format of Spark's `startingOffsets`: `{"clicks": {"0": 10}}`."""
    by_topic: dict[str, dict[str, int]] = {}
    for at in sorted(offsets):
        by_topic.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return by_topic


def from_spark_json(raw: Any, where: str) -> Offsets:
    try:
        return {
            TopicPartition(topic, int(partition)): _offset(offset)
            for topic, partitions in raw.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} does not hold offsets: {error}", hint='{"clicks": {"0": 10}}') from error


def from_file(path: Path) -> Offsets:
    """Offsets in the JSON of `headrace offsets export`, or in the `topic,partition,offset` lines of Kafka's tool."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if text.lstrip().startswith("{"):
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        return from_spark_json(raw.get("offsets", raw), str(path))
    offsets: Offsets = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = [field.strip().strip('"') for field in line.split(",")]
        try:
            topic, partition, offset = fields[-3:]
            offsets[TopicPartition(topic, int(partition))] = _offset(offset)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: expected topic,partition,offset, got {line!r}") from error
    return offsets


def from_spark_checkpoint(directory: Path) -> tuple[Offsets, str]:
    """The offsets after the last committed batch of a Structured Streaming query, and a note about it.

    A batch that was planned but not committed is read again, as Spark would do.
    """
    committed = _newest(directory / "commits")
    if committed is None:
        raise ConfigError(
            f"{directory} holds no committed batch; looked for {directory / 'commits'}",
            hint="give the checkpointLocation of the query",
        )
    planned = _newest(directory / "offsets")
    log = directory / "offsets" / str(committed)
    try:
        version, _, *sources = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{log} cannot be read: {error}") from error
    if version not in {"v1", "v2"}:
        raise ConfigError(f"{log} is an offset log of an unknown version: {version!r}")
    offsets: Offsets = {}
    for source in sources:
        raw = json.loads(source) if source.startswith("{") else None
        if isinstance(raw, dict) and all(isinstance(partitions, dict) for partitions in raw.values()):
            offsets.update(from_spark_json(raw, str(log)))
    if not offsets:
        raise ConfigError(f"{log} holds no Kafka offsets", hint="only queries that read Kafka can be imported")
    note = f"batch {committed} of {directory}"
    if planned is not None and planned > committed:
        note += f"; batch {planned} was begun there and not committed, its records are read again"
    return offsets, note


def from_kafka_group(bootstrap: str, options: Mapping[str, str], group: str) -> Offsets:
    """The committed offsets of a consumer group; ConfigError while an open transaction covers some of them."""
    committed = group_offsets(Admin(Client(bootstrap, options)), group)
    offsets = {at: entry.offset for at, entry in committed.items()}
    if not offsets:
        raise ConfigError(f"the group {group} has no offsets on {bootstrap}", hint="check the name of the group")
    return offsets


def _newest(log: Path) -> int | None:
    names = [int(file.name) for file in log.glob("*") if file.name.isdigit()]
    return max(names, default=None)


def _offset(value: Any) -> int:
    offset = int(value)
    if offset < 0:
        raise ValueError(f"{value} is not an offset; -1 and -2 stand for latest and earliest: use `reset --to`")
    return offset

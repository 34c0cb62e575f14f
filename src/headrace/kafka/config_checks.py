"""Checks consumer settings before a run starts, because Kafka would fail late or ignore wrong ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.kafka import config_keys
from headrace.kafka.client_options import FileOptions
from headrace.support.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.kafka.cluster import Cluster
    from headrace.kafka.source import Kafka

PARTITION_FETCH_BYTES = 8 << 20
"""Default of max.partition.fetch.bytes: with Kafka's 1 MB, a large range takes many small fetches."""

_RENAMED = {
    "session.time.out.ms": "session.timeout.ms",
    "min.fetch.bytes": "fetch.min.bytes",
    "max.message.size": "max.partition.fetch.bytes, and max.message.bytes of the topic",
    "auto.commit.offset": "enable.auto.commit, which Headrace sets",
    "max.in.flights.requests.per.session": "max.in.flight.requests.per.connection, of a producer",
    "in.flight.requests.per.session": "max.in.flight.requests.per.connection, of a producer",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "timeout.ms": "request.timeout.ms",
    "metadata.fetch.timeout.ms": "default.api.timeout.ms; of a producer max.block.ms",
    "block.on.buffer.full": "max.block.ms, of a producer",
    "zookeeper.connect": "the brokers, the first argument",
}
_SPARK_OPTIONS = {
    "subscribe": 'topics=["clicks"]',
    "subscribePattern": 'pattern="clicks.*"',
    "assign": 'partitions={"clicks": [0, 1]}',
    "startingOffsets": 'start="earliest"',
    "startingTimestamp": "start=, a time with its zone",
    "failOnDataLoss": 'on_data_loss="earliest"',
    "maxOffsetsPerTrigger": "limits=hr.Limits(max_records=…), of the pipeline",
    "minOffsetsPerTrigger": "limits=hr.Limits(min_records=…), of the pipeline",
    "maxTriggerDelay": "limits=hr.Limits(max_delay=…), of the pipeline",
    "includeHeaders": "nothing: _kafka.headers is there",
    "groupIdPrefix": "nothing: the group is derived from the pipeline's name",
}
_CHOICES = {
    "isolation.level": {"read_committed", "read_uncommitted"},
    "security.protocol": {"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"},
    "group.protocol": {"classic", "consumer"},
    "check.crcs": {"true", "false"},
}
_NO_EFFECT = {
    **dict.fromkeys(
        ("partition.assignment.strategy", "group.remote.assignor", "group.protocol", "group.instance.id"),
        "the group has no members: Spark assigns the partitions",
    ),
    **dict.fromkeys(
        ("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"),
        "the group has no members, so none of them times out",
    ),
    "auto.commit.interval.ms": "the offset store commits",
    "exclude.internal.topics": "topics are chosen by topics=, pattern= or partitions=",
    "allow.auto.create.topics": "it is always false: only topics that exist are read",
}
_PLUGIN_CLASSES = {
    "metric.reporters",
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "security.providers",
    "ssl.engine.factory.class",
}
"""Options that name a plug-in class."""
_NUMBER = re.compile(r".*\.(ms|bytes|records|samples|seconds)")
_HEARTBEAT_MS, _SESSION_MS, _REQUEST_MS, _FETCH_BYTES = 3_000, 45_000, 30_000, 50 << 20
_LOOPBACK = re.compile(r"(localhost|127(\.\d+){3}|\[?::1\]?)(:\d+)?$")


def check(options: Mapping[str, str]) -> None:
    """ConfigError for invalid settings."""
    for name, value in options.items():
        check_name(name)
        _check_value(name, value)
    number = _Numbers(options)
    if number("heartbeat.interval.ms", _HEARTBEAT_MS) >= number("session.timeout.ms", _SESSION_MS):
        raise ConfigError(
            f"heartbeat.interval.ms={number('heartbeat.interval.ms', _HEARTBEAT_MS)} is not below"
            f" session.timeout.ms={number('session.timeout.ms', _SESSION_MS)}: the consumers would not start",
            hint="a third of the session is usual: session.timeout.ms=45000, heartbeat.interval.ms=15000",
        )
    if number("fetch.max.wait.ms", 0) >= number("request.timeout.ms", _REQUEST_MS):
        raise ConfigError(
            f"fetch.max.wait.ms={options['fetch.max.wait.ms']} is not below request.timeout.ms="
            f"{number('request.timeout.ms', _REQUEST_MS)}: a fetch would time out before its response",
            hint="lower fetch.max.wait.ms, or raise request.timeout.ms",
        )


def refuse_unknown(names: Collection[str]) -> None:
    """ConfigError for a setting that no Kafka client knows. librdkafka itself checks its own many names.

    Does not check if a plug-in class of the Java clients receives all options and may have its own names, nor for
    options from a file that other programs may use, too.
    """
    if isinstance(names, FileOptions):
        return
    others = [name for name in names if name not in config_keys.EVERY | config_keys.JAVA_PRODUCER]
    for name in others:
        check_name(name)
    if not others or any(name in _PLUGIN_CLASSES for name in names):
        return
    from confluent_kafka import KafkaException, Producer

    for name in others:
        try:
            Producer({name: "", "log_level": 0})
        except KafkaException as error:
            if "No such configuration property" in error.args[0].str():
                raise ConfigError(
                    f"unknown option {name}: neither librdkafka nor Java's client has it",
                    hint="NAME=VALUE, for example security.protocol=SSL",
                ) from error


def config_warnings(source: Kafka) -> list[str]:
    """Warnings for valid settings that may not have the intended effect."""
    options, number = source.options, _Numbers(source.options)
    warnings = []
    brokers = [address.strip() for address in source.bootstrap.split(",") if address.strip()]
    if len(brokers) == 1 and not _LOOPBACK.match(brokers[0]):
        warnings.append(
            f"{brokers[0]} is the only bootstrap address: while that broker is down, no run can start; give two"
        )
    session, heartbeat = number("session.timeout.ms", _SESSION_MS), number("heartbeat.interval.ms", _HEARTBEAT_MS)
    if 3 * heartbeat > session:
        warnings.append(f"heartbeat.interval.ms={heartbeat} is more than a third of session.timeout.ms={session}")
    warnings += [f"{name} has no effect: {_NO_EFFECT[name]}" for name in options if name in _NO_EFFECT]
    warnings += [
        f"unknown consumer setting {name}: it has no effect unless a plug-in reads it"
        for name in options
        if name not in config_keys.EVERY
    ]
    if options.get("isolation.level") == "read_uncommitted":
        warnings.append("isolation.level=read_uncommitted: records of transactions that were aborted are read, too")
    fetch, partition_fetch = (
        number("fetch.max.bytes", _FETCH_BYTES),
        number("max.partition.fetch.bytes", PARTITION_FETCH_BYTES),
    )
    if partition_fetch > fetch:
        warnings.append(
            f"max.partition.fetch.bytes={partition_fetch} is never reached: fetch.max.bytes={fetch} is below it"
        )
    if number("fetch.min.bytes", 1) > fetch:
        warnings.append(
            f"fetch.min.bytes={options['fetch.min.bytes']} is above fetch.max.bytes={fetch}: every fetch waits"
        )
    return warnings


def topic_limit_warnings(cluster: Cluster, source: Kafka) -> list[str]:
    """Warnings for topic settings that conflict with those of the source."""
    number = _Numbers(source.options)
    defaults = {"max.partition.fetch.bytes": PARTITION_FETCH_BYTES, "fetch.max.bytes": _FETCH_BYTES}
    limits = {name: number(name, default) for name, default in defaults.items()}
    name = min(limits, key=lambda name: limits[name])
    return [
        f"{topic} accepts up to {largest:,} bytes at once, and {name} is {limits[name]:,}: larger batches of producers"
        f' are read one per fetch; options={{"{name}": "{largest}"}} reads more of them at a time'
        for topic, largest in cluster.max_message_bytes(source.subscription).items()
        if largest > limits[name]
    ]


class _Numbers:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def __call__(self, name: str, default: int) -> int:
        return int(self._options.get(name, default))


def check_name(name: str) -> None:
    """ConfigError for an unknown name that resembles a known one."""
    if name in config_keys.EVERY:
        if name == "interceptor.classes":
            raise ConfigError(
                "interceptor.classes cannot be set: the record at an offset must not change",
                hint="change records in the transform",
            )
        return
    if name in _SPARK_OPTIONS:
        raise ConfigError(
            f"{name} is an option of Spark's source, not of Kafka's clients", hint=f"use {_SPARK_OPTIONS[name]}"
        )
    if name.startswith("kafka."):
        raise ConfigError(f"{name}: Kafka's option names have no prefix kafka.", hint=name.removeprefix("kafka."))
    if name == "config.providers" or name.startswith("config.providers."):
        raise ConfigError(
            "config.providers is for Java's clients only, and Headrace also uses librdkafka",
            hint="${NAME} in a file of options stands for an environment variable",
        )
    every = config_keys.EVERY | config_keys.JAVA_PRODUCER
    near = f"did you mean {_RENAMED[name]}?" if name in _RENAMED else did_you_mean(name, every, 0.85)
    if near and name not in every:
        raise ConfigError(f"Kafka's clients have no option {name}", hint=near)


def _check_value(name: str, value: str) -> None:
    # The value is not shown: it may be a password under the wrong name.
    if name in config_keys.JAVA and _NUMBER.fullmatch(name) and not re.fullmatch(r"-?\d{1,18}", value):
        raise ConfigError(f"invalid value for {name}: expected a whole number", hint=f"{name}=30000")
    if name in _CHOICES and value.lower() not in _CHOICES[name]:
        raise ConfigError(f"invalid value for {name}", hint=f"one of: {', '.join(sorted(_CHOICES[name]))}")

"""The Kafka source: describes which records a pipeline reads, and checks the description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.format import Format
from headrace.errors import ConfigError
from headrace.formats.raw import Bytes
from headrace.kafka import addresses, client_security, config_checks
from headrace.kafka.client_options import parse_options
from headrace.kafka.subscription import Partitions, Pattern, Subscription, Topics
from headrace.support.durations import duration
from headrace.support.validation import check_bool, check_choice, check_positive, wrong_value
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

# Headrace sets these on every consumer: another value would break the batch's contract.
OWNED_OPTIONS = {
    "bootstrap.servers": "the first argument of Kafka",
    "group.id": "derived from the pipeline's name",
    "key.deserializer": "the source's format",
    "value.deserializer": "the source's format",
    "enable.auto.commit": "the offset store",
    "auto.offset.reset": "start=",
}
_CLUSTER = re.compile(r"[a-zA-Z0-9_-]{1,60}")
_STARTS = '"earliest", "latest", "stored", a time with its zone, or {"clicks": {0: 1200}}'


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Reads topics of a Kafka cluster. `bootstrap` is one address, `host:port`, or several: a list, or a text with
    commas.

    Give `topics`, a list of names (or your own `Subscription`), or `pattern`, a regular expression for whole topic
    names, or `partitions`, such as `{"clicks": [0, 1]}`. A running pipeline discovers new topics and partitions within
    `refresh` seconds and reads them from their earliest offset.

    `format` and `key_format` decode a record's value and key to columns.

    `start` is where the first read of a topic begins: "earliest", "latest", a time, or offsets such as
    `{"clicks": {0: 1200}}` (other partitions begin at their earliest offset). Later reads begin at the stored offsets,
    unless `resume` is False: then every run begins at `start`. "stored" accepts only stored offsets: without them the
    run fails. `max_lag` is a number of records per partition, or a time such as "10m": records that lag more are
    skipped, and the gap is recorded.

    `on_data_loss` decides what happens if the stored offsets are no longer in the log (deleted by retention, or the
    topic was recreated): "fail", or continue at the "earliest" or "latest" record and record the gap in the audit log.

    If the sink does not need one task per partition, several tasks read a long range, and one task reads many short
    ranges. `split=False` forces one task per range, for a transform that needs the order of the log.

    `location` chooses the executors that read a partition: "consistent", the same one whenever possible; "brokers", one
    on the host of the partition's leader; or hosts by topic or partition. `cluster` is a name that distinguishes topics
    of several clusters: `clicks` of the cluster `east` is then named `east.clicks`. `options` are Kafka's client
    settings, for example `{"security.protocol": "SSL"}`, or the path of a properties file with such settings.
    """

    bootstrap: str | Any = field(kw_only=False)
    topics: Sequence[str] | Subscription | None = None
    pattern: str | None = None
    partitions: Mapping[str, Sequence[int]] | None = None
    format: Format = field(default_factory=Bytes)
    key_format: Format | None = None
    start: Literal["earliest", "latest", "stored"] | datetime | Mapping[Any, Any] | str = "earliest"
    resume: bool = True
    max_lag: int | timedelta | str | None = None
    on_data_loss: Literal["fail", "earliest", "latest"] = "fail"
    refresh: float = 30.0
    split: bool = True
    location: Literal["consistent", "brokers"] | Mapping[Any, Any] = "consistent"
    cluster: str | None = None
    options: Mapping[str, str] | Any = field(default_factory=dict, repr=False)
    subscription: Subscription = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        example = 'Kafka("localhost:9092", topics=["clicks"])'
        object.__setattr__(self, "bootstrap", addresses.brokers(self.bootstrap, example))
        object.__setattr__(self, "subscription", self._subscription())
        if self.topics is not None and not isinstance(self.topics, Subscription):
            object.__setattr__(self, "topics", self.subscription.names)
        for name, fmt in (("format", self.format), ("key_format", self.key_format)):
            if fmt is None and name == "key_format":
                continue
            if not isinstance(fmt, Format):
                raise ConfigError(f"{name}={fmt!r} is not a format", hint=f'{name}=hr.Json("user STRING, page STRING")')
            fmt.check_reads()
        self._check_position()
        self._check_location()
        object.__setattr__(self, "options", parse_options(self.options))
        for name in self.options:
            if name in OWNED_OPTIONS:
                raise ConfigError(f"the option {name} is set by Headrace: use {OWNED_OPTIONS[name]}")
        config_checks.check(self.options)
        config_checks.refuse_unknown(self.options)
        for translate in (client_security.to_java_config, client_security.to_librdkafka_config):
            translate(self.options)  # raises for an option that the Java client or librdkafka does not support

    def __str__(self) -> str:
        start = self.start
        if isinstance(start, Mapping):
            shown = "given offsets"
        else:
            shown = start.isoformat() if isinstance(start, datetime) else str(start)
        return f"{self.subscription} on {self.bootstrap}, from {shown}, {type(self.format).__name__}"

    @property
    def prefix(self) -> str:
        """The prefix of this cluster's topic names in offsets and rows."""
        return f"{self.cluster}." if self.cluster else ""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The prefixed topic names; None if they are not known in advance."""
        names = self.subscription.names
        return None if names is None else tuple(self.prefix + name for name in names)

    @property
    def first(self) -> str | datetime | Mapping[TopicPartition, int]:
        """`start`, by prefixed topic names."""
        if not isinstance(self.start, Mapping):
            return self.start
        return {TopicPartition(self.prefix + at.topic, at.partition): offset for at, offset in self.start.items()}

    def host(self, at: TopicPartition) -> str | None:
        """The host in `location` for a partition with a prefixed topic name."""
        if not isinstance(self.location, Mapping):
            return None
        topic = self.cluster_topic_name(at.topic)
        named: str | None = self.location.get(TopicPartition(topic, at.partition), self.location.get(topic))
        return named

    def cluster_topic_name(self, known: str) -> str:
        """The topic name without the prefix, as in its cluster."""
        return known.removeprefix(self.prefix)

    def owns_topic(self, known: str) -> bool:
        """Whether this source reads a topic, given by its prefixed name."""
        return known.startswith(self.prefix) and self.reads(self.cluster_topic_name(known))

    def reads(self, topic: str) -> bool:
        """Whether this source reads a topic, given by its name in the cluster."""
        return self.subscription.reads(topic)

    def _subscription(self) -> Subscription:
        given = [name for name in ("topics", "pattern", "partitions") if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are" if given else "neither topics nor pattern nor partitions is"
            raise ConfigError(
                f"expected topics or pattern or partitions, got {found}",
                hint='topics=["clicks"], or pattern="clicks.*"',
            )
        if self.pattern is not None:
            return Pattern(self.pattern)
        if self.partitions is not None:
            return Partitions(self.partitions)
        return self.topics if isinstance(self.topics, Subscription) else Topics(self.topics or ())

    def _check_position(self) -> None:
        object.__setattr__(self, "start", self._start())
        for name in ("resume", "split"):
            check_bool(name, getattr(self, name))
        if not self.resume and self.start == "stored":
            raise ConfigError(
                'start="stored" contradicts resume=False, which ignores stored offsets', hint='start="latest"'
            )
        if self.max_lag is not None:
            object.__setattr__(self, "max_lag", self._max_lag())
        check_choice("on_data_loss", self.on_data_loss, ["fail", "earliest", "latest"])
        check_positive("refresh", self.refresh, unit="seconds", hint="refresh=30")
        if self.cluster is not None and not (isinstance(self.cluster, str) and _CLUSTER.fullmatch(self.cluster)):
            raise wrong_value("cluster", "a name", self.cluster, 'cluster="east": letters, digits, - and _')

    def _start(self) -> str | datetime | Mapping[TopicPartition, int]:
        start = self.start
        if isinstance(start, str) and start not in {"earliest", "latest", "stored"}:
            try:
                start = datetime.fromisoformat(start)
            except ValueError:
                raise wrong_value("start", "a position or a time", self.start, f"start={_STARTS}") from None
        if isinstance(start, Mapping):
            offsets = by_partition("start", start)
            for at, offset in offsets.items():
                if not isinstance(at, TopicPartition) or not isinstance(offset, int) or offset < 0:
                    raise wrong_value(f"start: {at}", "an offset", offset, 'start={"clicks": {0: 1200}}')
            return {at: offset for at, offset in offsets.items() if isinstance(at, TopicPartition)}
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise ConfigError(f"start={start} has no time zone", hint=f'start="{start.isoformat()}Z"')
        elif not isinstance(start, str):
            raise wrong_value("start", "a position or a time", start, f"start={_STARTS}")
        return start

    def _max_lag(self) -> int | timedelta:
        limit = duration(self.max_lag) if isinstance(self.max_lag, str) else self.max_lag
        is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
        if not is_count and not (isinstance(limit, timedelta) and limit > timedelta()):
            raise wrong_value(
                "max_lag", "a number of records or a duration", self.max_lag, 'max_lag=100_000, or max_lag="10m"'
            )
        assert isinstance(limit, int | timedelta)
        return limit

    def _check_location(self) -> None:
        example = 'location="consistent", "brokers", or {"clicks": "host-1"}, or {"clicks": {0: "host-1"}}'
        if isinstance(self.location, Mapping):
            hosts = by_partition("location", self.location)
            if any(not isinstance(host, str) or not host for host in hosts.values()):
                raise wrong_value("location", "a host for each topic or partition", self.location, example)
            object.__setattr__(self, "location", hosts)
        elif self.location not in ("consistent", "brokers"):
            raise wrong_value("location", "consistent, brokers or hosts by topic", self.location, example)


def by_partition(argument: str, given: Mapping[Any, Any]) -> dict[TopicPartition | str, Any]:
    """Flatten `{"clicks": {0: x}}`, `{"clicks": x}` and `{TopicPartition("clicks", 0): x}` to one mapping."""
    found: dict[TopicPartition | str, Any] = {}
    for key, value in given.items():
        match key, value:
            case TopicPartition(topic, partition), _:
                found[TopicPartition(topic, partition)] = value
            case str(topic), Mapping():
                for number, inner in value.items():
                    if not re.fullmatch("[0-9]+", str(number)):  # in TOML every key is a string
                        raise ConfigError(f"{argument}: {topic}: expected the number of a partition, got {number!r}")
                    found[TopicPartition(topic, int(number))] = inner
            case str(topic), _:
                found[topic] = value
            case _:
                raise ConfigError(f"{argument}: expected a topic or a partition, got {key!r}")
    return found

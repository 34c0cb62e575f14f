"""The sources of a pipeline: their names, their topics, and the source of each topic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar

from headrace.errors import ConfigError
from headrace.kafka.source import Kafka
from headrace.support.validation import check_instance, wrong_value

_Name = TypeVar("_Name")

ROWS = "rows"
"""The name of a single source's rows in SQL."""
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def sources_by_name(given: Kafka | Mapping[str, Kafka]) -> dict[str, Kafka]:
    """One or several compatible sources, by the names of their rows in SQL."""
    example = 'hr.Kafka("localhost:9092", topics=["clicks"])'
    if isinstance(given, Kafka):
        return {ROWS: given}
    if not isinstance(given, Mapping):
        raise wrong_value("source", "headrace.kafka.source.Kafka, or a table of them", given, example)
    if not given:
        raise ConfigError("expected at least one source, got source={}", hint=f'source={{"clicks": {example}}}')
    known: dict[str, str] = {}
    lowered: dict[str, str] = {}
    for name, source in given.items():
        if (other := lowered.setdefault(str(name).lower(), name)) != name:
            raise ConfigError(f"the sources {other} and {name} have the same name in SQL, which ignores case")
        if not isinstance(name, str) or not _VIEW.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a valid name of a source: expected letters, digits and _, without a digit first",
                hint=f'source={{"clicks": {example}}}',
            )
        check_instance(f"source {name}", source, Kafka, hint=example)
        for topic in source.names or ():
            if topic in known:
                raise ConfigError(
                    f"both {known[topic]} and {name} read {topic}: their offsets would be the same",
                    hint='name the clusters: hr.Kafka(…, cluster="east"); or read the topic once',
                )
            known[topic] = name
    for name, source in given.items():
        for topic, other in known.items():
            if source.names is None and other != name and source.owns_topic(topic):
                raise ConfigError(
                    f"both {other} and {name} read {topic}: their offsets would be the same",
                    hint='a pattern that leaves it out; or name the clusters: hr.Kafka(…, cluster="east")',
                )
    return dict(given)


def refuse_skipping(sources: Mapping[str, Kafka], longest_delay: float) -> None:
    """ConfigError if records would be delayed until they exceed `max_lag`."""
    for source in sources.values():
        if isinstance(source.max_lag, timedelta) and source.max_lag.total_seconds() <= longest_delay:
            raise ConfigError(
                f"max_lag={source.max_lag} would skip records that min_records delays by up to {longest_delay:g} s",
                hint="Limits(max_delay=…) below max_lag",
            )


def source_for_topic(sources: Mapping[_Name, Kafka], topic: str) -> _Name | None:
    """The source that reads a topic, given by its prefixed name."""
    # A cluster prefix is more specific than a pattern.
    exact = sorted(sources, key=lambda name: -len(sources[name].prefix))
    return next((name for name in exact if sources[name].owns_topic(topic)), None)


def known_topics(sources: Mapping[str, Kafka]) -> tuple[str, ...] | None:
    """The prefixed names of all topics; None if they are not known in advance."""
    names = [source.names for source in sources.values()]
    return None if None in names else tuple(topic for given in names for topic in given or ())

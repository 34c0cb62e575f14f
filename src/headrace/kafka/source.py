"""Which records a pipeline reads: a description, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.errors import ConfigError
from headrace.formats.base import Format
from headrace.formats.plain import Bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

# Set by Headrace on every consumer: another value would break the batch's contract.
OWNED_OPTIONS = {
    "bootstrap.servers": "the first argument of Kafka",
    "group.id": "derived from the pipeline's name",
    "key.deserializer": "the source's format",
    "value.deserializer": "the source's format",
    "enable.auto.commit": "the offset store",
    "auto.offset.reset": "start=",
}

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Kafka topics as a source.

    `start` says where a topic is first read; from then on the stored offsets count. `on_data_loss` says what to do
    when the stored offsets are no longer in the log (deleted by retention, or a topic made anew): "fail", or go on at
    the "earliest" or "latest" record there, with the gap in the audit log. `options` are Kafka's own client settings,
    passed on untouched, for example `{"security.protocol": "SSL"}`.
    """

    bootstrap: str = field(kw_only=False)
    topics: Sequence[str]
    format: Format = field(default_factory=Bytes)
    start: Literal["earliest", "latest"] = "earliest"
    on_data_loss: Literal["fail", "earliest", "latest"] = "fail"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bootstrap, str) or not self.bootstrap.strip():
            raise ConfigError("Kafka(bootstrap) is empty", hint='Kafka("localhost:9092", topics=["clicks"])')
        if isinstance(self.topics, str):
            raise ConfigError(
                f"topics={self.topics!r} is one string; a list of names is meant",
                hint=f"topics=[{self.topics!r}]",
            )
        if not isinstance(self.topics, list | tuple | set | frozenset):
            raise ConfigError(f"topics={self.topics!r} is not a list of names", hint='topics=["clicks"]')
        if not self.topics:
            raise ConfigError("Kafka(topics=[]) names no topic", hint='topics=["clicks"]')
        for topic in self.topics:
            if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
                raise ConfigError(f"{topic!r} is not a name that Kafka gives to a topic")
        if not isinstance(self.format, Format):
            raise ConfigError(
                f"format={self.format!r} is not a format", hint='format=hr.Json("user STRING, page STRING")'
            )
        self.format.schema()  # raises for one that can only write
        if self.start not in {"earliest", "latest"}:
            raise ConfigError(f"start={self.start!r} is unknown", hint='start="earliest" or start="latest"')
        if self.on_data_loss not in {"fail", "earliest", "latest"}:
            raise ConfigError(
                f"on_data_loss={self.on_data_loss!r} is unknown", hint='on_data_loss="fail", "earliest" or "latest"'
            )
        if not isinstance(self.options, Mapping):
            raise ConfigError(
                "Kafka(options=…) is not a table of names and values", hint='options={"security.protocol": "SSL"}'
            )
        for name in self.options:
            if name in OWNED_OPTIONS:
                raise ConfigError(f"the option {name} is set by Headrace: use {OWNED_OPTIONS[name]}")
        object.__setattr__(self, "topics", tuple(dict.fromkeys(self.topics)))
        object.__setattr__(self, "options", {name: str(value) for name, value in self.options.items()})

"""Avro in Confluent's wire format: a zero byte, the id of the schema in four, and the row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.formats import avro_schema
from headrace.formats.base import Format, literal
from headrace.masking import masked
from headrace.spark.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUFFIX = "-value"


@dataclass(frozen=True, kw_only=True, repr=False)
class Avro(Format):
    """Avro records, with their schema in the registry at `registry`. It writes; it does not read yet.

    The schema is derived from the columns, or is `record_schema`, the JSON text of a record. It is registered under
    `subject`, by default `<topic>-value`, when the pipeline starts. `name` and `namespace` are those of the derived
    record, by default the topic and none. A user and password may stand in the address.
    """

    registry: str = field(kw_only=False)
    subject: str | None = None
    name: str | None = None
    namespace: str | None = None
    record_schema: str | None = None
    _ids: dict[tuple[str, str], int] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        from headrace.formats import registry  # here, for it loads Python's HTTP and TLS

        super().__post_init__()
        registry.checked(self.registry)
        if self.subject is not None and not self.subject:
            raise ConfigError("Avro(subject='') names no subject", hint='subject="clicks-value"')
        if self.name is not None and not avro_schema.allowed(self.name):
            raise ConfigError(
                f"name={self.name!r} is no name of an Avro record", hint=f"name={avro_schema.made_name(self.name)!r}"
            )
        if self.namespace is not None and not all(map(avro_schema.allowed, self.namespace.split("."))):
            raise ConfigError(f"namespace={self.namespace!r} is no namespace of Avro", hint='namespace="com.example"')
        if self.record_schema is not None:
            self._check_given(self.record_schema)

    def __repr__(self) -> str:
        return f"Avro({masked(self.registry)!r})"

    def schema(self) -> str:
        raise self._writes_only()

    def decoded(self) -> str:
        raise self._writes_only()

    def error(self) -> str | None:
        raise self._writes_only()

    def encoded(self, columns: Mapping[str, Any], topic: str | None) -> str:
        from headrace.formats import registry

        subject = self._subject(topic)
        text = self._text(columns, subject)
        if (subject, text) not in self._ids:
            self._ids[subject, text] = registry.register(self.registry, subject, text)
        return f"concat(X'00{self._ids[subject, text]:08X}', {self.body(columns, topic)})"

    def body(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """SQL: the same without the five bytes before, for which no registry is asked."""
        row = ", ".join(quoted(name) for name in columns)
        return f"to_avro(struct({row}), {literal(self._text(columns, self._subject(topic)))})"

    def _subject(self, topic: str | None) -> str:
        if self.subject is not None:
            return self.subject
        if topic is None:
            raise ConfigError(
                "Avro() with a topic_column needs the subject of the schema that all the topics share",
                hint='hr.Avro(…, subject="events-value")',
            )
        return f"{topic}{_SUFFIX}"

    def _text(self, columns: Mapping[str, Any], subject: str) -> str:
        if self.record_schema is not None:
            return self.record_schema
        name = self.name or avro_schema.made_name(subject.removesuffix(_SUFFIX))
        return json.dumps(avro_schema.record(columns, name, self.namespace), separators=(",", ":"))

    def _check_given(self, text: str) -> None:
        if self.name is not None or self.namespace is not None:
            raise ConfigError("Avro(record_schema=…) has its own name", hint="leave out name= and namespace=")
        try:
            given = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"record_schema is not JSON: {error}", hint="the text of an .avsc file") from error
        if not isinstance(given, dict) or given.get("type") != "record":
            raise ConfigError("record_schema is not the schema of a record", hint='{"type": "record", "name": …}')

    def _writes_only(self) -> ConfigError:
        return ConfigError(
            "Avro() writes only, so far",
            hint="format=hr.Bytes() in the source, and from_avro(substring(value, 6), …) in the transform",
        )

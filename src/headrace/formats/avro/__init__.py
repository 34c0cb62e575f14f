"""Avro: plain, by one schema, or in Confluent's wire format (a zero byte, the id of the schema in four, the value)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.format import Decoding, Format, Part
from headrace.errors import ConfigError
from headrace.formats.avro import schema as avro_schema
from headrace.formats.raw import only
from headrace.spark.sql import literal, quoted
from headrace.support.pipeline_folder import located
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EXAMPLE = 'hr.Avro(registry="http://localhost:8081"), or hr.Avro("customer.avsc")'
_SCALARS = {"boolean": "boolean", "int": "integer", "long": "long", "float": "float", "double": "double"} | {
    "string": "string",
    "bytes": "binary",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Avro(Format):
    """Avro values. With `registry`, its address, each names its schema there; without, all are of `schema`.

    `schema` is the JSON text of one, or the path of an .avsc file. A source reads by it, whatever schema a record was
    written by; without it by the newest one of the subject when a run starts. The subject is `subject`, by default
    `<topic>-value`, or `<topic>-key` for keys. A sink writes by `schema`, or by one that it derives from the columns
    and registers; `name` and `namespace` are those of the derived record, by default the topic and none. A user and
    password may stand in the address.
    """

    schema: str | Path | None = field(default=None, kw_only=False)
    registry: str | None = None
    subject: str | None = None
    name: str | None = None
    namespace: str | None = None
    _ids: dict[tuple[str, str], int] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema is None and self.registry is None:
            raise ConfigError("Avro() has neither a schema nor a registry", hint=_EXAMPLE)
        if self.schema is not None:
            object.__setattr__(self, "schema", _text(self.schema))
            if self.name is not None or self.namespace is not None:
                raise ConfigError("the schema of Avro(schema) has its own name", hint="leave out name= and namespace=")
        if self.registry is not None:
            from headrace.formats import schema_registry as registry  # here, for it loads Python's HTTP and TLS

            registry.checked(self.registry)
        elif self.subject is not None:
            raise ConfigError("Avro(subject=…) is of a registry", hint=_EXAMPLE)
        if self.subject is not None and not self.subject:
            raise ConfigError("Avro(subject='') names no subject", hint='subject="clicks-value"')
        if self.name is not None and not avro_schema.allowed(self.name):
            raise ConfigError(
                f"name={self.name!r} is no name of an Avro record", hint=f"name={avro_schema.made_name(self.name)!r}"
            )
        if self.namespace is not None and not all(map(avro_schema.allowed, self.namespace.split("."))):
            raise ConfigError(f"namespace={self.namespace!r} is no namespace of Avro", hint='namespace="com.example"')

    def __repr__(self) -> str:
        return f"Avro(registry={masked(self.registry)!r})" if self.registry else "Avro(schema)"

    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        from headrace.formats.avro.decoding import RegistryAvro
        from headrace.formats.avro.single_schema import PlainAvro

        given = None if self.schema is None else str(self.schema)
        if self.registry is None:
            assert given is not None
            return PlainAvro(spark, given)
        return RegistryAvro(spark, self.registry, part, self._subjects(part, topics), given)

    def check(self, part: Part, topics: Sequence[str]) -> None:
        if self.registry is None:
            return
        from headrace.formats import schema_registry as registry
        from headrace.formats.avro.decoding import nothing_to_read_by

        subjects = self._subjects(part, topics)
        there = [subject for subject in subjects if registry.versions(self.registry, subject)]
        if not there and self.schema is None:
            raise nothing_to_read_by(self.registry, subjects)

    def _subjects(self, part: Part, topics: Sequence[str]) -> list[str]:
        return [f"{topic}-{part}" for topic in topics] if self.subject is None else [self.subject]

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if self.registry is None:
            return self.body(columns, topic)
        from headrace.formats import schema_registry as registry

        subject = self._subject(topic)
        text = self._writer(columns, topic)
        if (subject, text) not in self._ids:
            self._ids[subject, text] = registry.register(self.registry, subject, text)
        return f"concat(X'00{self._ids[subject, text]:08X}', {self.body(columns, topic)})"

    def dry_run_encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if self.registry is not None:
            from headrace.formats import schema_registry as registry

            registry.refuse_incompatible(self.registry, self._subject(topic), self._writer(columns, topic))
        return self.body(columns, topic)

    def body(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """SQL: the same without the five bytes before, for which no registry is asked."""
        text = self._writer(columns, topic)
        if scalar := _SCALARS.get(json.loads(text) if text.startswith('"') else ""):
            return f"to_avro({only(self, columns, scalar)}, {literal(text)})"
        row = ", ".join(quoted(name) for name in columns)
        return f"to_avro(struct({row}), {literal(text)})"

    def _subject(self, topic: str | None) -> str:
        if self.subject is not None:
            return self.subject
        if topic is None:
            raise ConfigError(
                "Avro() with a topic_column needs the subject of the schema that all the topics share",
                hint='hr.Avro(…, subject="events-value")',
            )
        return f"{topic}-value"

    def _writer(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if self.schema is not None:
            return str(self.schema)
        name = self.name or avro_schema.made_name(self._subject(topic).removesuffix("-value"))
        return json.dumps(avro_schema.record(columns, name, self.namespace), separators=(",", ":"))


def _text(given: object) -> str:
    """The JSON text of a schema, out of a file if `given` is the path of one."""
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        raise ConfigError(f"{masked(given)!r} is an address, not a schema", hint=f"hr.Avro(registry={masked(given)!r})")
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".avsc")):
        try:
            given = located(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the Avro schema {str(given)!r} cannot be read: {error}") from error
    if isinstance(given, str):
        avro_schema.refuse_deep(given)
    try:
        schema = json.loads(given) if isinstance(given, str) else None
    except ValueError as error:
        raise ConfigError(f"the Avro schema is not JSON: {error}", hint="the text of an .avsc file") from error
    record = isinstance(schema, dict) and "type" in schema
    if not record and not (isinstance(schema, str) and schema in _SCALARS):
        raise ConfigError(
            "this is neither the Avro schema of a record nor of a simple type",
            hint='{"type": "record", "name": …}, or "string" with its quotes',
        )
    return str(given)

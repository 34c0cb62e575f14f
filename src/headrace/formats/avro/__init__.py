"""The Avro format: plain values of one schema, or Confluent's wire format (a zero byte, a schema id, the value)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.format import Decoding, Format, Part
from headrace.errors import ConfigError
from headrace.formats.avro import schema as avro_schema
from headrace.formats.raw import single_column
from headrace.spark.sql import literal, quoted
from headrace.support.pipeline_folder import resolve_path
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
    """Avro values. With `registry`, the URL of a schema registry, each value carries the id of its schema there.
    Without it all values have `schema`.

    `schema` is the JSON text of a schema, or the path of an .avsc file. It is the reader schema of a source; without it
    the reader schema is the newest version of the subject when the run starts. `subject` is `<topic>-value` by default,
    or `<topic>-key` for keys. A sink writes with `schema`, or with one that it derives from the columns and registers;
    `name` and `namespace` are those of the derived record, by default the topic and none. The URL may hold a user and a
    password.
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
            raise ConfigError("expected Avro(schema), Avro(registry=…) or both, got neither", hint=_EXAMPLE)
        if self.schema is not None:
            object.__setattr__(self, "schema", _text(self.schema))
            if self.name is not None or self.namespace is not None:
                raise ConfigError(
                    "name= and namespace= have no effect with a schema, which has its own name",
                    hint="leave out name= and namespace=",
                )
        if self.registry is not None:
            from headrace.formats.schema_registry import check_url  # here, because it loads Python's HTTP and TLS

            check_url(self.registry)
        elif self.subject is not None:
            raise ConfigError("Avro(subject=…) needs registry=", hint=_EXAMPLE)
        if self.subject is not None and not self.subject:
            raise ConfigError("Avro(subject='') is empty", hint='subject="clicks-value"')
        if self.name is not None and not avro_schema.is_valid_name(self.name):
            raise ConfigError(
                f"name={self.name!r} is not a valid name of an Avro record",
                hint=f"name={avro_schema.nearest_name(self.name)!r}",
            )
        if self.namespace is not None and not all(map(avro_schema.is_valid_name, self.namespace.split("."))):
            raise ConfigError(
                f"namespace={self.namespace!r} is not a valid namespace of Avro", hint='namespace="com.example"'
            )

    def __repr__(self) -> str:
        return f"Avro(registry={masked(self.registry)!r})" if self.registry else "Avro(schema)"

    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        from headrace.formats.avro.decoding import RegistryAvro
        from headrace.formats.avro.single_schema import PlainAvro
        from headrace.formats.schema_registry import SchemaRegistry

        given = None if self.schema is None else str(self.schema)
        if self.registry is None:
            assert given is not None
            return PlainAvro(spark, given)
        return RegistryAvro(spark, SchemaRegistry(self.registry), part, self._subjects(part, topics), given)

    def check(self, part: Part, topics: Sequence[str]) -> None:
        if self.registry is None:
            return
        from headrace.formats.avro.decoding import no_reader_schema
        from headrace.formats.schema_registry import SchemaRegistry

        registry, subjects = SchemaRegistry(self.registry), self._subjects(part, topics)
        registered = [subject for subject in subjects if registry.get_versions(subject)]
        if not registered and self.schema is None:
            raise no_reader_schema(registry, subjects)

    def _subjects(self, part: Part, topics: Sequence[str]) -> list[str]:
        return [f"{topic}-{part}" for topic in topics] if self.subject is None else [self.subject]

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if self.registry is None:
            return self.body(columns, topic)
        from headrace.formats.schema_registry import SchemaRegistry

        subject = self._subject(topic)
        text = self._writer_schema(columns, topic)
        if (subject, text) not in self._ids:
            self._ids[subject, text] = SchemaRegistry(self.registry).register_schema(subject, text)
        return f"concat(X'00{self._ids[subject, text]:08X}', {self.body(columns, topic)})"

    def dry_run_encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if self.registry is not None:
            from headrace.formats.schema_registry import SchemaRegistry

            registry = SchemaRegistry(self.registry)
            registry.check_compatibility(self._subject(topic), self._writer_schema(columns, topic))
        return self.body(columns, topic)

    def body(self, columns: Mapping[str, Any], topic: str | None) -> str:
        """SQL: the same without the five bytes of the wire format, which need the registry."""
        text = self._writer_schema(columns, topic)
        if scalar := _SCALARS.get(json.loads(text) if text.startswith('"') else ""):
            return f"to_avro({single_column(self, columns, scalar)}, {literal(text)})"
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

    def _writer_schema(self, columns: Mapping[str, Any], topic: str | None) -> str:
        if self.schema is not None:
            return str(self.schema)
        name = self.name or avro_schema.nearest_name(self._subject(topic).removesuffix("-value"))
        return json.dumps(avro_schema.record(columns, name, self.namespace), separators=(",", ":"))


def _text(given: object) -> str:
    """The JSON text of a schema; read from its file if `given` is a path."""
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        raise ConfigError(f"{masked(given)!r} is a URL, not a schema", hint=f"hr.Avro(registry={masked(given)!r})")
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".avsc")):
        try:
            given = resolve_path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the Avro schema {str(given)!r}: {error}") from error
    if isinstance(given, str):
        avro_schema.refuse_deep(given)
    try:
        schema = json.loads(given) if isinstance(given, str) else None
    except ValueError as error:
        raise ConfigError(f"the Avro schema is not JSON: {error}", hint="the text of an .avsc file") from error
    record = isinstance(schema, dict) and "type" in schema
    if not record and not (isinstance(schema, str) and schema in _SCALARS):
        raise ConfigError(
            "expected the Avro schema of a record or of a primitive type, got another one",
            hint='{"type": "record", "name": …}, or "string" with its quotes',
        )
    return str(given)

"""Decodes Avro in Confluent's wire format: each record by its own schema, into the columns of one reader schema."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.core.format import Part, SchemaLookupDecoding
from headrace.errors import ConfigError, HeadraceError
from headrace.formats.avro.single_schema import PlainAvro
from headrace.formats.schema_registry import RegisteredSchema, SchemaRegistry, TooLarge
from headrace.spark.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

_RETRY_SECONDS = 60.0
"""A schema that is not in the registry is requested again after this time."""
_MAX_RETRIES = 20
"""Missing schemas that are requested again between two batches."""
_MAX_REMEMBERED = 1_000
"""Missing schemas that are remembered, in addition to those of the batch in flight; and unreadable ones."""
_MAX_REQUESTS = 100
"""Unknown ids that are requested for one batch. Records with other ids are bad."""
_MAX_REFERENCES = 200
"""Schemas that one schema may refer to, directly or indirectly."""
_MAX_REASON = 600
"""Characters of the reason why a schema cannot be read: it is in the error of each bad record."""
_WIRE = "not in the wire format of a schema registry: expected a zero byte and a schema id first"


@dataclass(frozen=True, slots=True)
class _MissingSchema:
    """Since when a schema is known to be missing in the registry, and the topics whose records have its id."""

    since: float
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class _WriterSchema:
    """The schema that records with its id were written with, or the reason why they cannot be read."""

    schema: str
    misfit: str | None = None


def no_reader_schema(registry: SchemaRegistry, subjects: Iterable[str]) -> ConfigError:
    requested = ", ".join(subjects) or "no subject: the topics are not known yet"
    return ConfigError(
        f"{registry} has no reader schema; requested: {requested}",
        hint="give the subject: hr.Avro(registry=…, subject=…), or the schema: hr.Avro(schema, registry=…)",
    )


class RegistryAvro(PlainAvro, SchemaLookupDecoding):
    """Decodes records that carry the id of their schema in a registry.

    The reader schema is `schema`, or the newest version of the subjects when the run starts, so a run has the same
    columns in all batches.
    """

    def __init__(
        self,
        spark: Any,
        registry: SchemaRegistry,
        part: Part,
        subjects: Sequence[str],
        schema: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._registry, self._part, self._clock = spark, registry, part, clock
        self._subjects = set(subjects)
        self._known: dict[int, _WriterSchema] = {}
        self._missing: dict[int, _MissingSchema] = {}
        self._too_many = False
        schemas = {subject: self._fetch_versions(subject) for subject in subjects}
        SchemaLookupDecoding.__init__(self)
        PlainAvro.__init__(self, spark, schema if schema is not None else self._reader_schema(schemas))
        for schema_id, writer in {key: text for texts in schemas.values() for key, text in texts.items()}.items():
            self._add(schema_id, writer, own_subject=True)

    def decode_expr(self, source: str) -> str:
        self._retry_missing()
        branches: dict[str, list[int]] = {}
        for number, writer in sorted(self._known.items(), reverse=True):
            if writer.misfit is None:
                branches.setdefault(writer.schema, []).append(number)
        whens = [
            f"WHEN {_has_id(source, numbers)} THEN {self._read(source, schema, head=5)}"
            for schema, numbers in branches.items()
        ]
        bad = [f"{source} IS NULL", f"octet_length({source}) < 5", f"NOT startswith({source}, X'00')"]
        if unreadable := [*self._missing, *(number for number, writer in self._known.items() if writer.misfit)]:
            bad.append(_has_any_id(source, unreadable))
        # The CASE needs a branch that returns rows: its type gives the columns.
        always = whens or [f"WHEN false THEN {self._read(source, self._reader, head=5)}"]
        other = "NULL" if self._too_many else self.raise_unknown_schema_expr(_id_expr(source))
        return f"CASE {' '.join(always)} WHEN {' OR '.join(bad)} THEN NULL ELSE {other} END"

    def strict_decode_expr(self, source: str) -> str | None:
        # With a single schema no branch is needed: `is_valid_expr` compares the id.
        only = self._single_schema()
        return None if only is None else self._read(source, only[0], head=5)

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        only, read = self._single_schema(), super().is_valid_expr(source, decoded)
        return read if only is None else f"{_has_id(source, only[1])} AND {read}"

    def _single_schema(self) -> tuple[str, list[int]] | None:
        """The writer schema and its ids, if all known ids have the same one."""
        readable = {number: writer.schema for number, writer in self._known.items() if writer.misfit is None}
        schemas = set(readable.values())
        return (schemas.pop(), sorted(readable)) if len(schemas) == 1 else None

    def error_expr(self, source: str, decoded: str) -> str | None:
        whens = [f"WHEN octet_length({source}) < 5 OR NOT startswith({source}, X'00') THEN {literal(_WIRE)}"]
        if self._missing:
            missing = _has_any_id(source, self._missing)
            whens.append(f"WHEN {missing} THEN concat('schema id ', {_id_expr(source)}, ' is not in the registry')")
        whens += [
            f"WHEN {_has_id(source, [number])} THEN {literal(f'schema id {number} cannot be read: {writer.misfit}')}"
            for number, writer in self._known.items()
            if writer.misfit
        ]
        if self._too_many:
            reason = literal(f" was not requested: over {_MAX_REQUESTS} are unknown in the batch")
            known = _has_any_id(source, [*self._known, *self._missing])
            whens.append(f"WHEN NOT {known} THEN concat('schema id ', {_id_expr(source)}, {reason})")
        other = f"concat('not Avro of schema id ', {_id_expr(source)})"
        return f"CASE {self._valid_branches(source, decoded)} {' '.join(whens)} ELSE {other} END"

    def unknown_schema_filter(self, source: str) -> tuple[str, str]:
        other = [f"octet_length({source}) >= 5", f"startswith({source}, X'00')"]
        if self._known:
            other.append(f"NOT {_has_any_id(source, self._known)}")
        return " AND ".join(other), _id_expr(source)

    def start_batch(self) -> None:
        self._too_many = False

    def fetch_schemas(self, named: Mapping[int, Collection[str]]) -> str:
        unknown = {number: topics for number, topics in named.items() if number not in self._missing} or dict(named)
        new = dict(list(unknown.items())[:_MAX_REQUESTS])
        self._too_many = self._too_many or len(new) < len(unknown)
        if len(self._missing) + len(new) > _MAX_REMEMBERED:
            # But not those of the batch in flight: it would never end.
            self._missing = {number: absent for number, absent in self._missing.items() if number in named}
        unreadable = [number for number, writer in self._known.items() if writer.misfit]
        if len(unreadable) + len(new) > _MAX_REMEMBERED:  # they are requested again when a record has their id
            for number in unreadable:
                del self._known[number]
        summaries = [self._fetch_schema(number, frozenset(topics)) for number, topics in sorted(new.items())]
        more = f"; and {len(summaries) - 3} more" if len(summaries) > 3 else ""
        now = self._clock()  # after the last response, so that none is due before the batch is repeated
        for number in named.keys() & self._missing.keys():
            self._missing[number] = replace(self._missing[number], since=now)
        rest = f"; the other {len(unknown) - len(new):,} were not requested" if self._too_many else ""
        return "; ".join(summaries[:3]) + more + rest

    def _retry_missing(self) -> None:
        """Request some of the missing schemas again.

        Here, and not when a batch fails: a manual batch loop may read the rows of one batch for hours.
        """
        now = self._clock()
        due = [number for number, absent in self._missing.items() if now - absent.since >= _RETRY_SECONDS]
        try:
            for number in sorted(due, key=lambda number: self._missing[number].since)[:_MAX_RETRIES]:
                self._fetch_schema(number, self._missing[number].topics)
        except HeadraceError:  # its earlier response holds until the next one
            for number in due:
                if number in self._missing:
                    self._missing[number] = replace(self._missing[number], since=now)

    def _fetch_schema(self, number: int, topics: frozenset[str]) -> str:
        """Request one schema id, and return a sentence on the result."""
        try:
            found = self._registry.get_schema(number)
            if found is None:
                self._missing[number] = _MissingSchema(self._clock(), topics)
                return f"schema id {number} is not in {self._registry}: records with it are bad"
            subjects = {*self._subjects, *(f"{topic}-{self._part}" for topic in topics)}
            own_subject = bool(subjects & set(self._registry.get_subjects(number)))
        except TooLarge as error:  # this concerns one id: other records go on
            return self._unreadable(number, error)
        try:
            if found.type != "AVRO":
                raise ConfigError(f"expected the type AVRO, got {found.type}")
            self._add(number, self._resolve(found), own_subject=own_subject)
        except ConfigError as error:  # a registered schema must not be able to stop a run
            return self._unreadable(number, error)
        return f"schema id {number} was unknown; {self._registry} has it"

    def _unreadable(self, number: int, error: ConfigError) -> str:
        self._known[number] = _WriterSchema("", error.message[:_MAX_REASON])
        self._missing.pop(number, None)
        return f"schema id {number} cannot be read: {error.message[:_MAX_REASON]}"

    def _fetch_versions(self, subject: str) -> dict[int, str]:
        """The schemas of a subject by their ids, oldest first."""
        found = (self._registry.get_version(subject, number) for number in self._registry.get_versions(subject))
        versions = [version for version in found if version is not None]
        if other := [version.type for version in versions if version.type != "AVRO"]:
            raise ConfigError(
                f"expected schemas of the type AVRO in the subject {subject}, got {other[0]}",
                hint="hr.Protobuf(…) or hr.Json(…) as the format, or another subject=",
            )
        return {version.id: self._resolve(version) for version in versions}

    def _resolve(self, found: RegisteredSchema) -> str:
        from headrace.formats.avro import compatibility

        return compatibility.parse_schema(
            self._spark, found.schema, list(self._fetch_references(found, {}, set()).values())
        )

    def _fetch_references(
        self, found: RegisteredSchema, fetched: dict[tuple[str, int], str], requested: set[tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """The schemas that a schema refers to, each after those that it refers to itself."""
        for subject, number in found.references:
            if (subject, number) not in requested:
                requested.add((subject, number))
                if len(requested) > _MAX_REFERENCES:
                    raise ConfigError(f"schema id {found.id} refers to more than {_MAX_REFERENCES} others")
                referenced = self._registry.get_version(subject, number)
                if referenced is None:
                    raise ConfigError(
                        f"schema id {found.id} refers to version {number} of {subject}, which is not in the registry",
                        hint=f"register it again in {self._registry}",
                    )
                self._fetch_references(referenced, fetched, requested)
                fetched[subject, number] = referenced.schema
        return fetched

    def _reader_schema(self, schemas: dict[str, dict[int, str]]) -> str:
        """The newest schema of the subjects, which must agree on the columns."""
        from headrace.formats.avro import compatibility

        newest = {subject: list(texts.values())[-1] for subject, texts in schemas.items() if texts}
        if not newest:
            raise no_reader_schema(self._registry, schemas)
        (first, schema), *others = newest.items()
        for subject, other in others:
            if compatibility.spark_type(self._spark, other) != compatibility.spark_type(self._spark, schema):
                raise ConfigError(
                    f"the schemas of {first} and {subject} have different columns",
                    hint="give the reader schema of all topics: hr.Avro(schema, registry=…)",
                )
        return schema

    def _add(self, number: int, schema: str, *, own_subject: bool) -> None:
        from headrace.formats.avro import compatibility

        misfit = compatibility.incompatibility(self._spark, self._reader, schema, any_name=own_subject)
        self._known[number] = _WriterSchema(schema, misfit and misfit[:_MAX_REASON])
        self._missing.pop(number, None)


def _has_id(source: str, ids: Sequence[int]) -> str:
    """SQL: whether a record has one of these schema ids; fast for few ids."""
    return "(" + " OR ".join(f"startswith({source}, X'00{schema_id:08X}')" for schema_id in ids) + ")"


def _has_any_id(source: str, ids: Iterable[int]) -> str:
    """SQL: the same for any number of ids."""
    listed = ", ".join(f"X'{schema_id:08X}'" for schema_id in ids)
    return f"substring({source}, 2, 4) IN ({listed})"


def _id_expr(source: str) -> str:
    return f"conv(hex(substring({source}, 2, 4)), 16, 10)"

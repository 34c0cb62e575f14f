"""Avro to columns: by one schema, or by the schema that each record names and a reader's schema for all."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.core.format import Part, SchemaLookupDecoding
from headrace.errors import ConfigError, HeadraceError
from headrace.formats import schema_registry
from headrace.formats.avro.single_schema import PlainAvro
from headrace.spark.sql import literal
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

_AGAIN = 60.0
"""Seconds for which a schema that the registry does not have is not asked for again."""
_AT_ONCE = 20
"""Of those that are asked for again between two batches, at the most."""
_REMEMBERED = 1_000
"""Of those that the registry does not have, beside the ones of the batch in flight; and of unreadable ones."""
_ASKED = 100
"""Unknown ids that are asked for in one batch. Records that name the others are bad."""
_REFERENCES = 200
"""Other schemas that one may refer to, directly or not."""
_LONGEST = 600
"""Characters of why a schema cannot be read: it may list a hundred thousand symbols, and each bad record says it."""
_WIRE = "not in the wire format of a schema registry: a zero byte and the id of a schema come first"


@dataclass(frozen=True, slots=True)
class _Absent:
    """Since when it is known that the registry does not have a schema, and the topics whose records name it."""

    since: float
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Writer:
    """A schema that records name by its id, or why records that do cannot be read."""

    schema: str
    misfit: str | None = None


def nothing_to_read_by(url: str, subjects: Iterable[str]) -> ConfigError:
    asked = ", ".join(subjects) or "no subject: the topics are not known yet"
    return ConfigError(
        f"the schema registry at {masked(url)} has no schema to read by; asked for: {asked}",
        hint="name it: hr.Avro(registry=…, subject=…), or give it: hr.Avro(schema, registry=…)",
    )


class RegistryAvro(PlainAvro, SchemaLookupDecoding):
    """Records that name their schema by its id in a registry.

    Read by `schema`, or by the newest one of the subjects: a run has the same columns from its first batch to its last.
    """

    def __init__(
        self,
        spark: Any,
        url: str,
        part: Part,
        subjects: Sequence[str],
        schema: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._url, self._part, self._clock = spark, url, part, clock
        self._subjects = set(subjects)
        self._known: dict[int, _Writer] = {}
        self._missing: dict[int, _Absent] = {}
        self._too_many = False
        found = {subject: self._versions(subject) for subject in subjects}
        SchemaLookupDecoding.__init__(self)
        PlainAvro.__init__(self, spark, schema if schema is not None else self._newest(found))
        for number, writer in {number: text for texts in found.values() for number, text in texts.items()}.items():
            self._add(number, writer, ours=True)

    def decode_expr(self, source: str) -> str:
        self._ask_again()
        branches: dict[str, list[int]] = {}
        for number, writer in sorted(self._known.items(), reverse=True):
            if writer.misfit is None:
                branches.setdefault(writer.schema, []).append(number)
        whens = [
            f"WHEN {_names(source, numbers)} THEN {self._read(source, schema, head=5)}"
            for schema, numbers in branches.items()
        ]
        bad = [f"{source} IS NULL", f"octet_length({source}) < 5", f"NOT startswith({source}, X'00')"]
        if unreadable := [*self._missing, *(number for number, writer in self._known.items() if writer.misfit)]:
            bad.append(_is_of(source, unreadable))
        # Without a branch that gives rows, the CASE would have no columns.
        always = whens or [f"WHEN false THEN {self._read(source, self._reader, head=5)}"]
        other = "NULL" if self._too_many else self.raise_unknown_schema_expr(_number(source))
        return f"CASE {' '.join(always)} WHEN {' OR '.join(bad)} THEN NULL ELSE {other} END"

    def strict_decode_expr(self, source: str) -> str | None:
        # Where there is one schema alone nothing is chosen by the id: whether it is that of the schema, `good` tells.
        only = self._only()
        return None if only is None else self._read(source, only[0], head=5)

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        only, read = self._only(), super().is_valid_expr(source, decoded)
        return read if only is None else f"{_names(source, only[1])} AND {read}"

    def _only(self) -> tuple[str, list[int]] | None:
        """The schema of all that is known, and its ids."""
        readable = {number: writer.schema for number, writer in self._known.items() if writer.misfit is None}
        schemas = set(readable.values())
        return (schemas.pop(), sorted(readable)) if len(schemas) == 1 else None

    def error_expr(self, source: str, decoded: str) -> str | None:
        whens = [f"WHEN octet_length({source}) < 5 OR NOT startswith({source}, X'00') THEN {literal(_WIRE)}"]
        if self._missing:
            said = f"concat('schema id ', {_number(source)}, ' is not in the registry')"
            whens.append(f"WHEN {_is_of(source, self._missing)} THEN {said}")
        whens += [
            f"WHEN {_names(source, [number])} THEN {literal(f'schema id {number} cannot be read: {writer.misfit}')}"
            for number, writer in self._known.items()
            if writer.misfit
        ]
        if self._too_many:
            said = (
                f"concat('schema id ', {_number(source)}, ' was not asked for: over {_ASKED} are unknown in the batch')"
            )
            whens.append(f"WHEN NOT {_is_of(source, [*self._known, *self._missing])} THEN {said}")
        other = f"concat('not Avro of schema id ', {_number(source)})"
        return f"CASE {self._good(source, decoded)} {' '.join(whens)} ELSE {other} END"

    def unknown_schema_filter(self, source: str) -> tuple[str, str]:
        other = [f"octet_length({source}) >= 5", f"startswith({source}, X'00')"]
        if self._known:
            other.append(f"NOT {_is_of(source, self._known)}")
        return " AND ".join(other), _number(source)

    def start_batch(self) -> None:
        self._too_many = False

    def fetch_schemas(self, named: Mapping[int, Collection[str]]) -> str:
        unknown = {number: topics for number, topics in named.items() if number not in self._missing} or dict(named)
        new = dict(list(unknown.items())[:_ASKED])
        self._too_many = self._too_many or len(new) < len(unknown)
        if len(self._missing) + len(new) > _REMEMBERED:
            # None of the batch in flight, or it would never be done.
            self._missing = {number: absent for number, absent in self._missing.items() if number in named}
        unreadable = [number for number, writer in self._known.items() if writer.misfit]
        if len(unreadable) + len(new) > _REMEMBERED:  # they are asked for again where a record names them
            for number in unreadable:
                del self._known[number]
        told = [self._learnt(number, frozenset(topics)) for number, topics in sorted(new.items())]
        more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
        now = self._clock()  # after the last answer, so that none is old before the batch is repeated
        for number in named.keys() & self._missing.keys():
            self._missing[number] = replace(self._missing[number], since=now)
        rest = f"; the other {len(unknown) - len(new):,} were not asked for" if self._too_many else ""
        return "; ".join(told[:3]) + more + rest

    def _ask_again(self) -> None:
        """For some of the schemas that the registry did not have.

        Here, and not by a batch that fails for them: a loop may read the rows of one batch for hours.
        """
        now = self._clock()
        old = [number for number, absent in self._missing.items() if now - absent.since >= _AGAIN]
        try:
            for number in sorted(old, key=lambda number: self._missing[number].since)[:_AT_ONCE]:
                self._learnt(number, self._missing[number].topics)
        except HeadraceError:  # what it said before holds until it says something else
            for number in old:
                if number in self._missing:
                    self._missing[number] = replace(self._missing[number], since=now)

    def _learnt(self, number: int, topics: frozenset[str]) -> str:
        where = f"the schema registry at {masked(self._url)}"
        try:
            found = schema_registry.by_id(self._url, number)
            if found is None:
                self._missing[number] = _Absent(self._clock(), topics)
                return f"schema id {number} is not in {where}: records that name it are bad"
            subjects = {*self._subjects, *(f"{topic}-{self._part}" for topic in topics)}
            ours = subjects & set(schema_registry.subjects_of(self._url, number))
        except schema_registry.TooLarge as error:  # of this id alone: other records go on
            return self._unreadable(number, error)
        try:
            if found.type != "AVRO":
                raise ConfigError(f"it is of the type {found.type}, not AVRO")
            self._add(number, self._text(found), ours=bool(ours))
        except ConfigError as error:  # whoever may register a schema must not be able to stop a run with it
            return self._unreadable(number, error)
        return f"schema id {number} was not known; {where} has it"

    def _unreadable(self, number: int, error: ConfigError) -> str:
        self._known[number] = _Writer("", error.message[:_LONGEST])
        self._missing.pop(number, None)
        return f"schema id {number} cannot be read: {error.message[:_LONGEST]}"

    def _versions(self, subject: str) -> dict[int, str]:
        """The schemas of a subject by their ids, oldest first."""
        found = (
            schema_registry.version(self._url, subject, number)
            for number in schema_registry.versions(self._url, subject)
        )
        versions = [one for one in found if one is not None]
        if other := [one.type for one in versions if one.type != "AVRO"]:
            raise ConfigError(
                f"the subject {subject} holds schemas of the type {other[0]}, not AVRO",
                hint="hr.Protobuf(…) or hr.Json(…) as the format, or another subject=",
            )
        return {one.id: self._text(one) for one in versions}

    def _text(self, found: schema_registry.RegisteredSchema) -> str:
        from headrace.formats.avro import compatibility

        return compatibility.parsed(self._spark, found.schema, list(self._named(found, {}, set()).values()))

    def _named(
        self, found: schema_registry.RegisteredSchema, seen: dict[tuple[str, int], str], asked: set[tuple[str, int]]
    ) -> dict[tuple[str, int], str]:
        """The schemas that one refers to, each after those that it needs itself."""
        for subject, number in found.references:
            if (subject, number) not in asked:
                asked.add((subject, number))
                if len(asked) > _REFERENCES:
                    raise ConfigError(f"schema id {found.id} refers to more than {_REFERENCES} others")
                named = schema_registry.version(self._url, subject, number)
                if named is None:
                    raise ConfigError(
                        f"schema id {found.id} refers to version {number} of {subject}, which is not in the registry",
                        hint=f"register it again at {masked(self._url)}",
                    )
                self._named(named, seen, asked)
                seen[subject, number] = named.schema
        return seen

    def _newest(self, found: dict[str, dict[int, str]]) -> str:
        """The one schema to read all by."""
        from headrace.formats.avro import compatibility

        newest = {subject: list(texts.values())[-1] for subject, texts in found.items() if texts}
        if not newest:
            raise nothing_to_read_by(self._url, found)
        (first, schema), *others = newest.items()
        for subject, other in others:
            if compatibility.columns(self._spark, other) != compatibility.columns(self._spark, schema):
                raise ConfigError(
                    f"the schemas of {first} and {subject} have different columns",
                    hint="give the one to read all topics by: hr.Avro(schema, registry=…)",
                )
        return schema

    def _add(self, number: int, schema: str, *, ours: bool) -> None:
        from headrace.formats.avro import compatibility

        misfit = compatibility.misfit(self._spark, self._reader, schema, any_name=ours)
        self._known[number] = _Writer(schema, misfit and misfit[:_LONGEST])
        self._missing.pop(number, None)


def _names(source: str, numbers: Sequence[int]) -> str:
    """SQL: whether a record names one of these schemas."""
    return "(" + " OR ".join(f"startswith({source}, X'00{number:08X}')" for number in numbers) + ")"


def _is_of(source: str, numbers: Iterable[int]) -> str:
    """The same of any number of schemas."""
    ids = ", ".join(f"X'{number:08X}'" for number in numbers)
    return f"substring({source}, 2, 4) IN ({ids})"


def _number(source: str) -> str:
    return f"conv(hex(substring({source}, 2, 4)), 16, 10)"

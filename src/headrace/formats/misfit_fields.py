"""Which field of a bad record does not fit its type, in SQL. Asked of bad records alone, so it may be slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST = 200
"""Fields that are looked at one by one: each is a piece of SQL."""
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Field:
    """A value without fields of its own, somewhere in a row."""

    path: tuple[str, ...]
    """The names on the way to it; `[]` stands for the elements of an array, `{}` for the values of a map."""
    kind: Any
    """Its type, as Spark's JSON of a schema has it."""

    @property
    def name(self) -> str:
        return ".".join(self.path).replace(".[]", "[]").replace(".{}", "{}")

    @property
    def single(self) -> bool:
        """Whether it stands once in a row."""
        return not {"[]", "{}"} & set(self.path)

    @property
    def type(self) -> str:
        """As people write it: BIGINT, DECIMAL(10,2)."""
        from headrace.spark import ddl

        return ddl.type_name(self.kind)

    def ddl(self, more: str) -> str:
        """The type of a row that has this field alone, and `more`."""
        kind = self.type
        for step in reversed(self.path):
            match step:
                case "[]":
                    kind = f"ARRAY<{kind}>"
                case "{}":
                    kind = f"MAP<STRING, {kind}>"
                case _:
                    kind = f"STRUCT<{quoted(step)}: {kind}>"
        return f"{kind[:-1]}, {more}>"

    @property
    def json_path(self) -> str | None:
        """Of it, or of the array or map that it is in; None for a name that such a path cannot have."""
        names = []
        for step in self.path:
            if step in ("[]", "{}"):
                break
            names.append(step)
        return None if any(set(name) & set("'\"[]*\\") for name in names) else "$" + "".join(f"['{n}']" for n in names)


def fields(row: Any) -> Sequence[Field]:
    """Of a struct, in their order."""
    return list(_fields((), row))[:_MOST]


def _fields(path: tuple[str, ...], kind: Any) -> Iterator[Field]:
    match kind:
        case {"type": "struct", "fields": inside}:
            for field in inside:
                yield from _fields((*path, field["name"]), field["type"])
        case {"type": "array", "elementType": element}:
            yield from _fields((*path, "[]"), element)
        case {"type": "map", "valueType": value}:
            yield from _fields((*path, "{}"), value)
        case _:
            yield Field(path, kind)


def misfit(field: Field, got: str | None) -> str:
    """SQL: what is said of it; `got` is SQL for what stands there."""
    said = literal(f"field {field.name}: expected {field.type}")
    if got is None:
        return said
    cut = f"if(length({got}) > {_SHOWN}, concat(substring({got}, 1, {_SHOWN}), '…'), {got})"
    # It is somebody else's text, which a terminal must not obey.
    return f"concat({said}, coalesce(concat(', got \\'', regexp_replace({cut}, '\\\\p{{C}}', '?'), '\\''), ''))"

"""SQL that finds the mismatched field of a bad record. It runs for bad records only, so it may be slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_FIELDS = 200
"""Fields that are checked: each adds an expression."""
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a row, at any depth, that has no fields itself."""

    path: tuple[str, ...]
    """The names that lead to it; `[]` stands for the elements of an array, `{}` for the values of a map."""
    kind: Any
    """Its type in Spark's JSON notation."""

    @property
    def name(self) -> str:
        return ".".join(self.path).replace(".[]", "[]").replace(".{}", "{}")

    @property
    def single(self) -> bool:
        """Whether a row has it exactly once."""
        return not {"[]", "{}"} & set(self.path)

    @property
    def type(self) -> str:
        """The name of the type in SQL: BIGINT, DECIMAL(10,2)."""
        from headrace.spark import ddl

        return ddl.type_name(self.kind)

    def ddl(self, more: str) -> str:
        """The type of a row with only this field, and `more`."""
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
        """Its JSON path, or that of the array or map that contains it; None if a path cannot have one of the names."""
        names = []
        for step in self.path:
            if step in ("[]", "{}"):
                break
            names.append(step)
        return None if any(set(name) & set("'\"[]*\\") for name in names) else "$" + "".join(f"['{n}']" for n in names)


def fields(row: Any) -> Sequence[Field]:
    """The fields of a struct, in order."""
    return list(_fields((), row))[:_MAX_FIELDS]


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


def mismatch_expr(field: Field, got: str | None) -> str:
    """SQL: the error text for a field; `got` is SQL for its text in the record."""
    expected = literal(f"field {field.name}: expected {field.type}")
    if got is None:
        return expected
    cut = f"if(length({got}) > {_SHOWN}, concat(substring({got}, 1, {_SHOWN}), '…'), {got})"
    # Control characters are replaced: the text is not trusted.
    return f"concat({expected}, coalesce(concat(', got \\'', regexp_replace({cut}, '\\\\p{{C}}', '?'), '\\''), ''))"

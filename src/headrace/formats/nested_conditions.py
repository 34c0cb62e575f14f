"""Conditions on the values inside a value of a nested type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace.spark.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator


class Look(Protocol):
    def __call__(self, path: str, kind: Any, *, many: bool) -> str | None:
        """SQL: whether it holds for the value at `path`, or, if `many`, for one in the array there; None: it never
        does for values of this kind."""


def any_nested(path: str, kind: Any, look: Look) -> str | None:
    """SQL: whether `look` holds for a value somewhere in the one at `path`; not true, or NULL, if it does not.

    `kind` is the type of it as Spark's JSON of a schema has it. None: it never holds.
    """
    return " OR ".join(_any_nested(path, kind, look, many=False)) or None


def _any_nested(path: str, kind: Any, look: Look, *, many: bool) -> Iterator[str]:
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                yield from _any_nested(f"{path}.{quoted(field['name'])}", field["type"], look, many=many)
        case {"type": "array", "elementType": element} if not many:
            yield from _any_nested(path, element, look, many=True)
        case {"type": "map", "keyType": key, "valueType": value} if not many:
            yield from _any_nested(f"map_keys({path})", key, look, many=True)
            yield from _any_nested(f"map_values({path})", value, look, many=True)
        case {"type": "array" | "map"}:
            # A function of SQL costs the generated code, so it is kept for arrays of arrays.
            if found := any_nested("each", kind, look):
                yield f"exists({path}, each -> {found})"
        case _:
            if found := look(path, kind, many=many):
                yield found

"""SQL conditions on the values inside a nested value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace.spark.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator


class Condition(Protocol):
    def __call__(self, path: str, kind: Any, *, many: bool) -> str | None:
        """SQL: whether it holds for the value at `path` or, if `many`, for an element of the array there.

        None: it never holds for values of this type.
        """


def any_nested(path: str, kind: Any, condition: Condition) -> str | None:
    """SQL: whether `condition` holds for a value somewhere in the one at `path`; not true, or NULL, if it does not.

    `kind` is its type in Spark's JSON notation. None: it never holds.
    """
    return " OR ".join(_any_nested(path, kind, condition, many=False)) or None


def _any_nested(path: str, kind: Any, condition: Condition, *, many: bool) -> Iterator[str]:
    match kind:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                yield from _any_nested(f"{path}.{quoted(field['name'])}", field["type"], condition, many=many)
        case {"type": "array", "elementType": element} if not many:
            yield from _any_nested(path, element, condition, many=True)
        case {"type": "map", "keyType": key, "valueType": value} if not many:
            yield from _any_nested(f"map_keys({path})", key, condition, many=True)
            yield from _any_nested(f"map_values({path})", value, condition, many=True)
        case {"type": "array" | "map"}:
            # A lambda disables generated code, so it is used for arrays of arrays only.
            if found := any_nested("each", kind, condition):
                yield f"exists({path}, each -> {found})"
        case _:
            if found := condition(path, kind, many=many):
                yield found

"""A gate around the transform: a batch whose rows are not as expected is not published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.transforms import refuse_wrong_arguments

Transform = Callable[[Any], Any]


class Gate:
    """A transform with conditions on its result. Called with a function, it is around that one: a decorator."""

    def __init__(self, conditions: Mapping[str, float], transform: Transform | None = None) -> None:
        if not isinstance(conditions, Mapping) or not conditions:
            raise ConfigError(
                f"expect({conditions!r}): conditions and their shares are meant",
                hint='hr.expect({"user IS NOT NULL": 0.99})',
            )
        for condition, share in conditions.items():
            number = isinstance(share, int | float) and not isinstance(share, bool)
            if not isinstance(condition, str) or not condition.strip() or not number or not 0 < share <= 1:
                raise ConfigError(
                    f"expect: {condition!r}: {share!r}: a condition in SQL and the least share of rows that meet it",
                    hint='hr.expect({"user IS NOT NULL": 0.99})',
                )
        if transform is not None and not callable(transform):
            raise ConfigError(f"expect: {transform!r} is not a function", hint="lambda rows: rows.where(…)")
        if transform is not None:
            refuse_wrong_arguments(transform)
        self.conditions = dict(conditions)
        self._transform = transform
        if isinstance(transform, Gate):  # one around another: both are asked
            shares = transform.conditions
            both = {name: max(share, shares.get(name, share)) for name, share in conditions.items()}
            self.conditions, self._transform = {**shares, **both}, transform._transform

    def __call__(self, rows: Any) -> Any:
        if callable(rows):
            return Gate(self.conditions, rows)
        return rows if self._transform is None else self._transform(rows)


def expect(conditions: Mapping[str, float], transform: Transform | None = None) -> Gate:
    """Publish a batch only if enough of its rows meet each condition: `expect({"user IS NOT NULL": 0.99})`.

    Use it as the transform, with a transform as the second argument, or as a decorator. The conditions are SQL over
    the transform's result; a row for which one is NULL does not meet it.
    """
    return Gate(conditions, transform)

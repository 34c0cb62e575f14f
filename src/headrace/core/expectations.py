"""Expectations on the rows of a batch: SQL conditions, each with a minimum share."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ConfigError

_HINT = 'expect={"user IS NOT NULL": 0.99}'


def refuse_wrong_conditions(conditions: object) -> None:
    """ConfigError if these are not conditions, each with the minimum share of rows that meet it."""
    if not isinstance(conditions, Mapping) or not conditions:
        raise ConfigError(f"expect={conditions!r}: expected conditions and their shares", hint=_HINT)
    for condition, share in conditions.items():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not isinstance(condition, str) or not condition.strip() or not number or not 0 < share <= 1:
            raise ConfigError(
                f"expect: expected a condition in SQL and a share above 0, up to 1, got {condition!r}: {share!r}",
                hint=_HINT,
            )

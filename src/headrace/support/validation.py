"""Checks arguments. Each function raises ConfigError with the name of the argument and the expected and given value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from headrace.errors import ConfigError
from headrace.support.durations import seconds
from headrace.support.redaction import masked
from headrace.support.suggest import did_you_mean


def wrong_value(argument: str, expected: str, value: object, hint: str | None = None) -> ConfigError:
    return ConfigError(f"{argument}: expected {expected}, got {masked(repr(value))}", hint=hint)


def check_whole_number(
    argument: str,
    value: object,
    *,
    minimum: int = 1,
    maximum: int | None = None,
    unit: str = "",
    hint: str | None = None,
) -> None:
    """Check for a whole number from `minimum` to `maximum`."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < minimum or (maximum is not None and value > maximum):  # type: ignore[operator]
        limits = f", at least {minimum:,}" if maximum is None else f" from {minimum:,} to {maximum:,}"
        raise wrong_value(argument, f"a whole number{unit and f' of {unit}'}{limits}", value, hint)


def check_positive(
    argument: str, value: object, *, maximum: float = math.inf, unit: str = "", hint: str | None = None
) -> None:
    """Check for a finite number above 0, up to `maximum`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= maximum or value == math.inf:  # type: ignore[operator]
        limit = "" if maximum == math.inf else f" and up to {maximum:,}"
        raise wrong_value(argument, f"a number{unit and f' of {unit}'} above 0{limit}", value, hint)


def check_duration(argument: str, value: object, *, hint: str | None = None) -> float:
    """Check for a text such as "10m", a timedelta, or a number of seconds. Return the seconds."""
    length = seconds(value)
    if length is None:
        raise wrong_value(argument, "a duration above 0", value, hint)
    return length


def check_choice(argument: str, value: object, choices: Iterable[str], *, hint: str | None = None) -> None:
    """Check for one of `choices`; the hint names the nearest one."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else None
        expected = known[0] if len(known) == 1 else f"one of {', '.join(known)}"
        raise wrong_value(argument, expected, value, near or hint or f'{argument}="{known[0]}"')


def check_bool(argument: str, value: object) -> None:
    if not isinstance(value, bool):
        raise wrong_value(argument, "True or False", value, f"{argument}=True")


def check_text(argument: str, value: object, *, expected: str = "a name", hint: str | None = None) -> None:
    """Check for a non-empty text."""
    if not isinstance(value, str) or not value.strip():
        raise wrong_value(argument, expected, value, hint)


def check_table_name(value: object, *, max_parts: int | None = None, hint: str = 'table="clicks"') -> None:
    """Check for a table name, which may have several parts separated by dots."""
    parts = value.split(".") if isinstance(value, str) else [""]
    if not all(parts) or (max_parts is not None and len(parts) > max_parts):
        raise wrong_value("table", "the name of a table", value, hint)


def check_instance(argument: str, value: object, kind: type, *, hint: str | None = None) -> None:
    if not isinstance(value, kind):
        raise wrong_value(argument, f"{kind.__module__}.{kind.__qualname__}", value, hint)


def check_pattern(argument: str, value: object, *, hint: str | None = None) -> None:
    """Check for a non-empty regular expression."""
    try:
        re.compile(value)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise wrong_value(argument, "a regular expression", value, hint or str(error)) from error
    if not value:
        raise wrong_value(argument, "a regular expression", value, hint)


def column_names(argument: str, value: object, *, hint: str | None = None) -> tuple[str, ...]:
    """Check for one or several column names, and return them as a tuple."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise wrong_value(argument, "the name of a column, or a list of names", value, hint)
    return names

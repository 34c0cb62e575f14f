"""Checks a user's transform without calling it, and classifies the error that it raised on no rows."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.support.suggest import did_you_mean
from headrace.support.tracebacks import shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

_PROGRAMMING = (NameError, ImportError, SyntaxError, NotImplementedError)


class UnknownSource(KeyError):
    """Raised if a transform uses the name of a source that does not exist."""

    def __init__(self, name: object, known: Iterable[str]) -> None:
        super().__init__(name)
        self.message = f"expected a source of {', '.join(known)}, got {name!r}"
        self.hint = did_you_mean(str(name), known) or f'rows["{next(iter(known), "clicks")}"]'

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}"


class Frames(dict[str, "DataFrame"]):
    """The argument of a transform over several sources: the rows of each, by name."""

    def __missing__(self, name: object) -> DataFrame:
        raise UnknownSource(name, list(self))


def refuse_wrong_arguments(transform: Callable[..., Any]) -> None:
    """ConfigError if the transform cannot be called with one argument, the rows."""
    try:
        signature = inspect.signature(transform)
    except (TypeError, ValueError):
        return  # a function in C has no signature: the first call shows it
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise ConfigError(
            f"the transform {name}{signature}{_at(transform)}: expected one argument, the rows",
            hint="def transform(rows): …; functools.partial(transform, …) sets the others",
        ) from None


def cannot_run(error: Exception) -> bool:
    """Whether the error that a transform raised on no rows occurs on all rows, such as an unknown name or a wrong call.

    An error caused by a missing row may not occur with rows.
    """
    if isinstance(error, AttributeError | TypeError):
        return "NoneType" not in str(error)
    return isinstance(error, _PROGRAMMING)


def _at(transform: Callable[..., Any]) -> str:
    function = inspect.unwrap(transform)
    # For a callable object, the line of its __call__.
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return f" at {shown_path(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""

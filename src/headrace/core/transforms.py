"""What can be said of a user's transform without calling it, and of what it raised on no rows."""

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
    """A source that a transform asks for and that is not there."""

    def __init__(self, name: object, known: Iterable[str]) -> None:
        super().__init__(name)
        self.message = f"expected a source of {', '.join(known)}, got {name!r}"
        self.hint = did_you_mean(str(name), known) or f'rows["{next(iter(known), "clicks")}"]'

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}"


class Frames(dict[str, "DataFrame"]):
    """What a transform over several sources takes: the rows of each, by its name."""

    def __missing__(self, name: object) -> DataFrame:
        raise UnknownSource(name, list(self))


def refuse_wrong_arguments(transform: Callable[..., Any]) -> None:
    """ConfigError if it cannot be called with one argument, the rows."""
    try:
        signature = inspect.signature(transform)
    except (TypeError, ValueError):
        return  # written in C: the first call tells
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise ConfigError(
            f"the transform {name}{signature}{_at(transform)}: expected one argument, the rows",
            hint="def transform(rows): …; functools.partial(transform, …) sets the others",
        ) from None


def cannot_run(error: Exception) -> bool:
    """Whether what a transform raised on no rows would be raised on any: a name that is not there, a wrong call.

    What comes of a row that is not there may be right with rows.
    """
    if isinstance(error, AttributeError | TypeError):
        return "NoneType" not in str(error)
    return isinstance(error, _PROGRAMMING)


def _at(transform: Callable[..., Any]) -> str:
    function = inspect.unwrap(transform)
    # Of an object that can be called, the line of its __call__.
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return f" at {shown_path(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""

"""Hints for errors at the import of a user's file: unknown names, and Spark functions called before Spark starts."""

from __future__ import annotations

import ast
import inspect
import linecache
import pkgutil
import re
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.support.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEYWORD = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")
_NO_SESSION = re.compile("SESSION_OR_CONTEXT_NOT_EXISTS|NO_ACTIVE_OR_DEFAULT_SESSION")
_IMPORTED = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def import_hint(error: Exception) -> str | None:
    match error:
        case TypeError():
            return _keyword_hint(error)
        case AttributeError() if isinstance(error.obj, ModuleType | type):
            return did_you_mean(str(error.name), _public(error.obj))
        case ModuleNotFoundError():
            return _module_hint(error.name or "")
        case ImportError() if found := _IMPORTED.match(str(error)):
            return did_you_mean(found[1], _public(sys.modules.get(found[2])))
    return _spark_not_started_hint(error)


def _keyword_hint(error: TypeError) -> str | None:
    """The hint for an unknown keyword argument, from the parameters of the called function."""
    found = _KEYWORD.search(str(error))
    called = found and _called_object(error)
    if not found or called is None:
        return None
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return None
    near, hint = did_you_mean(found[2], parameters), f"{found[1]} takes: {', '.join(parameters)}"
    return f"{near} {hint}" if near else hint


def _called_object(error: TypeError) -> Any:
    """The object that the failing line calls, by its full name: `headrace`, `sinks` and `stores` each have a Kafka."""
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    at = traceback.extract_tb(error.__traceback__)[-1]
    if at.lineno is None or at.end_lineno is None or at.colno is None or at.end_colno is None:
        return None
    lines = [line.encode() for line in linecache.getlines(at.filename)[at.lineno - 1 : at.end_lineno]]
    if not lines:
        return None
    lines[-1] = lines[-1][: at.end_colno]
    lines[0] = lines[0][at.colno :]
    try:
        node = ast.parse(b"".join(lines).decode(), mode="eval").body
    except SyntaxError:
        return None
    first, *rest = ast.unparse(node.func).split(".") if isinstance(node, ast.Call) else [""]
    found = frame.f_locals.get(first, frame.f_globals.get(first))
    for name in rest:
        found = getattr(found, name, None)
    return found


def _module_hint(name: str) -> str | None:
    parent, _, last = name.rpartition(".")
    if not parent:
        return did_you_mean(last, ["headrace", "pyspark"], 0.8)
    package = sys.modules.get(parent)
    return did_you_mean(last, [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))])


def _public(module: Any) -> Iterable[str]:
    return getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]


def _spark_not_started_hint(error: Exception) -> str | None:
    """The hint for Spark columns and functions at the top of a file, which is loaded before Spark starts."""
    raised_by_spark = "pyspark" in traceback.extract_tb(error.__traceback__)[-1].filename
    if not raised_by_spark or not (isinstance(error, AssertionError) or _NO_SESSION.search(str(error))):
        return None
    cure = '@F.udf(StringType()) works where @F.udf("string") needs Spark; move anything else into the transform'
    return f"Spark has not started yet: {cure}"

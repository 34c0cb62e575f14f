"""Imports names of a module when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def lazy_names(
    module: str, homes: Mapping[str, str], submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for `module`: `homes` maps each name to the module that defines it."""

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{module}.{name}")
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, value)  # resolved once
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes, *submodules})

    return get, names

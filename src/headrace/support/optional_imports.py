"""Optional drivers: a missing one names the extra that brings it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.errors import ConfigError


class MissingDriver(ConfigError, ImportError):
    """Raised when a package is not installed that a sink, store or format needs."""


def require(module: str, extra: str) -> Any:
    """Import a driver, or raise MissingDriver, which is an ImportError, too, and says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the driver is there and misses something of its own
        missing = MissingDriver(f"{module} is not installed; it comes with the extra: pip install 'headrace[{extra}]'")
        missing.name = module
        raise missing from error

"""Imports optional drivers; the error for a missing one names the extra that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.errors import ConfigError


class MissingDriver(ConfigError, ImportError):
    """Raised if a package that a sink, store or format needs is not installed."""


def require(module: str, extra: str) -> Any:
    """Import a driver, or raise MissingDriver, which is also an ImportError and names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the driver is installed, but one of its own imports is missing
        missing = MissingDriver(f"{module} is not installed; it comes with the extra: pip install 'headrace[{extra}]'")
        missing.name = module
        raise missing from error

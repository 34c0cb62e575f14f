"""Format versions of stored state: Headrace reads older formats and refuses newer ones."""

from __future__ import annotations

from headrace.errors import ConfigError

KEY = "format"
"""The key of the version in a stored JSON object. An object without it has format 1, the first one."""


def refuse_newer(found: int, newest: int, what: str) -> None:
    """ConfigError if `what` was stored in format `found` and this version of Headrace reads none above `newest`."""
    if found > newest:
        raise ConfigError(
            f"{what} is stored in format {found}: expected at most format {newest}, the newest that this version of"
            " Headrace reads",
            hint="a newer version of Headrace wrote it; upgrade this one: pip install --upgrade headrace",
        )


def read_version(raw: dict[str, object], newest: int, what: str) -> int:
    """Take the version out of `raw`; ConfigError if it is newer than `newest`."""
    found = raw.pop(KEY, 1)
    if not isinstance(found, int):
        raise ConfigError(f"{what}: expected a whole number as its format, got {found!r}", hint="was it edited?")
    refuse_newer(found, newest, what)
    return found

"""Broker addresses: a list, or one text with commas."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

# The format of Kafka's own clients: an optional security protocol comes first, and IPv6 addresses are in brackets.
_ADDRESS = re.compile(
    r"(?:(?i:(?:SASL_)?(?:PLAINTEXT|SSL))://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._%-]+)(?::(?P<port>[0-9]+))?"
)
_EXAMPLE = "localhost:9092"


def brokers(given: str | Sequence[str], example: str = f'"{_EXAMPLE}"') -> str:
    """`given` as one text with commas. ConfigError for an invalid broker address."""
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"bootstrap={masked(repr(given))}: expected addresses of brokers", hint=example)
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise ConfigError("bootstrap is empty: expected the address of a broker", hint=example)
    for address in addresses:
        _check(address)
    return ",".join(addresses)


def _check(address: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(f"bootstrap: {masked(address)!r} is not an address; expected host:port", hint=_EXAMPLE)
    if found["port"] is None:
        raise ConfigError(f"bootstrap: {address!r} has no port; expected host:port", hint=f"{address}:9092")
    if not 1 <= int(found["port"]) <= 65_535:
        raise ConfigError(
            f"bootstrap: {address!r}: expected a port from 1 to 65535, got {found['port']}", hint=_EXAMPLE
        )

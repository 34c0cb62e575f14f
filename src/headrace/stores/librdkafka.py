"""What every client of librdkafka is given: the user's options that concern it, and a logger that keeps quiet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The settings that a Java client and librdkafka share by name and meaning; the rest concern reading alone.
_SHARED_PREFIXES = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "enable.ssl.")


def librdkafka_options(bootstrap: str, options: Mapping[str, str]) -> dict[str, str]:
    """The part of the user's options that the driver's own client needs."""
    shared = {name: value for name, value in options.items() if name.startswith(_SHARED_PREFIXES)}
    return {"client.id": "headrace", **shared, "bootstrap.servers": bootstrap}


def quiet_logger() -> logging.Logger:
    """librdkafka writes each failed connection to stderr; the runner says it once, in its own words."""
    logger = logging.getLogger("headrace.librdkafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger

"""What every client of librdkafka is given: the user's options that concern it, and a logger that keeps quiet."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.kafka import client_security

if TYPE_CHECKING:
    from collections.abc import Mapping

# Connections, which every client needs; the rest concern reading alone, or producing.
CONNECTING = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "enable.ssl.", "https.ca.")

# Clients ask the broker that they take for the controller, and when that one dies find another only by the next refresh
# of the metadata: after 5 minutes by default.
_FRESH = {"topic.metadata.refresh.interval.ms": "5000"}
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")


def librdkafka_options(bootstrap: str, options: Mapping[str, str], client: str = "headrace") -> dict[str, str]:
    """The part of the user's options that a client of the driver needs, in its own words.

    `client` is the name that brokers have for it, in logs, metrics and quotas, unless the options say another.
    """
    spoken = client_security.to_librdkafka_config(options)
    for name in _FILES:
        if (place := spoken.get(name, "probe")) != "probe" and not Path(place).exists():
            raise ConfigError(
                f"{name}={place} is not there; looked in {Path.cwd()}", hint="name the whole path, readable here"
            )
    shared = {name: value for name, value in spoken.items() if name.startswith(CONNECTING)}
    return {"client.id": client, **_FRESH, **shared, "bootstrap.servers": bootstrap}


def quiet_logger() -> logging.Logger:
    """librdkafka writes each failed connection to stderr; the runner says it once, in its own words."""
    logger = logging.getLogger("headrace.librdkafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger

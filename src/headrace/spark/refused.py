"""What Kafka refuses the executors' consumers, though it let the driver in: no repeat cures that."""

from __future__ import annotations

import re

from headrace.errors import ConfigError

_REASONS = (
    (
        re.compile(r"org\.apache\.kafka\.common\.errors\.(?:Topic|Group|Cluster)AuthorizationException: (.*)"),
        "grant this user READ on the topics",
    ),
    (
        re.compile(r"org\.apache\.kafka\.common\.errors\.(?:Sasl|Ssl)AuthenticationException: (.*)"),
        "correct the sasl.* and ssl.* options",
    ),
    (
        re.compile(r"org\.apache\.kafka\.common\.config\.ConfigException: (.*)"),
        "correct the options",
    ),
    (
        # How it begins says nothing; the last cause does.
        re.compile(
            r"Failed to construct kafka consumer(?:.*\nCaused by: [\w.]*(?:Kafka|Config)\w*Exception: ([^\n]*))",
            re.DOTALL,
        ),
        "correct the options; a file that they name must be on every executor",
    ),
)
_PASSES = "No resolvable bootstrap urls"


def refused(error: Exception) -> ConfigError | None:
    """The consumers' own words as an error that ends a run; None for any other error."""
    text = str(error)
    for pattern, cure in _REASONS:
        if (found := pattern.search(text)) and _PASSES not in found[1]:
            return ConfigError(f"Kafka refuses the consumers of the executors: {found[1].strip()}", hint=cure)
    return None

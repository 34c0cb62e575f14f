"""Expands `${NAME}` in the user's texts to environment variables."""

from __future__ import annotations

import os
import re

from headrace.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand_environment(text: str) -> str:
    """`text` with the values of its variables; ConfigError for one that is not set."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ConfigError(f"the environment variable {match[1]} is not set", hint=f"export {match[1]}=…")
        return os.environ[match[1]]

    return _VARIABLE.sub(value_of, text)

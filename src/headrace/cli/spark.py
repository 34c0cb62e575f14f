"""`--spark KEY=VALUE`, wherever a verb takes it."""

from __future__ import annotations

from headrace.errors import ConfigError


def spark_options(given: list[str] | None) -> dict[str, str]:
    options = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--spark {item} is not KEY=VALUE", hint="--spark spark.driver.memory=4g")
        options[key] = value
    return options

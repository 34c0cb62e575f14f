"""`--spark KEY=VALUE` and the like, wherever a verb takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


def pairs(flag: str, given: Iterable[str] | None, example: str) -> dict[str, str]:
    options = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{flag} {item} is not KEY=VALUE", hint=f"{flag} {example}")
        options[key] = value
    return options


def spark_options(given: Iterable[str] | None) -> dict[str, str]:
    return pairs("--spark", given, "spark.driver.memory=4g")

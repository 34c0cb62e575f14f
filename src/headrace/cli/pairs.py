"""`--spark KEY=VALUE` and the like, wherever a verb takes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="A setting of Kafka's clients; ${NAME} is read from the environment."
    ),
]
_NAME = re.compile(r"[\w.-]*")
OPTIONS_FILE = "KAFKA_OPTIONS_FILE"
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--options-file", metavar="FILE", help="Settings of Kafka's clients: a properties file.", envvar=OPTIONS_FILE
    ),
]


def pairs(flag: str, given: Iterable[str] | None, example: str) -> dict[str, str]:
    options = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals:
            # What follows the name may be a secret with the wrong sign before it.
            name = _NAME.match(item)
            raise ConfigError(f"{flag} {name[0] if name else ''} is not KEY=VALUE", hint=f"{flag} {example}")
        options[key] = value
    return options


def kafka_options(given: Iterable[str] | None, file: Path | None) -> dict[str, str]:
    """Settings from `--options-file`, and those of `--option` over them. A value is never shown: it may be secret."""
    from headrace.kafka.options import FromFile, read, with_environment

    given = list(given or ())
    if given:
        from headrace.kafka.settings import refuse_unknown

        refuse_unknown(pairs("--option", given, "security.protocol=SSL"))
    named = {name: with_environment(value) for name, value in pairs("--option", given, "security.protocol=SSL").items()}
    return FromFile({**read(file), **named}) if file else named


def spark_options(given: Iterable[str] | None) -> dict[str, str]:
    from headrace.kafka.options import with_environment

    given_so = pairs("--spark", given, "spark.driver.memory=4g")
    return {name: with_environment(value) for name, value in given_so.items()}


def addresses(text: str | None) -> str | None:
    """Callback of `--bootstrap`: what cannot be the address of a broker is refused before anybody is asked."""
    from headrace.kafka.addresses import brokers

    return brokers(text) if text and text.strip() else text


def expanded(text: str | None) -> str | None:
    """Callback of an option that may hold a password: `${NAME}` is read from the environment, so nobody types it."""
    from headrace.kafka.options import with_environment

    return text and with_environment(text)

"""Options and arguments that several commands share, and the objects they create."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from headrace.cli import completion
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.kafka.admin import Admin
    from headrace.kafka.client import Client
    from headrace.tools.offsets.editor import OffsetEditor
    from headrace.types import TopicPartition

Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="A Kafka client setting. ${NAME} is read from the environment. May be repeated.",
    ),
]
_NAME = re.compile(r"[\w.-]*")
OPTIONS_FILE = "KAFKA_OPTIONS_FILE"
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--options-file", metavar="FILE", help="A properties file with Kafka client settings.", envvar=OPTIONS_FILE
    ),
]


def pairs(flag: str, given: Iterable[str] | None, example: str) -> dict[str, str]:
    options = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals:
            # The text after the name may be a secret with a wrong separator before it.
            name = _NAME.match(item)
            raise ConfigError(
                f"{flag}: expected KEY=VALUE, got {name[0] if name else ''!r} without =", hint=f"{flag} {example}"
            )
        options[key] = value
    return options


def kafka_options(given: Iterable[str] | None, file: Path | None) -> dict[str, str]:
    """Settings from `--options-file`, overridden by `--option`. Never show a value: it may be a secret."""
    from headrace.kafka.client_options import FileOptions, read_properties
    from headrace.support.environment import expand_environment

    given = list(given or ())
    if given:
        from headrace.kafka.config_checks import refuse_unknown

        refuse_unknown(pairs("--option", given, "security.protocol=SSL"))
    options = {
        name: expand_environment(value) for name, value in pairs("--option", given, "security.protocol=SSL").items()
    }
    return FileOptions({**read_properties(file), **options}) if file else options


def spark_options(given: Iterable[str] | None) -> dict[str, str]:
    from headrace.support.environment import expand_environment

    settings = pairs("--spark", given, "spark.driver.memory=4g")
    return {name: expand_environment(value) for name, value in settings.items()}


def addresses(text: str | None) -> str | None:
    """Callback of `--bootstrap`: rejects an invalid broker address before any request."""
    from headrace.kafka.addresses import brokers

    return brokers(text) if text and text.strip() else text


def expand_environment(text: str | None) -> str | None:
    """Callback of an option that may hold a password: `${NAME}` is an environment variable, so that the password is not
    on the command line."""
    from headrace.support.environment import expand_environment

    return text and expand_environment(text)


P = ParamSpec("P")

_Cluster = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="Bootstrap servers of the Kafka cluster.",
        envvar="KAFKA_BOOTSTRAP",
        show_default=False,
        callback=addresses,
    ),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster and the settings of its clients."""

    bootstrap: str
    options: Mapping[str, str] = field(repr=False)

    def client(self) -> Client:
        from headrace.kafka.client import Client

        return Client(self.bootstrap, self.options)

    def admin(self) -> Admin:
        from headrace.kafka.admin import Admin

        return Admin(self.client())


def _connection(
    bootstrap: str | None = None, option: list[str] | None = None, options_file: Path | None = None
) -> Connection:
    if not bootstrap or not bootstrap.strip():
        raise ConfigError(
            "no Kafka cluster given",
            hint="--bootstrap localhost:9092, or export KAFKA_BOOTSTRAP=localhost:9092",
        )
    return Connection(bootstrap, kafka_options(option, options_file))


_OPTIONS = {"bootstrap": _Cluster, "option": Option, "options_file": OptionsFile}
"""The options that every command takes, as `_connection` does."""


def with_connection(function: Callable[Concatenate[Connection, P], None]) -> Callable[..., None]:
    """Add the options above to a command; it gets the connection they describe as its first argument."""

    @wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        given: dict[str, Any] = {name: kwargs.pop(name, None) for name in _OPTIONS}
        function(_connection(**given), *args, **kwargs)

    _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    signature = inspect.Signature(
        [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters), *added]
    )
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


File = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE[:NAME]", help="The pipeline: clicks.toml or app.py:clicks.", autocompletion=completion.pipelines
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        help="The offset store, if no FILE is given: sqlite:offsets.db, kafka:HOST:PORT, postgresql://user:${PASSWORD}@…",
        callback=expand_environment,
    ),
]
Name = Annotated[
    str | None, typer.Option("--pipeline", metavar="NAME", help="The pipeline's name, if no FILE is given.")
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="The Kafka cluster, if no FILE is given.",
        envvar="KAFKA_BOOTSTRAP",
        callback=addresses,
    ),
]
Topic = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="Only this topic. May be repeated.", autocompletion=completion.topics
    ),
]
Partition = Annotated[
    list[str] | None, typer.Option("--partition", metavar="TOPIC:N", help="Only this partition. May be repeated.")
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help=r"Apply \[profile.NAME] of the TOML file.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Make the change. Without this option it is only shown.")]
Outside = Annotated[
    bool,
    typer.Option(
        "--outside", help="Allow offsets that are out of range: before the first or beyond the next offset of the log."
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Change the offsets although the pipeline is running: between two batches; the run stops at its next one."
        " Also drop a pending batch that covers other partitions; rows that it stored may be stored twice.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def offset_editor(
    file: str | None,
    store: str | None,
    name: str | None,
    bootstrap: str | None,
    topics: list[str] | None,
    profile: str | None = None,
    *,
    changes: bool = False,
) -> OffsetEditor:
    """The editor of a pipeline's offsets, not opened yet; it can be entered with `with` several times.

    Unless it `changes` offsets, it creates nothing, and a store that does not exist counts as empty.
    """
    from headrace.runtime.config import load
    from headrace.runtime.plugins import store_at
    from headrace.tools.offsets.editor import OffsetEditor

    if file is not None:
        pipeline = load(file, profile).pipeline
        sources = list(pipeline.sources.values())  # not --bootstrap, which the environment may have set
        first = sources[0]
        return OffsetEditor(
            name or pipeline.name,
            store_at(store) if store else pipeline.store,
            first.bootstrap,
            first.options,
            topics or pipeline.topics or (),
            sources,
            changes=changes,
        )
    if store is not None and name is not None:
        options_file = os.environ.get(OPTIONS_FILE)
        options = kafka_options(None, Path(options_file) if options_file else None)
        return OffsetEditor(name, store_at(store, options), bootstrap, options, topics or (), changes=changes)
    raise ConfigError(
        "no pipeline given",
        hint="headrace offsets show clicks.toml, or --store sqlite:offsets.db --pipeline clicks",
    )


def partition_of(text: str) -> TopicPartition:
    from headrace.types import TopicPartition

    topic, colon, number = text.rpartition(":")
    if not colon or not number.isdigit():
        raise ConfigError(f"expected TOPIC:PARTITION, got {text!r}", hint="--partition clicks:0")
    return TopicPartition(topic, int(number))


class Until(StrEnum):
    CAUGHT_UP = "caught-up"

"""Which cluster a verb talks to: the options that all of the tools take."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from headrace.cli.pairs import Option, OptionsFile, addresses, kafka_options
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headrace.kafka.client import Client

P = ParamSpec("P")

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="The cluster.",
        envvar="KAFKA_BOOTSTRAP",
        show_default=False,
        callback=addresses,
    ),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster, and the settings of its clients."""

    bootstrap: str
    options: Mapping[str, str] = field(repr=False)

    def client(self) -> Client:
        from headrace.kafka.client import Client

        return Client(self.bootstrap, self.options)


def _connection(
    bootstrap: str | None = None, option: list[str] | None = None, options_file: Path | None = None
) -> Connection:
    if not bootstrap or not bootstrap.strip():
        raise ConfigError(
            "which cluster is meant is not said",
            hint="--bootstrap localhost:9092, or export KAFKA_BOOTSTRAP=localhost:9092",
        )
    return Connection(bootstrap, kafka_options(option, options_file))


_OPTIONS = {"bootstrap": Bootstrap, "option": Option, "options_file": OptionsFile}
"""What every verb takes, as `_connection` does."""


def connecting(verb: Callable[Concatenate[Connection, P], None]) -> Callable[..., None]:
    """Give a verb the options above, and the connection they describe as its first argument."""

    @wraps(verb)
    def connected(*args: P.args, **kwargs: P.kwargs) -> None:
        given: dict[str, Any] = {name: kwargs.pop(name, None) for name in _OPTIONS}
        verb(_connection(**given), *args, **kwargs)

    _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    signature = inspect.Signature([*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *added])
    connected.__signature__ = signature  # type: ignore[attr-defined]
    return connected

"""What the verbs of `headrace offsets` share: their arguments, and how they print."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.pairs import OPTIONS_FILE, kafka_options
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.offsets.desk import Desk
    from headrace.types import TopicPartition

File = Annotated[str | None, typer.Argument(metavar="[FILE[:NAME]]", help="A pipeline: app.py:clicks or clicks.toml.")]
Store = Annotated[
    str | None,
    typer.Option("--store", help="Without a file: sqlite:offsets.db, postgresql://…, redis://…, kafka:HOST:PORT, …"),
]
Name = Annotated[str | None, typer.Option("--pipeline", help="Without a file: the pipeline's name.")]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Without a file: the cluster.", envvar="KAFKA_BOOTSTRAP")
]
Topic = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]
Partition = Annotated[
    list[str] | None, typer.Option("--partition", metavar="TOPIC:N", help="Only this partition; may be repeated.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this the change is only shown.")]
Outside = Annotated[bool, typer.Option("--outside", help="Also set offsets that the log does not have.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
_WIDEST = 10_000


@contextmanager
def opened(
    file: str | None, store: str | None, name: str | None, bootstrap: str | None, topics: list[str] | None
) -> Iterator[Desk]:
    from headrace.adapters import store_at
    from headrace.config import load
    from headrace.offsets.desk import Desk

    if file is not None:
        pipeline = load(file).pipeline
        sources = list(pipeline.sources.values())  # and not --bootstrap, which the environment may have set
        first = sources[0]
        desk = Desk(
            name or pipeline.name,
            store_at(store) if store else pipeline.store,
            first.bootstrap,
            first.options,
            topics or pipeline.topics or (),
            sources,
        )
    elif store is not None and name is not None:
        file_of_options = os.environ.get(OPTIONS_FILE)
        options = kafka_options(None, Path(file_of_options) if file_of_options else None)
        desk = Desk(name, store_at(store, options), bootstrap, options, topics or ())
    else:
        raise ConfigError(
            "which pipeline is meant is not said",
            hint="headrace offsets show clicks.toml, or --store sqlite:offsets.db --pipeline clicks",
        )
    with desk:
        yield desk


def partition_of(text: str) -> TopicPartition:
    from headrace.types import TopicPartition

    topic, colon, number = text.rpartition(":")
    if not colon or not number.isdigit():
        raise ConfigError(f"{text!r} is not TOPIC:PARTITION", hint="--partition clicks:0")
    return TopicPartition(topic, int(number))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headrace.kafka.records import safe

    if sys.stdout is None:
        raise ConfigError("standard output is closed", hint="> FILE")
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        # A name may hold what would be markup, and what a terminal would obey.
        table.add_row(*(Text(safe(str(cell))) for cell in row))
    # Who reads from a pipe has no width: a name must not be cut or folded there.
    Console(width=None if sys.stdout.isatty() else _WIDEST).print(table)


def print_json(value: Mapping[str, object] | Sequence[object], indent: int | None = 2) -> None:
    typer.echo(json.dumps(value, indent=indent))

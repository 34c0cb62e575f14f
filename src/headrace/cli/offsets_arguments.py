"""What the verbs of `headrace offsets` share: their arguments, and how they print."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.pairs import OPTIONS_FILE, addresses, expanded, kafka_options
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.offsets.desk import Desk
    from headrace.types import TopicPartition

File = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE[:NAME]]", help="A pipeline: app.py:clicks or clicks.toml.", autocompletion=completion.pipelines
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Without a file: sqlite:offsets.db, postgresql://user:${PASSWORD}@…, redis://…, kafka:HOST:PORT, …",
        callback=expanded,
    ),
]
Name = Annotated[str | None, typer.Option("--pipeline", help="Without a file: the pipeline's name.")]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", help="Without a file: the cluster.", envvar="KAFKA_BOOTSTRAP", callback=addresses),
]
Topic = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only this topic; may be repeated.", autocompletion=completion.topics),
]
Partition = Annotated[
    list[str] | None, typer.Option("--partition", metavar="TOPIC:N", help="Only this partition; may be repeated.")
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help=r"Lay \[profile.NAME] of a TOML file over the rest.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this the change is only shown.")]
Outside = Annotated[bool, typer.Option("--outside", help="Also set offsets that the log does not have.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Also while the pipeline runs: between two batches, and the run stops at its next one. Offsets set back"
        " are read again, offsets set forward are never read, and a pending batch is dropped: what it has stored of"
        " other partitions may be stored twice.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def desk_of(
    file: str | None,
    store: str | None,
    name: str | None,
    bootstrap: str | None,
    topics: list[str] | None,
    profile: str | None = None,
    *,
    changes: bool = False,
) -> Desk:
    """A pipeline's offsets, not opened yet: `with` it as often as there is something to look at.

    Unless it `changes` them, nothing is created, and a store that is not there is empty.
    """
    from headrace.adapters import store_at
    from headrace.config import load
    from headrace.offsets.desk import Desk

    if file is not None:
        pipeline = load(file, profile).pipeline
        sources = list(pipeline.sources.values())  # and not --bootstrap, which the environment may have set
        first = sources[0]
        return Desk(
            name or pipeline.name,
            store_at(store) if store else pipeline.store,
            first.bootstrap,
            first.options,
            topics or pipeline.topics or (),
            sources,
            changes=changes,
        )
    if store is not None and name is not None:
        file_of_options = os.environ.get(OPTIONS_FILE)
        options = kafka_options(None, Path(file_of_options) if file_of_options else None)
        return Desk(name, store_at(store, options), bootstrap, options, topics or (), changes=changes)
    raise ConfigError(
        "which pipeline is meant is not said",
        hint="headrace offsets show clicks.toml, or --store sqlite:offsets.db --pipeline clicks",
    )


def partition_of(text: str) -> TopicPartition:
    from headrace.types import TopicPartition

    topic, colon, number = text.rpartition(":")
    if not colon or not number.isdigit():
        raise ConfigError(f"{text!r} is not TOPIC:PARTITION", hint="--partition clicks:0")
    return TopicPartition(topic, int(number))

"""`headrace topics`: look at topics, make, change and delete them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import Connection, Execute, Json, Profile, connecting, pairs
from headrace.cli.output.terminal import print_json, say, table
from headrace.errors import ConfigError
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.tools.topics import Topic, Topics
    from headrace.types import TopicPartition

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."),
]


@app.command("list")
@connecting
def list_(
    at: Connection,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="REGEX", help="Only topics whose whole name it fits: 'clicks.*'", autocompletion=completion.topics
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those of Kafka itself.")] = False,
    as_json: Json = False,
) -> None:
    """The topics: partitions, copies, offsets and how long records are kept."""
    from headrace.cli.output.topics import complete, known, retention

    topics = _topics(at)
    meant = pattern is not None and pattern.startswith("__")
    found = topics.describe(topics.names(regex(pattern), internal=everything or meant))
    if as_json:
        print_json([complete(topic) for topic in found])
        return
    rows = [
        [
            topic.name,
            len(topic.partitions),
            topic.replication,
            known(topic.offsets, "unknown"),
            retention(topic),
            ", ".join(sorted({p.trouble for p in topic.partitions if p.trouble})),
        ]
        for topic in found
    ]
    if rows:
        table(["topic", "partitions", "replication", "offsets", "kept", ""], rows)
    say(f"{counted(len(found), 'topic')} at {at.bootstrap}", err=True)


@app.command()
@connecting
def describe(
    at: Connection,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="REGEX", help="A topic's name, or what fits the whole of several.", autocompletion=completion.topics
        ),
    ],
    group: Annotated[
        str | None, typer.Option(help="Show the offsets and lag of this Kafka group.", autocompletion=completion.groups)
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:NAME]",
            help="Show the offsets and lag of this pipeline.",
            autocompletion=completion.pipelines,
        ),
    ] = None,
    profile: Profile = None,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Also the settings that nobody changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Everything about a topic: a summary, its settings and who set them, its partitions."""
    from headrace.cli.output.topics import complete, show

    if group and pipeline:
        raise ConfigError("offsets are of a group or of a pipeline", hint="leave out --group or --pipeline")
    offsets: Mapping[TopicPartition, int] | None = None
    if pipeline:  # before the cluster is asked: a mistake in the file shows at once
        from headrace.cli.options import desk_of

        with desk_of(pipeline, None, None, None, None, profile) as desk:
            offsets = desk.state.progress.offsets
    topics = _topics(at)
    found = topics.describe(_named(topics, pattern))
    if group:
        from headrace.tools.groups import Groups

        offsets = {place: entry.offset for place, entry in Groups(at.client()).offsets(group).items()}
    if as_json:
        print_json([complete(topic, offsets) for topic in found])
        return
    for number, topic in enumerate(found):
        if number:
            say()
        show(topic, offsets, group or pipeline, all_settings=all_settings)


@app.command()
@connecting
def create(
    at: Connection,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None, typer.Option(help="Choose enough: see alter. Default: the broker's.", min=1)
    ] = None,
    replication: Annotated[
        int | None, typer.Option(help="Copies of each partition. Default: the broker's.", min=1)
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Leave one that is there as it is.")] = False,
) -> None:
    """Make topics.

    headrace topics create clicks --partitions 6 --config retention.ms=604800000
    """
    topics = _topics(at)
    settings = pairs("--config", config, "retention.ms=604800000")
    for name in names:
        if topics.create(name, partitions or -1, replication or -1, settings):
            (made,) = topics.describe([name])
            say(f"{name}: {counted(len(made.partitions), 'partition')}, {_copies(made)}")
            continue
        if not if_not_exists:
            raise ConfigError(
                f"{name} is there already at {at.bootstrap}",
                hint=f"--if-not-exists leaves it as it is; headrace topics describe {name}",
            )
        (there,) = topics.describe([name])
        differs = partitions not in (None, len(there.partitions))
        asked = f" ({partitions} were asked for)" if differs else ""
        say(f"{name} is there already, with {counted(len(there.partitions), 'partition')}{asked}")


@app.command()
@connecting
def alter(
    at: Connection,
    name: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    partitions: Annotated[int | None, typer.Option(help="Have so many. There is no way back.", min=1)] = None,
    config: Config = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Give a setting back to the broker; may be repeated.")
    ] = None,
) -> None:
    """Change a topic's settings, or give it more partitions.

    A key's partition hangs on how many there are: with more of them, new records of a key come to lie in another
    partition than its old ones, and their order is lost.
    """
    settings = pairs("--config", config, "retention.ms=604800000")
    if partitions is None and not settings and not unset:
        raise ConfigError("what is to change is not said", hint="--partitions 12, --config NAME=VALUE or --unset NAME")
    topics = _topics(at)
    (topic,) = topics.describe([name])
    if partitions is not None:
        _check(topic, partitions)
        if settings or unset:  # all of it or nothing: partitions cannot be taken back
            topics.configure(name, settings, unset or (), only_asked=True)
        _grow(topics, topic, partitions)
    if settings or unset:
        topics.configure(name, settings, unset or ())
    for key, value in settings.items():
        say(f"{name}: {key} = {value} (was {topic.setting(key)})")
    for key in unset or ():
        say(f"{name}: {key} is the broker's again (was {topic.setting(key)})")


def _check(topic: Topic, partitions: int) -> None:
    has = len(topic.partitions)
    if partitions < has:
        raise ConfigError(
            f"{topic.name} has {has} partitions, and Kafka takes none away",
            hint="make another topic and send the records there",
        )


def _grow(topics: Topics, topic: Topic, partitions: int) -> None:
    has = len(topic.partitions)
    if partitions == has:
        say(f"{topic.name} has {counted(has, 'partition')} already")
        return
    topics.grow(topic.name, partitions)
    say(f"{topic.name}: {has} -> {counted(partitions, 'partition')}")
    if topic.offsets != 0:
        say(
            "warning: keys move: new records of a key may lie in another partition than the"
            " records there, and are no longer read in order with them",
            err=True,
        )


@app.command()
@connecting
def delete(
    at: Connection,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    as_regex: Annotated[bool, typer.Option("--regex", help="The names are regular expressions.")] = False,
    execute: Execute = False,
) -> None:
    """Delete topics with all their records. Shows what would go; does it with --execute."""
    from headrace.cli.output.topics import known

    topics = _topics(at)
    chosen = sorted({name for given in names for name in _named(topics, given)}) if as_regex else names
    found = topics.describe(chosen)
    if internal := [topic.name for topic in found if topic.internal]:
        raise ConfigError(f"{internal[0]} is Kafka's own: the cluster needs it")
    rows = [[topic.name, len(topic.partitions), known(topic.offsets, "unknown")] for topic in found]
    table(["topic", "partitions", "offsets"], rows)
    numbers = [topic.offsets for topic in found if topic.offsets is not None]
    offsets = counted(sum(numbers), "offset") if len(numbers) == len(found) else "an unknown number of offsets"
    what = f"{counted(len(found), 'topic')} with {offsets}"
    if not execute:
        say(f"{what} would be deleted, for good; --execute does it")
        return
    topics.delete([topic.name for topic in found])
    say(f"{what} deleted")


def regex(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}", hint="'clicks.*'") from error


def _named(topics: Topics, pattern: str) -> Sequence[str]:
    found = topics.names(regex(pattern), internal=True)
    if not found:
        raise topics.missing(pattern)
    # An internal topic is described when it is meant, not when '.*' is.
    return [name for name in found if not name.startswith("__") or pattern.startswith("__")] or found


def _copies(topic: Topic) -> str:
    return "one copy of each" if topic.replication == 1 else f"{topic.replication} copies of each"


def _topics(at: Connection) -> Topics:
    from headrace.tools.topics import Topics

    return Topics(at.client())

"""`headrace topics`: lists, describes, creates, alters and deletes topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import Connection, Execute, Json, Profile, pairs, with_connection
from headrace.cli.output.terminal import print_json, say, table
from headrace.errors import ConfigError
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.kafka.admin import Admin
    from headrace.tools.topics import Topic
    from headrace.types import TopicPartition

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Config = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A topic setting. May be repeated."),
]


@app.command("list", epilog="Example: headrace topics list 'clicks.*'")
@with_connection
def list_(
    connection: Connection,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="REGEX", help="Only topics whose whole name matches: 'clicks.*'", autocompletion=completion.topics
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also internal topics, such as __consumer_offsets.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List topics with their partitions, replication, number of offsets and retention."""
    from headrace.cli.output.topics import complete, number_or, retention
    from headrace.tools.topics import describe_topics, topic_names

    admin = connection.admin()
    asks_for_internal = pattern is not None and pattern.startswith("__")
    found = describe_topics(admin, topic_names(admin, regex(pattern), internal=everything or asks_for_internal))
    if as_json:
        print_json([complete(topic) for topic in found])
        return
    rows = [
        [
            topic.name,
            len(topic.partitions),
            topic.replication,
            number_or(topic.offsets, "unknown"),
            retention(topic),
            ", ".join(sorted({p.problem for p in topic.partitions if p.problem})),
        ]
        for topic in found
    ]
    if rows:
        table(["topic", "partitions", "replication", "offsets", "retention", ""], rows)
    say(f"{counted(len(found), 'topic')} at {connection.bootstrap}", err=True)


@app.command(epilog="Example: headrace topics describe clicks --group report")
@with_connection
def describe(
    connection: Connection,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="REGEX",
            help="A topic name, or a regular expression that matches whole names.",
            autocompletion=completion.topics,
        ),
    ],
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Also show the offsets and lag of this consumer group.",
            autocompletion=completion.groups,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:NAME]",
            help="Also show the offsets and lag of this pipeline.",
            autocompletion=completion.pipelines,
        ),
    ] = None,
    profile: Profile = None,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Also show settings that have their default value.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Describe topics: settings and their origin, partitions, replicas and offsets."""
    from headrace.cli.output.topics import complete, show
    from headrace.tools.topics import describe_topics

    if group and pipeline:
        raise ConfigError("--group and --pipeline cannot be combined", hint="leave out one of them")
    offsets: Mapping[TopicPartition, int] | None = None
    if pipeline:  # before any request to the cluster: a mistake in the file shows at once
        from headrace.cli.options import offset_editor

        with offset_editor(pipeline, None, None, None, None, profile) as editor:
            offsets = editor.state.progress.offsets
    admin = connection.admin()
    found = describe_topics(admin, _matching(admin, pattern))
    if group:
        from headrace.tools.groups import group_offsets

        offsets = {partition: entry.offset for partition, entry in group_offsets(admin, group).items()}
    if as_json:
        print_json([complete(topic, offsets) for topic in found])
        return
    for number, topic in enumerate(found):
        if number:
            say()
        show(topic, offsets, group or pipeline, all_settings=all_settings)


@app.command(epilog="Example: headrace topics create clicks --partitions 6 --config retention.ms=604800000")
@with_connection
def create(
    connection: Connection,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of the new topics.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of partitions. Choose enough: adding more later moves keys. Default: the broker's.",
            min=1,
        ),
    ] = None,
    replication: Annotated[
        int | None, typer.Option(metavar="N", help="Replication factor. Default: the broker's.", min=1)
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing for a topic that exists.")] = False,
) -> None:
    """Create topics."""
    from headrace.tools.topics import describe_topics, missing_topic

    admin = connection.admin()
    settings = pairs("--config", config, "retention.ms=604800000")
    for name in names:
        if admin.create_topic(name, partitions or -1, replication or -1, settings):
            if (created := admin.describe_new_topic(name)) is None:
                raise missing_topic(admin, name)
            replicas = max(len(partition.replicas) for partition in created.partitions)
            say(f"{name}: {counted(len(created.partitions), 'partition')}, replication {replicas}")
            continue
        if not if_not_exists:
            raise ConfigError(
                f"topic {name} already exists at {connection.bootstrap}",
                hint=f"--if-not-exists accepts it; headrace topics describe {name}",
            )
        (existing,) = describe_topics(admin, [name])
        differs = partitions not in (None, len(existing.partitions))
        requested = f" ({partitions} requested)" if differs else ""
        say(f"{name} already exists with {counted(len(existing.partitions), 'partition')}{requested}")


@app.command(epilog="Example: headrace topics alter clicks --config retention.ms=86400000")
@with_connection
def alter(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics)],
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="New number of partitions. It cannot be reduced later.", min=1)
    ] = None,
    config: Config = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Reset a setting to the broker's default. May be repeated.")
    ] = None,
) -> None:
    """Change the settings of a topic, or add partitions.

    With more partitions, new records of a key may go to another partition than its old ones, so their order is lost.
    """
    from headrace.tools.topics import describe_topics

    settings = pairs("--config", config, "retention.ms=604800000")
    if partitions is None and not settings and not unset:
        raise ConfigError("nothing to change", hint="--partitions 12, --config NAME=VALUE or --unset NAME")
    admin = connection.admin()
    (topic,) = describe_topics(admin, [name])
    if partitions is not None:
        _check_not_fewer(topic, partitions)
        if settings or unset:  # all or nothing: adding partitions cannot be undone
            admin.alter_topic_config(name, settings, unset or (), validate_only=True)
        _add_partitions(admin, topic, partitions)
    if settings or unset:
        admin.alter_topic_config(name, settings, unset or ())
    for key, value in settings.items():
        say(f"{name}: {key} = {value} (was {topic.setting(key)})")
    for key in unset or ():
        say(f"{name}: {key} reset to the broker's default (was {topic.setting(key)})")


def _check_not_fewer(topic: Topic, partitions: int) -> None:
    count = len(topic.partitions)
    if partitions < count:
        raise ConfigError(
            f"{topic.name} has {count} partitions; Kafka cannot remove partitions",
            hint="create another topic and send the records there",
        )


def _add_partitions(admin: Admin, topic: Topic, partitions: int) -> None:
    count = len(topic.partitions)
    if partitions == count:
        say(f"{topic.name} has {counted(count, 'partition')} already")
        return
    admin.add_partitions(topic.name, partitions)
    say(f"{topic.name}: {count} -> {counted(partitions, 'partition')}")
    if topic.offsets != 0:
        say(
            "warning: keys move: new records of a key may go to another partition than its old ones, and are no longer"
            " read in order with them",
            err=True,
        )


@app.command(epilog="Example: headrace topics delete clicks-test --execute")
@with_connection
def delete(
    connection: Connection,
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC", help="Topics to delete.", autocompletion=completion.topics)
    ],
    as_regex: Annotated[bool, typer.Option("--regex", help="Treat the names as regular expressions.")] = False,
    execute: Execute = False,
) -> None:
    """Delete topics with all their records. Without --execute only shows them."""
    from headrace.cli.output.topics import number_or
    from headrace.tools.topics import describe_topics

    admin = connection.admin()
    chosen = sorted({name for pattern in names for name in _matching(admin, pattern)}) if as_regex else names
    found = describe_topics(admin, chosen)
    if internal := [topic.name for topic in found if topic.internal]:
        raise ConfigError(f"{internal[0]} is an internal topic of Kafka and cannot be deleted")
    rows = [[topic.name, len(topic.partitions), number_or(topic.offsets, "unknown")] for topic in found]
    table(["topic", "partitions", "offsets"], rows)
    numbers = [topic.offsets for topic in found if topic.offsets is not None]
    offsets = counted(sum(numbers), "offset") if len(numbers) == len(found) else "an unknown number of offsets"
    summary = f"{counted(len(found), 'topic')} with {offsets}"
    if not execute:
        say(f"{summary} would be deleted permanently; add --execute to do it")
        return
    admin.delete_topics([topic.name for topic in found])
    say(f"{summary} deleted")


def regex(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ConfigError(f"expected a regular expression, got {text!r}: {error}", hint="'clicks.*'") from error


def _matching(admin: Admin, pattern: str) -> Sequence[str]:
    from headrace.tools.topics import missing_topic, topic_names

    found = topic_names(admin, regex(pattern), internal=True)
    if not found:
        raise missing_topic(admin, pattern)
    # '.*' does not select internal topics; a pattern that begins with __ does.
    return [name for name in found if not name.startswith("__") or pattern.startswith("__")] or found

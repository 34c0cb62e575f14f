"""`headrace groups`: consumer groups, their members, committed offsets and lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import completion
from headrace.cli.options import Connection, Execute, Json, with_connection
from headrace.cli.output.terminal import print_json, say, table
from headrace.cli.topics import regex
from headrace.errors import ConfigError
from headrace.text import counted
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.kafka.admin import Admin
    from headrace.tools.groups import Group

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
Pattern = Annotated[
    str | None,
    typer.Argument(metavar="REGEX", help="Only groups whose whole name matches.", autocompletion=completion.groups),
]
Ends = dict[TopicPartition, int]


@app.command("list", epilog="Example: headrace groups list 'report.*'")
@with_connection
def list_(connection: Connection, pattern: Pattern = None, as_json: Json = False) -> None:
    """List consumer groups with their state, members and lag. Groups of pipelines are marked."""
    from headrace.tools.groups import describe_groups, group_names

    admin = connection.admin()
    found = describe_groups(admin, group_names(admin, regex(pattern)))
    ends = _ends(admin, found)
    if as_json:
        print_json([_to_json(group, ends) for group in found])
        return
    rows = [
        [
            group.name,
            group.state,
            len(group.members),
            "?" if group.offsets is None else f"{_total_lag(group, ends):,}",
            "Headrace" if group.is_headrace else "",
        ]
        for group in found
    ]
    if rows:
        table(["group", "state", "members", "lag", "used by"], rows)
    say(f"{counted(len(found), 'group')} at {connection.bootstrap}", err=True)


@app.command(epilog="Example: headrace groups describe report")
@with_connection
def describe(connection: Connection, pattern: Pattern = None, as_json: Json = False) -> None:
    """Describe consumer groups: members with their partitions, and the committed offsets and lag."""
    from headrace.tools.groups import describe_groups

    admin = connection.admin()
    found = describe_groups(admin, _matching(admin, pattern))
    ends = _ends(admin, found)
    if as_json:
        print_json([_to_json(group, ends) for group in found])
        return
    if not found:
        say(f"no groups at {connection.bootstrap}", err=True)
    for number, group in enumerate(found):
        if number:
            say()
        _show(group, ends)


@app.command(epilog="Example: headrace groups delete report --execute")
@with_connection
def delete(
    connection: Connection,
    names: Annotated[
        list[str], typer.Argument(metavar="GROUP", help="Groups to delete.", autocompletion=completion.groups)
    ],
    execute: Execute = False,
) -> None:
    """Delete consumer groups with their committed offsets. Refused while a group has members."""
    from headrace.tools.groups import WITHOUT_MEMBERS, describe_groups, group_names

    admin = connection.admin()
    known = set(group_names(admin))
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"there is no group {missing[0]} at {connection.bootstrap}", hint="headrace groups list")
    found = describe_groups(admin, names)
    for group in found:
        if group.members or group.state.upper() not in WITHOUT_MEMBERS:
            users = ", ".join(f"{m.client} ({m.host.lstrip('/')})" for m in group.members) or group.state
            raise ConfigError(f"the group {group.name} is in use: {users}", hint="stop its members first")
    table(
        ["group", "partitions with an offset", ""],
        [[g.name, len(g.offsets or {}), "the offsets of a Headrace pipeline" if g.is_headrace else ""] for g in found],
    )
    if not execute:
        say(f"{counted(len(found), 'group')} would be deleted; add --execute to do it")
        return
    admin.delete_groups(names)
    say(f"{counted(len(found), 'group')} deleted")


def _show(group: Group, ends: Mapping[TopicPartition, int]) -> None:
    say(group.name)
    say(f"  state        {group.state}{f', {group.assignor}' if group.assignor else ''}")
    say(f"  coordinator  {'?' if group.coordinator is None else group.coordinator}")
    say(f"  lag          {'?' if group.offsets is None else f'{_total_lag(group, ends):,}'}")
    if group.is_headrace:
        say("  used by      a Headrace pipeline, which never joins it; see headrace offsets")
    if group.members:
        say("", "members")
        rows = [
            [
                member.client,
                member.host.lstrip("/"),
                len(member.partitions),
                _format_partitions(member.partitions),
                member.id,
            ]
            for member in group.members
        ]
        table(["client", "host", "partitions", "assigned", "member"], rows)
    say("", "partitions")
    if group.offsets is None:
        say("a transaction is open over its offsets; headrace transactions list")
        return
    rows = [
        [
            entry["topic"],
            entry["partition"],
            *(_number(entry[name]) for name in ("offset", "end")),
            "PAST THE END" if entry["past_end"] else _number(entry["lag"]),
            entry["owner"],
        ]
        for entry in _partitions(group, ends)
    ]
    if rows:
        table(["topic", "partition", "offset", "end", "lag", "assigned to"], rows)
    else:
        say("none: no committed offsets and no members")


def _partitions(group: Group, ends: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    offsets = group.offsets or {}
    entries = []
    for at in sorted({*offsets, *(at for member in group.members for at in member.partitions)}):
        offset = offsets[at].offset if at in offsets else None
        owner = group.owner(at)
        entries.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "offset": offset,
                "end": ends.get(at),
                "lag": None if offset is None or at not in ends else max(0, ends[at] - offset),
                "past_end": offset is not None and at in ends and offset > ends[at],
                "owner": owner.client if owner else "",
                "member": owner.id if owner else None,
            }
        )
    return entries


def _to_json(group: Group, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {
        "group": group.name,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "headrace": group.is_headrace,
        "lag": None if group.offsets is None else _total_lag(group, ends),
        "members": [
            {
                "id": member.id,
                "client": member.client,
                "host": member.host,
                "partitions": [[at.topic, at.partition] for at in member.partitions],
            }
            for member in group.members
        ],
        "partitions": None if group.offsets is None else _partitions(group, ends),
    }


def _total_lag(group: Group, ends: Mapping[TopicPartition, int]) -> int:
    return sum(entry["lag"] or 0 for entry in _partitions(group, ends))


def _ends(admin: Admin, found: Iterable[Group]) -> Ends:
    from headrace.tools.topics import describe_topics

    topics = {at.topic for group in found for at in group.offsets or {}}
    topics |= {at.topic for group in found for member in group.members for at in member.partitions}
    existing = sorted(topics & admin.topics().keys())
    return {
        TopicPartition(topic.name, partition.number): partition.next
        for topic in describe_topics(admin, existing)
        for partition in topic.partitions
        if partition.next is not None
    }


def _matching(admin: Admin, pattern: str | None) -> list[str]:
    from headrace.tools.groups import group_names

    names = group_names(admin)
    # Match the name literally first: a group may have any name, also one that looks like a pattern.
    found = names if pattern is None else [pattern] if pattern in names else group_names(admin, regex(pattern))
    if pattern is not None and not found:
        raise ConfigError(f"there is no group {pattern} at {admin.client.bootstrap}", hint="headrace groups list")
    return found


def _format_partitions(partitions: Iterable[TopicPartition]) -> str:
    by_topic: dict[str, list[str]] = {}
    for at in partitions:
        by_topic.setdefault(at.topic, []).append(str(at.partition))
    return " ".join(f"{topic}[{','.join(numbers)}]" for topic, numbers in by_topic.items()) or "none"


def _number(number: int | None) -> str:
    return "none" if number is None else f"{number:,}"

"""`headrace offsets`: resets, imports, copies and restores offsets. Nothing changes without --execute."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli import offsets_show as offsets
from headrace.cli.options import (
    Bootstrap,
    Execute,
    File,
    Force,
    Json,
    Name,
    Outside,
    Partition,
    Profile,
    Store,
    Topic,
    expand_environment,
    offset_editor,
    partition_of,
)
from headrace.cli.output.offsets import dry_run, show_moves
from headrace.cli.output.terminal import say
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.tools.offsets.editor import OffsetEditor
    from headrace.tools.offsets.targets import OffsetChange
    from headrace.types import Progress

_POSITION = re.compile(r"=\d+$")


@offsets.app.command(epilog="Example: headrace offsets reset clicks.toml --to 1h --execute")
def reset(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="earliest, latest, a time, 1h (an hour ago), an offset, or shift:-1000",
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Same as kafka-consumer-groups --to-earliest.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Same as kafka-consumer-groups --to-latest.")] = False,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", metavar="TIME", help="Same as kafka-consumer-groups --to-datetime.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="PT1H", help="Same as kafka-consumer-groups --by-duration.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", help="Same as kafka-consumer-groups --to-offset.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Same as kafka-consumer-groups --shift-by.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Same as offsets import --from-file.")
    ] = None,
    partition: Partition = None,
    execute: Execute = False,
    outside: Outside = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Reset offsets to a position: of all partitions, or of --topic or --partition.

    Without --execute only shows the change."""
    from headrace.tools.offsets.imports import from_file as offsets_in
    from headrace.tools.offsets.targets import parse

    flags: dict[str, str | None] = {
        "--to": to,
        "--to-earliest": "earliest" if to_earliest else None,
        "--to-latest": "latest" if to_latest else None,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--to-offset": None if to_offset is None else str(to_offset),
        "--shift-by": None if shift_by is None else f"shift:{shift_by}",
        "--from-file": str(from_file) if from_file else None,
    }
    given = {flag: value for flag, value in flags.items() if value is not None}
    if len(given) != 1:
        raise ConfigError(
            f"expected exactly one position, got {' and '.join(given) or 'none'}",
            hint="headrace offsets reset … --to earliest",
        )
    position = next(iter(given.values()))
    with offset_editor(file, store, pipeline, bootstrap, topic, profile, changes=execute) as editor:
        if from_file:
            progress, moves = editor.plan_offsets(offsets_in(from_file))
        else:
            progress, moves = editor.plan(
                parse(position, datetime.now(UTC)), [partition_of(text) for text in partition or []]
            )
        _finish(
            editor,
            progress,
            moves,
            "reset",
            f"to {position}",
            execute=execute,
            outside=outside,
            force=force,
            as_json=as_json,
        )


@offsets.app.command(epilog="Example: headrace offsets seek clicks.toml clicks:0=1000 --execute")
def seek(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE[:NAME]] TOPIC:PARTITION=OFFSET",
            help="The pipeline, and an offset for each partition.",
            autocompletion=completion.pipelines,
        ),
    ],
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    execute: Execute = False,
    outside: Outside = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Set the offsets of single partitions. Without --execute only shows the change."""
    file, positions = (None, words) if _POSITION.search(words[0]) else (words[0], words[1:])
    if invalid := [text for text in positions or [""] if not _POSITION.search(text)]:
        raise ConfigError(
            f"expected TOPIC:PARTITION=OFFSET, got {invalid[0]!r}",
            hint="headrace offsets seek clicks.toml clicks:0=1000",
        )
    pairs = (text.rpartition("=") for text in positions)
    offsets = {partition_of(partition): int(offset) for partition, _, offset in pairs}
    with offset_editor(file, store, pipeline, bootstrap, None, profile, changes=execute) as editor:
        progress, moves = editor.plan_offsets(offsets)
        _finish(
            editor,
            progress,
            moves,
            "seek",
            " ".join(positions),
            execute=execute,
            outside=outside,
            force=force,
            as_json=as_json,
        )


@offsets.app.command("import", epilog="Example: headrace offsets import clicks.toml --kafka-group report --execute")
def import_(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", metavar="FILE", help="JSON of offsets export, or CSV lines: topic,partition,offset."
        ),
    ] = None,
    spark_checkpoint: Annotated[
        Path | None,
        typer.Option("--spark-checkpoint", metavar="PATH", help="checkpointLocation of a Structured Streaming query."),
    ] = None,
    kafka_group: Annotated[
        str | None,
        typer.Option(
            "--kafka-group",
            metavar="GROUP",
            help="A consumer group of the pipeline's cluster.",
            autocompletion=completion.groups,
        ),
    ] = None,
    execute: Execute = False,
    outside: Outside = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Import offsets from a file, a Spark checkpoint or a Kafka group. Without --execute only shows the change."""
    from headrace.tools.offsets import imports

    if [from_file, spark_checkpoint, kafka_group].count(None) != 2:
        raise ConfigError(
            "expected exactly one of --from-file, --spark-checkpoint and --kafka-group",
            hint="headrace offsets import -h",
        )
    with offset_editor(file, store, pipeline, bootstrap, None, profile, changes=execute) as editor:
        if from_file:
            offsets, note = imports.from_file(from_file), f"from {from_file}"
        elif spark_checkpoint:
            offsets, note = imports.from_spark_checkpoint(spark_checkpoint)
            say(note, err=True)
        else:
            offsets, note = editor.group_offsets(str(kafka_group)), f"from the Kafka group {kafka_group}"
        progress, moves = editor.plan_offsets(offsets)
        _finish(editor, progress, moves, "import", note, execute=execute, outside=outside, force=force, as_json=as_json)


@offsets.app.command(
    epilog="Example: headrace offsets copy --from sqlite:offsets.db --to redis://localhost --pipeline clicks --execute"
)
def copy(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="STORE",
            help="The store to copy from: zookeeper:127.0.0.1:2181",
            callback=expand_environment,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="STORE",
            help="The store to copy to: postgresql://user:${PASSWORD}@…",
            callback=expand_environment,
        ),
    ],
    pipeline: Annotated[str, typer.Option("--pipeline", metavar="NAME", help="The pipeline's name.")],
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Copy the progress of a stopped pipeline, with its pending batch, to another store.

    Without --execute only shows the offsets.
    """
    from headrace.runtime.plugins import store_at
    from headrace.tools.offsets.editor import OffsetEditor, audit_entry
    from headrace.tools.offsets.targets import OffsetChange

    with OffsetEditor(pipeline, store_at(source), None, {}) as old:
        old.refuse_missing()
    with (
        OffsetEditor(pipeline, store_at(source), None, {}, changes=execute) as old,
        OffsetEditor(pipeline, store_at(to), None, {}, changes=execute) as new,
    ):
        progress, target = old.state.progress, new.state.progress
        if not progress.offsets:
            raise ConfigError(f"{pipeline} has no offsets in {old.store!r}", hint="check --pipeline and --from")
        moves = [
            OffsetChange(at, target.offsets.get(at), offset, 0, offset)
            for at, offset in sorted(progress.offsets.items())
        ]
        show_moves(moves, as_json=as_json, executed=execute)
        if not execute:
            dry_run(new)
            return
        old.refuse_while_running()
        note = f"from {old.store!r}"
        new.store.import_progress(progress, audit_entry("copy", {}, progress.offsets, note))
        old.store.append_audit(audit_entry("copied", {}, progress.offsets, f"to {new.store!r}"))
        say(f"copied; now configure the pipeline to use {new.store!r}", err=True)


@offsets.app.command(epilog="Example: headrace offsets undo clicks.toml --execute")
def undo(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    undo_file: Annotated[
        Path | None,
        typer.Option("--undo-file", metavar="FILE", help="The undo file. Default: the newest of this pipeline."),
    ] = None,
    execute: Execute = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Undo the last manual change of offsets. Without --execute only shows the change."""
    from headrace.tools.offsets.editor import Undo, undo_directory

    with offset_editor(file, store, pipeline, bootstrap, None, profile, changes=execute) as editor:
        path = undo_file or max(undo_directory().glob(f"{editor.pipeline}-*.json"), default=None)
        if path is None:
            raise ConfigError(f"no undo file for {editor.pipeline} in {undo_directory()}")
        undo_record = Undo.read(path)
        offsets = editor.state.progress.offsets
        if any(offsets.get(at) != after for at, after in undo_record.after.items()):
            raise ConfigError(
                f"the offsets have moved since {path.name} was written",
                hint="headrace offsets history, then reset or seek",
            )
        progress, moves = editor.plan_offsets(undo_record.before)
        _finish(editor, progress, moves, "undo", path.name, execute=execute, outside=True, force=force, as_json=as_json)
        if execute:
            path.unlink()


def _finish(
    editor: OffsetEditor,
    progress: Progress,
    moves: Sequence[OffsetChange],
    action: str,
    note: str,
    *,
    execute: bool,
    outside: bool,
    force: bool,
    as_json: bool,
) -> None:
    show_moves(moves, as_json=as_json, executed=execute)
    if not execute:
        dry_run(editor)
        return
    path = editor.execute(progress, moves, action, note, outside=outside, force=force)
    say(f"done; undo with: headrace offsets undo … --undo-file {path}", err=True)

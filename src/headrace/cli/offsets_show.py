"""`headrace offsets`: shows offsets, lag and the audit log."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Bootstrap, File, Json, Name, Profile, Store, Topic, offset_editor
from headrace.cli.output.terminal import print_json, rich_table, say, table
from headrace.errors import OffsetConflict, RetriableError
from headrace.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from headrace.core.state import AuditEntry
    from headrace.tools.offsets.editor import Lag, OffsetEditor
    from headrace.types import Progress

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
_LAG_COLUMNS = ["topic", "partition", "offset", "end", "lag", "seconds"]
_TRANSIENT = (RetriableError, OffsetConflict)
"""Errors after which a watch continues: a server that does not answer, a file that a run has locked."""


@app.command(epilog="Example: headrace offsets show clicks.toml")
def show(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
) -> None:
    """Show the committed offsets, the pending batch and the active run."""
    from headrace.tools.offsets.imports import to_spark_json

    with offset_editor(file, store, pipeline, bootstrap, topic, profile) as editor:
        editor.refuse_missing()
        state = editor.state
        progress, run = _only_topics(state.progress, topic), editor.active_run()
        if as_json:
            pending = json.loads(progress.pending.to_json()) if progress.pending else None
            print_json(
                {
                    "pipeline": editor.pipeline,
                    "offsets": to_spark_json(progress.offsets),
                    "last_batch": progress.last_batch,
                    "pending": pending,
                    "topic_ids": dict(progress.topic_ids),
                    "running": str(run) if run else None,
                }
            )
            return
        if progress.offsets:
            rows = [[at.topic, at.partition, f"{offset:,}"] for at, offset in sorted(progress.offsets.items())]
            table(["topic", "partition", "offset"], rows)
        else:
            say(f"{editor.pipeline} has no offsets in {editor.store!r} yet")
        say(f"last batch {progress.last_batch}; running: {run or 'no'}")
        if progress.pending:
            say(f"batch {progress.pending.id} is pending: " + ", ".join(map(str, progress.pending.ranges[:8])))


@app.command(epilog="Example: headrace offsets lag clicks.toml --watch")
def lag(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="With --watch: seconds between two refreshes.", min=0.1)
    ] = 2.0,
) -> None:
    """Show the lag in offsets and in seconds, per partition and in total."""
    editor = offset_editor(file, store, pipeline, bootstrap, topic, profile)
    if not watch:
        _print_lag(editor, _read_lag(editor), as_json=as_json)
    elif as_json or not sys.stdout.isatty():
        while True:
            try:
                _print_lag(editor, _read_lag(editor), as_json=as_json, indent=None)
            except _TRANSIENT as error:
                say(error.message, err=True)
            time.sleep(every)
    else:
        _watch_lag(editor, every)


def _read_lag(editor: OffsetEditor) -> list[Lag]:
    """Keep the store open only while it is read: a run may need it exclusively, such as a DuckDB file."""
    with editor:
        editor.refuse_missing()
        progress = editor.state.progress
    return editor.lag_of(progress)


def _print_lag(editor: OffsetEditor, lags: Sequence[Lag], *, as_json: bool, indent: int | None = 2) -> None:
    if not as_json:
        table(_LAG_COLUMNS, _lag_rows(lags))
        return
    partitions = [
        {
            "topic": entry.at.topic,
            "partition": entry.at.partition,
            "offset": entry.committed,
            "end": entry.end,
            "records": entry.records,
            "seconds": entry.seconds,
        }
        for entry in lags
    ]
    total = sum(entry.records for entry in lags)
    print_json(
        {"pipeline": editor.pipeline, "records": total, "seconds": _oldest(lags), "partitions": partitions},
        indent=indent,
    )


def _watch_lag(editor: OffsetEditor, every: float) -> None:
    """Update the table in place until Ctrl-C. The last table stays visible while no new one can be read."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    last_table: Table | Text = Text()

    def render() -> Group:
        nonlocal last_table
        footer = Text(f"{datetime.now():%H:%M:%S}   Ctrl-C ends", style="dim")
        try:
            last_table = rich_table(_LAG_COLUMNS, _lag_rows(_read_lag(editor)))
        except _TRANSIENT as error:
            return Group(last_table, Text(printable(error.message), style="red"), footer)
        return Group(last_table, footer)

    with Live(render(), console=Console(), auto_refresh=False, vertical_overflow="visible") as live:
        try:
            while True:
                time.sleep(every)
                live.update(render(), refresh=True)
        except KeyboardInterrupt:
            return


def _lag_rows(lags: Sequence[Lag]) -> list[list[object]]:
    rows: list[list[object]] = [
        [
            entry.at.topic,
            entry.at.partition,
            "none" if entry.committed is None else f"{entry.committed:,}",
            f"{entry.end:,}",
            f"{entry.records:,}",
            _age(entry.seconds),
        ]
        for entry in lags
    ]
    total = sum(entry.records for entry in lags)
    return [*rows, ["total", "", "", "", f"{total:,}", _age(_oldest(lags))]]


def _oldest(lags: Sequence[Lag]) -> float | None:
    """The age of the oldest unread record of all partitions; None if the age is unknown for one of them."""
    ages = [entry.seconds for entry in lags]
    return None if None in ages else max((age for age in ages if age is not None), default=0.0)


@app.command(epilog="Example: headrace offsets history clicks.toml")
def history(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
) -> None:
    """Show the audit log: all manual changes of offsets, and all gaps."""
    with offset_editor(file, store, pipeline, bootstrap, topic, profile) as editor:
        editor.refuse_missing()
        changes = [
            change for change in map(partial(_limit_to_topics, topic), editor.store.history()) if change is not None
        ]
        if as_json:
            print_json([json.loads(change.to_json()) for change in changes])
            return
        for change in changes:
            at = datetime.fromtimestamp(change.at, UTC).isoformat(timespec="seconds")
            say(f"{at}  {change.action}  by {change.who}{'  ' + change.note if change.note else ''}")
            for partition, after in sorted(change.after.items()):
                before = change.before.get(partition)
                step = f"  ({after - before:+,})" if before is not None else ""
                say(f"    {partition}  {'none' if before is None else f'{before:,}'} -> {after:,}{step}")
        if not changes:
            say("no manual changes and no gaps")


@app.command(epilog="Example: headrace offsets export clicks.toml --output offsets.json")
def export(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    profile: Profile = None,
    bootstrap: Bootstrap = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file. Default: standard output."),
    ] = None,
) -> None:
    """Export the offsets as JSON for offsets import and Spark's startingOffsets."""
    from headrace.tools.offsets.imports import to_spark_json

    with offset_editor(file, store, pipeline, bootstrap, None, profile) as editor:
        editor.refuse_missing()
        text = json.dumps(to_spark_json(editor.state.progress.offsets))
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    else:
        say(text)


def _only_topics(progress: Progress, topics: Sequence[str] | None) -> Progress:
    """The progress limited to these topics. A pending batch keeps its ranges of these topics."""
    if not topics:
        return progress
    pending = progress.pending
    ranges = tuple(r for r in pending.ranges if r.at.topic in topics) if pending else ()
    return replace(
        progress,
        offsets={at: offset for at, offset in progress.offsets.items() if at.topic in topics},
        pending=replace(pending, ranges=ranges) if pending and ranges else None,
        topic_ids={topic: known for topic, known in progress.topic_ids.items() if topic in topics},
    )


def _limit_to_topics(topics: Sequence[str] | None, change: AuditEntry) -> AuditEntry | None:
    if not topics:
        return change
    before = {at: offset for at, offset in change.before.items() if at.topic in topics}
    after = {at: offset for at, offset in change.after.items() if at.topic in topics}
    return replace(change, before=before, after=after) if before or after else None


def _age(value: float | None) -> str:
    return "?" if value is None else f"{value:,.1f}"

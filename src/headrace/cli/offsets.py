"""`headrace offsets`: look at offsets and lag."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.offsets_arguments import Bootstrap, File, Json, Name, Store, Topic, opened, print_json, table

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def show(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
) -> None:
    """The committed offsets, the batch in hand and the live run."""
    from headrace.offsets.desk import live
    from headrace.offsets.imports import to_spark_json

    with opened(file, store, pipeline, bootstrap, topic) as desk:
        state = desk.state
        progress, run = state.progress, live(state.run)
        if as_json:
            pending = json.loads(progress.pending.to_json()) if progress.pending else None
            print_json(
                {
                    "pipeline": desk.pipeline,
                    "offsets": to_spark_json(progress.offsets),
                    "last_batch": progress.last_batch,
                    "pending": pending,
                    "topic_ids": dict(progress.topic_ids),
                    "running": str(run) if run else None,
                }
            )
            return
        table(
            ["topic", "partition", "offset"],
            [[at.topic, at.partition, f"{o:,}"] for at, o in sorted(progress.offsets.items())],
        )
        typer.echo(f"last batch {progress.last_batch}; running: {run or 'no'}")
        if progress.pending:
            typer.echo(f"batch {progress.pending.id} is in hand: " + ", ".join(map(str, progress.pending.ranges[:8])))


@app.command()
def lag(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks of --watch.", min=0.1)] = 2.0,
) -> None:
    """How far the pipeline is behind, in records and in seconds, per partition and in total."""
    with opened(file, store, pipeline, bootstrap, topic) as desk:
        while True:
            lags = desk.lag()
            ages = [entry.seconds for entry in lags]
            worst = None if None in ages else max((age for age in ages if age is not None), default=0.0)
            total = sum(entry.records for entry in lags)
            if as_json:
                print_json(
                    {
                        "pipeline": desk.pipeline,
                        "records": total,
                        "seconds": worst,
                        "partitions": [
                            {
                                "topic": entry.at.topic,
                                "partition": entry.at.partition,
                                "offset": entry.committed,
                                "end": entry.end,
                                "records": entry.records,
                                "seconds": entry.seconds,
                            }
                            for entry in lags
                        ],
                    },
                    indent=None if watch else 2,
                )
            else:
                rows = [
                    [
                        e.at.topic,
                        e.at.partition,
                        f"{e.committed:,}",
                        f"{e.end:,}",
                        f"{e.records:,}",
                        _age(e.seconds),
                    ]
                    for e in lags
                ]
                rows.append(["total", "", "", "", f"{total:,}", _age(worst)])
                table(["topic", "partition", "offset", "end", "lag", "seconds"], rows)
            if not watch:
                return
            time.sleep(every)


@app.command()
def history(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
) -> None:
    """The audit log: who moved what, when, from where to where, and every gap."""
    with opened(file, store, pipeline, bootstrap, topic) as desk:
        changes = desk.store.history()
        if as_json:
            print_json([json.loads(change.to_json()) for change in changes])
            return
        for change in changes:
            at = datetime.fromtimestamp(change.at, UTC).isoformat(timespec="seconds")
            typer.echo(f"{at}  {change.action}  by {change.who}{'  ' + change.note if change.note else ''}")
            for partition, after in sorted(change.after.items()):
                before = change.before.get(partition)
                step = f"  ({after - before:+,})" if before is not None else ""
                typer.echo(f"    {partition}  {'none' if before is None else f'{before:,}'} -> {after:,}{step}")
        if not changes:
            typer.echo("nothing was moved by hand, and there was no gap")


@app.command()
def export(
    file: File = None,
    store: Store = None,
    pipeline: Name = None,
    bootstrap: Bootstrap = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; default: standard output.")] = None,
) -> None:
    """The offsets as JSON that `import` and Spark's startingOffsets take."""
    from headrace.offsets.imports import to_spark_json

    with opened(file, store, pipeline, bootstrap, None) as desk:
        text = json.dumps(to_spark_json(desk.state.progress.offsets))
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    else:
        typer.echo(text)


def _age(value: float | None) -> str:
    return "?" if value is None else f"{value:,.1f}"

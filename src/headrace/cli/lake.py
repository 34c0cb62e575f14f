"""`headrace files` and `headrace compact`: what a Parquet dataset holds, and fewer files for it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.offsets_arguments import Execute, Json  # noqa: TC001 - typer looks at them
from headrace.cli.pairs import spark_options
from headrace.cli.terminal import print_json, say, say_progress, table
from headrace.errors import ConfigError
from headrace.text import counted, printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.lake.compaction import Plan
    from headrace.lake.place import Place

Path = Annotated[str, typer.Argument(metavar="PATH", help="The path of sinks.Parquet: out/clicks, s3a://…")]
Spark = Annotated[
    list[str] | None,
    typer.Option("--spark", metavar="KEY=VALUE", help="A Spark option, for a path that is not local; may be repeated."),
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)
_SHOWN = 20


def files(path: Path, as_json: Json = False, spark: Spark = None) -> None:
    """Print the files that count, one per line: whole batches, none twice, none that was replaced."""
    from headrace.lake.place import Place
    from headrace.sinks.parquet import Parquet

    found = Parquet(path).files(_session(Place(path), spark))
    if as_json:
        print_json(found)
    else:
        for file in found:
            # Exact for the next command of a pipe, harmless on a terminal.
            typer.echo(printable(file) if sys.stdout.isatty() else file)


def compact(
    path: Path,
    target_size: Annotated[str, typer.Option("--target-size", metavar="SIZE", help="What files grow to.")] = "128MB",
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="How long files that no longer count are kept: 1d, 2h."),
    ] = "1d",
    execute: Execute = False,
    as_json: Json = False,
    spark: Spark = None,
) -> None:
    """Merge small files of a Parquet dataset into large ones, beside running pipelines and readers."""
    from headrace.cli.progress import progress
    from headrace.durations import duration
    from headrace.lake.compaction import compact as compacted
    from headrace.lake.place import Place

    kept = duration(older_than)
    if kept is None:
        raise ConfigError(f"--older-than {older_than} is not a duration", hint="--older-than 1d")
    place, target = Place(path), size(target_size)
    session = _session(place, spark)
    with progress() as show:
        plan = compacted(
            place, target=target, older_than=kept.total_seconds(), execute=execute, spark=session, tell=show
        )
    _print(plan, as_json=as_json, executed=execute)
    if not execute and (plan.merges or plan.stale):
        say("nothing was changed; add --execute to do it", err=True)


def size(text: str) -> int:
    """`128MB`, `1GiB`, `500000`, in bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (wanted := _bytes(*found.groups())):
        raise ConfigError(f"--target-size {text} is not a size", hint="--target-size 128MB")
    return wanted


def _bytes(number: str, unit: str | None, binary: str | None) -> int:
    power = " KMGT".index(unit.upper()) if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def _session(place: Place, options: list[str] | None) -> SparkSession | None:
    """A session for a path that only Spark can reach; None for a local one."""
    if place.local is not None:
        return None
    from headrace.spark import session

    return session.create(spark_options(options), say_progress)


def _print(plan: Plan, *, as_json: bool, executed: bool) -> None:
    if as_json:
        merges = [{"partition": m.partition, "files": [f.path for f in m.files], "size": m.size} for m in plan.merges]
        print_json({"layout": plan.layout, "executed": executed, "merges": merges, "removed": list(plan.stale)})
        return
    rows = [[merge.partition or "-", len(merge.files), _shown(merge.size)] for merge in plan.merges[:_SHOWN]]
    if len(plan.merges) > _SHOWN:
        rest = plan.merges[_SHOWN:]
        rows.append([f"and {len(rest)} more", sum(len(m.files) for m in rest), _shown(sum(m.size for m in rest))])
    verb = ("merged", "removed") if executed else ("to merge", "to remove")
    if plan.merges:
        table(["partition", "files into one", "size"], rows)
        say(f"{counted(plan.files, 'file')} {verb[0]}, into {len(plan.merges):,}")
    elif not plan.stale:
        say("nothing to merge, nothing to remove")
    if plan.stale:
        say(f"{counted(len(plan.stale), 'file')} ({_shown(plan.stale_bytes)}) that no longer count {verb[1]}")


def _shown(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

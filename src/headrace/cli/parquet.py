"""`headrace files` and `headrace compact`: list the files of a Parquet dataset, and merge those of one or of a Delta
table."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Execute, Json  # noqa: TC001 - typer looks at them
from headrace.cli.output.terminal import print_json, say, table
from headrace.errors import ConfigError
from headrace.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.connectors.shared.compaction_plan import CompactionPlan

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE)
_SHOWN = 20


def files(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A local directory written by sinks.Parquet.")],
    as_json: Json = False,
) -> None:
    """Print the files of the published batches of a Parquet dataset, one per line."""
    from headrace.connectors.parquet.sink import Parquet

    found = Parquet(path).files()
    if as_json:
        print_json(found)
    else:
        for file in found:
            # The exact name in a pipe; without control characters on a terminal.
            typer.echo(printable(file) if sys.stdout.isatty() else file)


def compact(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A local directory written by sinks.Parquet, or a Delta table."),
    ],
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="Size of the merged files.")
    ] = "128MB",
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Merge small files of a Parquet dataset or a Delta table. Pipelines and readers may continue meanwhile.

    Without --execute only shows which files would be merged.
    """
    from headrace.cli.output.progress import progress

    target = size(target_size)
    with progress() as show:
        plan = _compact(path, target, execute=execute, on_progress=show)
    _print(plan, as_json=as_json, executed=execute)
    if not execute and plan.merges:
        say("nothing was changed; add --execute to do it", err=True)


def _compact(path: str, target: int, *, execute: bool, on_progress: Callable[[str], None]) -> CompactionPlan:
    text = path.removeprefix("file://")
    if "://" in text or (Path(text) / "_delta_log").is_dir():
        from headrace.connectors.delta import compaction as delta_compaction

        uri = text if "://" in text else str(Path(text).absolute())
        return delta_compaction.compact(uri, target=target, execute=execute, on_progress=on_progress)
    from headrace.connectors.parquet import compaction

    return compaction.compact(Path(text).absolute(), target=target, execute=execute, on_progress=on_progress)


def size(text: str) -> int:
    """The number of bytes of `128MB`, `1GiB` or `500000`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (target := _bytes(*found.groups())):
        raise ConfigError(f"--target-size: expected a size, got {text!r}", hint="--target-size 128MB")
    return target


def _bytes(number: str, unit: str | None, binary: str | None) -> int:
    power = " KMGT".index(unit.upper()) if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def _print(plan: CompactionPlan, *, as_json: bool, executed: bool) -> None:
    if as_json:
        merges = [{"partition": m.partition, "files": [f.path for f in m.files], "size": m.size} for m in plan.merges]
        numbers = {"files": plan.files, "into": plan.into}
        print_json({"layout": plan.layout, "executed": executed, **numbers, "merges": merges})
        return
    if not plan.merges:
        say("nothing to merge")
        return
    rows = [[merge.partition or "-", len(merge.files), _megabytes(merge.size)] for merge in plan.merges[:_SHOWN]]
    if len(plan.merges) > _SHOWN:
        rest = plan.merges[_SHOWN:]
        rows.append([f"and {len(rest)} more", sum(len(m.files) for m in rest), _megabytes(sum(m.size for m in rest))])
    table(["partition", "small files", "size"], rows)
    say(f"{counted(plan.files, 'file')} {'merged' if executed else 'to merge'}, into {plan.into:,}")
    if executed and plan.layout == "delta":
        say("older versions of the table still need the files that were replaced; a vacuum removes them")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

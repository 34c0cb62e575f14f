"""`headrace run --preview`: rows as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.progress import progress
from headrace.cli.terminal import say, table
from headrace.preview_rows import preview
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline import Pipeline


def show_preview(pipeline: Pipeline, n: int, options: Mapping[str, str]) -> None:
    with progress() as show:
        frame = preview(pipeline, n, spark=options, progress=show)
        rows = frame.collect()
    table(frame.columns, [["NULL" if value is None else value for value in row] for row in rows])
    say(f"{counted(len(rows), 'row')}; nothing was stored or committed", err=True)

"""Prints the rows of `headrace run --preview` as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.output.progress import progress
from headrace.cli.output.terminal import say, table
from headrace.text import counted
from headrace.tools.preview import preview

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.runtime.pipeline import Pipeline


def show_preview(pipeline: Pipeline, n: int, options: Mapping[str, str]) -> None:
    with progress() as show:
        frame = preview(pipeline, n, spark=options, progress=show)
        rows = frame.collect()
    table(frame.columns, [["NULL" if value is None else value for value in row] for row in rows])
    say(f"{counted(len(rows), 'row')}; nothing was stored or committed", err=True)

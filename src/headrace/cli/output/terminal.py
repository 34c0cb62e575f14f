"""Prints lines and tables without control characters, which names and data may contain."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from headrace.errors import ConfigError
from headrace.text import json_text, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

_UNLIMITED_WIDTH = 10_000


def say(*lines: str, err: bool = False) -> None:
    """Print lines; without arguments an empty one."""
    for line in lines or ("",):
        typer.echo(printable(line), err=err)


def say_progress(line: str) -> None:
    say(line, err=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console

    if sys.stdout is None:
        raise ConfigError("standard output is closed", hint="> FILE")
    # A pipe has no width: names must not be truncated or wrapped.
    Console(width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH).print(rich_table(columns, rows))


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    result = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        # As Text: rich would interpret markup in a name.
        result.add_row(*(Text(printable(str(cell))) for cell in row))
    return result


def print_json(value: Mapping[str, object] | Sequence[object], indent: int | None = 2) -> None:
    typer.echo(json_text(value, indent))

"""Quotes identifiers for SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_list(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def qualified(table: str) -> str:
    """The quoted name of a table, with its schema if it has one."""
    return ".".join(quoted(part) for part in table.split("."))

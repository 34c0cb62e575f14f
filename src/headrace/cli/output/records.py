"""Prints records as lines: the value with selected fields before it, or JSON."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from headrace.cli.output.terminal import say
from headrace.errors import ConfigError
from headrace.support.polling import writable
from headrace.text import printable
from headrace.tools.records.record import DECODERS, instant, to_json, to_printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.tools.records.record import Record

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "headers")


@dataclass(slots=True)
class Printer:
    """Prints records. `printed` counts them, `wrong` counts those in another format."""

    value_format: str
    key_format: str
    columns: tuple[str, ...]
    null: str
    separator: str
    as_json: bool
    printed: int = 0
    wrong: int = 0
    first_wrong: str | None = None

    @classmethod
    def of(
        cls,
        value_format: str,
        key_format: str,
        show: str | None,
        null: str,
        key_separator: str | None,
        *,
        verbose: bool,
        as_json: bool,
    ) -> Printer:
        names = tuple(name.strip() for name in show.split(",")) if show else ()
        if unknown := [name for name in names if name not in COLUMNS]:
            raise ConfigError(f"--show: unknown field {unknown[0]}", hint=f"--show {','.join(COLUMNS)}")
        if key_separator is not None and (names or verbose):
            raise ConfigError("--key-separator cannot be combined with --show or --verbose", hint="--show key,…")
        columns = ("key",) if key_separator is not None else COLUMNS if verbose else names
        return cls(value_format, key_format, columns, null, key_separator or "\t", as_json)

    def print(self, records: Sequence[Record], limit: int | None = None) -> int:
        """Print at most `limit` records, and return how many were processed.

        Exit silently if the reader closed the pipe, as `head` does.
        """
        lines: list[str] = []
        wrong = 0
        for record in records:
            if len(lines) == limit:
                break
            line = self._json(record) if self.as_json else self._line(record)
            if line is None:
                wrong += 1
            else:
                lines.append(line)
        try:
            write("".join(f"{line}\n" for line in lines).encode())
        except BrokenPipeError:
            close_output()
            raise typer.Exit from None
        self.printed += len(lines)
        self.wrong += wrong
        return len(lines) + wrong

    def _json(self, record: Record) -> str | None:
        parsed = self.value_format == "json"
        if parsed and record.value is not None and self._part(record, record.value, "json") is None:
            return None
        return to_json(record, parsed=parsed)

    def _line(self, record: Record) -> str | None:
        value = self._part(record, record.value, self.value_format)
        cells = [self._cell(record, name) for name in self.columns]
        return None if value is None or None in cells else self.separator.join([*map(str, cells), value])

    def _cell(self, record: Record, name: str) -> str | None:
        match name:
            case "key":
                return self._part(record, record.key, self.key_format)
            case "headers":
                return ",".join(f"{to_printable(n.encode())}={to_printable(v or b'')}" for n, v in record.headers)
            case "timestamp":
                return "" if record.timestamp is None else str(instant(record.timestamp))
            case _:
                return printable(str(getattr(record, name)))

    def _part(self, record: Record, raw: bytes | None, form: str) -> str | None:
        """A part of the record as text; None, after a message, if it does not match the format."""
        if raw is None:
            return self.null
        try:
            return DECODERS[form](raw)
        except ValueError as error:
            say(f"{record.place}: not {form} ({error}): {to_printable(raw[:200])}", err=True)
            return None


def write(data: bytes) -> None:
    """Write all bytes: an unbuffered (PYTHONUNBUFFERED) or non-blocking output may accept only a part per call."""
    out, left = sys.stdout.buffer, memoryview(data)
    while left:
        try:
            written = out.write(left)
        except BlockingIOError as full:
            written = full.characters_written
        left = left[written or 0 :]
        if not written:
            writable(out)
    while True:
        try:
            out.flush()
        except BlockingIOError:
            writable(out)
        else:
            return


def close_output() -> None:
    """Discard the rest of the buffer after the reader closed the pipe, so that it causes no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

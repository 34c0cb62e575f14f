"""The part of `headrace consume` that needs Spark: records decoded as a pipeline does, and chosen by a condition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from headrace.cli.pairs import spark_options
from headrace.errors import ConfigError
from headrace.types import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.cli.connection import Connection
    from headrace.formats.base import Format
    from headrace.kafka.places import Places
    from headrace.kafka.records import Record
    from headrace.spark.looking import Looking

_PAUSE = 0.3
_REFRESH_SECONDS = 10.0
_AT_ONCE = 50_000
"""Records of a partition that are asked for together."""


def format_of(name: str, columns: str | None, registry: str | None, schema: Path | None) -> Format:
    from headrace.formats.avro import Avro
    from headrace.formats.csv import Csv
    from headrace.formats.json import Json
    from headrace.formats.plain import Bytes, Text

    if name == "avro":
        return Avro(schema, registry=registry, on_error="drop")
    if registry or schema:
        raise ConfigError("a registry and a schema are of Avro", hint="--format avro")
    if name in ("json", "csv") or columns:
        if columns is None:
            raise ConfigError(f"which columns the {name} has is not said", hint="--columns 'user STRING, amount INT'")
        return Csv(columns, on_error="drop") if name == "csv" else Json(columns, on_error="drop")
    return Text(on_error="drop") if name == "text" else Bytes(on_error="drop")


class Decoded:
    """`batches` of records, of which `left_out` were not of the format."""

    def __init__(self, at: Connection, places: Places, fmt: Format, where: str | None, spark: list[str] | None) -> None:
        self._at = at
        self._places = places
        self._format = fmt
        self._where = where
        self._spark = spark
        self.left_out = 0

    def batches(
        self, most: Callable[[], int | None], stop: Callable[[], bool], *, follow: bool
    ) -> Iterator[list[Record]]:
        """`most` says how many more are wanted. Ends where the log ended at the start, unless it follows."""
        names = self._places.names()
        positions = self._places.begins(names)
        ends = self._places.ends(positions)
        looking = self._looking(names)
        refreshed = time.monotonic()
        while not stop():
            ranges = [Range(at, start, min(ends[at], start + _AT_ONCE)) for at, start in positions.items()]
            if wanted := [r for r in ranges if len(r)]:
                found, left_out = looking.records(wanted, most())
                self.left_out += left_out
                positions |= {r.at: r.until for r in wanted}
                yield found
            elif not follow:
                return
            else:
                time.sleep(_PAUSE)
            if follow and time.monotonic() - refreshed > _REFRESH_SECONDS:
                positions |= self._places.newcomers(positions.keys())
                refreshed = time.monotonic()
            if follow:
                ends = self._places.ends(positions)

    def _looking(self, names: list[str]) -> Looking:
        from headrace.spark import session
        from headrace.spark.looking import Looking

        made = session.create(spark_options(self._spark), lambda line: typer.echo(line, err=True))
        return Looking(made, self._at.bootstrap, self._at.options, self._format, names, self._where)

"""A console consumer on Spark: it decodes records as a pipeline does, and filters them by a condition."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, RetriableError
from headrace.types import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.core.format import Format
    from headrace.tools.records.decoded_query import DecodedRecordQuery
    from headrace.tools.records.record import Record
    from headrace.tools.records.start_positions import ConsumePlan

_PAUSE = 0.3
_REFRESH_SECONDS = 10.0
_RECORDS_PER_QUERY = 50_000
"""Records per partition that one Spark query reads."""


def format_of(name: str, columns: str | None, registry: str | None, schema: Path | None) -> Format:
    from headrace.formats.avro import Avro
    from headrace.formats.csv import Csv
    from headrace.formats.json import Json
    from headrace.formats.raw import Bytes, Text

    if name == "avro":
        return Avro(schema, registry=registry, on_error="drop")
    if registry or schema:
        raise ConfigError("--registry and --schema need --format avro", hint="--format avro")
    if name in ("json", "csv") or columns:
        if columns is None:
            raise ConfigError(f"no columns given for {name}", hint="--columns 'user STRING, amount INT'")
        return Csv(columns, on_error="drop") if name == "csv" else Json(columns, on_error="drop")
    return Text(on_error="drop") if name == "text" else Bytes(on_error="drop")


def is_plain(fmt: Format) -> bool:
    """Whether the format leaves values as text or bytes."""
    from headrace.formats.raw import Bytes, Text

    return isinstance(fmt, Text | Bytes)


def format_like(target: str, topics: list[str], profile: str | None = None) -> Format:
    """The format of a pipeline's source; if there are several sources, of the one that reads these topics."""
    from headrace.runtime.config import load

    sources = list(load(target, profile).pipeline.sources.values())
    matching = (source for source in sources if set(topics) & set(source.subscription.names or ()))
    return replace(next(matching, sources[0]).format, on_error="drop")


class DecodedRecordConsumer:
    """Consumes decoded records. `left_out` counts those that do not match the format. `query` is called with the topics
    and starts Spark, which installs signal handlers."""

    def __init__(self, plan: ConsumePlan, query: Callable[[list[str]], DecodedRecordQuery]) -> None:
        names = plan.topic_names()
        self._plan = plan
        self._positions = plan.start_offsets(names)
        self._ends = plan.end_offsets(self._positions)
        self._query = query(names)
        self.left_out = 0

    @property
    def first_bad(self) -> str | None:
        """The first record that was left out, and its error."""
        return self._query.first_bad

    def batches(
        self, limit: Callable[[], int | None], stop: Callable[[], bool], *, follow: bool
    ) -> Iterator[list[Record]]:
        """Batches of records; `limit` returns how many more are needed. Ends at the end offsets of the start, unless it
        follows."""
        refreshed = time.monotonic()
        while not stop():
            if ranges := self._next_ranges():
                records, left_out = self._query.records(ranges, limit())
                self.left_out += left_out
                self._positions |= {r.at: r.until for r in ranges}
                yield records
            elif not follow:
                return
            else:
                time.sleep(_PAUSE)
            if follow:
                with suppress(RetriableError):  # an unreachable broker may come back
                    if time.monotonic() - refreshed > _REFRESH_SECONDS:
                        self._positions |= self._plan.new_partitions(self._positions.keys())
                        refreshed = time.monotonic()
                    self._ends = self._plan.end_offsets(self._positions)

    def _next_ranges(self) -> list[Range]:
        ranges = []
        for at, start in self._positions.items():
            until = min(self._ends.get(at, start), start + _RECORDS_PER_QUERY)
            if until > start:
                ranges.append(Range(at, start, until))
        return ranges

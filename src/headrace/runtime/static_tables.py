"""Tables that a SQL transform of a TOML file can join: read once from files, the same for every batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.formats.columns import to_ddl
from headrace.support.pipeline_folder import resolve_path
from headrace.support.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_KINDS = ("csv", "json", "parquet")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_EXAMPLE = '[tables.articles]\ncsv = "articles.csv"'


@dataclass(slots=True)
class StaticTable:
    """A file or folder that is read once. A CSV has a header line; by default its types are inferred from the data."""

    kind: str
    path: str
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    _rows: tuple[Any, StructType] | None = None
    _frame: tuple[SparkSession, DataFrame] | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows, kept in the driver: a frame of Spark's reader would read the file again for every batch."""
        if self._rows is None:
            defaults = {"header": "true", "inferSchema": str(self.schema is None).lower()} if self.kind == "csv" else {}
            reader = spark.read.options(**{**defaults, **self.options})
            if self.schema is not None:
                reader = reader.schema(self.schema)
            loaded = reader.format(self.kind).load(self.path)
            self._rows = (loaded.toArrow(), loaded.schema)
        if self._frame is None or self._frame[0] is not spark:
            self._frame = (spark, spark.createDataFrame(*self._rows))
        return self._frame[1]


def static_tables(raw: Any, sources: Collection[str]) -> dict[str, StaticTable]:
    """The tables of `[tables.NAME]`, checked as far as possible without Spark. The names in `sources` are taken."""
    if not isinstance(raw, Mapping):
        raise ConfigError("expected tables [tables.NAME]", hint=_EXAMPLE)
    taken = {name.lower() for name in sources}
    tables = {}
    for name, settings in raw.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"[tables]: expected a name of letters, digits and _, got {name!r}", hint=_EXAMPLE)
        if name.lower() in taken:
            raise ConfigError(f"[tables.{name}] has the name of a source or of another table", hint="rename it")
        taken.add(name.lower())
        tables[name] = _table(name, settings)
    return tables


def _table(name: str, raw: Any) -> StaticTable:
    known = (*_KINDS, "schema", "options")
    kinds = [kind for kind in _KINDS if isinstance(raw, Mapping) and kind in raw]
    if not isinstance(raw, Mapping) or len(kinds) != 1 or not isinstance(raw[kinds[0]], str):
        unknown = [key for key in raw if key not in known] if isinstance(raw, Mapping) else []
        near = did_you_mean(unknown[0], known) if unknown else None
        raise ConfigError(f"[tables.{name}]: expected the path of one of: {', '.join(_KINDS)}", hint=near or _EXAMPLE)
    if unknown := [key for key in raw if key not in known]:
        hint = did_you_mean(unknown[0], known) or f"known here: {', '.join(known)}"
        raise ConfigError(f"[tables.{name}]: unknown name {unknown[0]}", hint=hint)
    path = raw[kinds[0]]
    if "://" not in path:
        if not resolve_path(path).exists():
            raise ConfigError(f"[tables.{name}]: there is no {resolve_path(path).absolute()}", hint="correct the path")
        path = resolve_path(path).absolute().as_uri()
    raw_options = raw.get("options", {}).items()
    options = {str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in raw_options}
    return StaticTable(kinds[0], path, to_ddl(raw.get("schema"), f"[tables.{name}]"), options)

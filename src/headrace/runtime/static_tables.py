"""Tables that a SQL transform of a TOML file can join: read once from files, the same for every batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.formats.columns import to_ddl
from headrace.support.pipeline_folder import located
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
            usual = {"header": "true", "inferSchema": str(self.schema is None).lower()} if self.kind == "csv" else {}
            reader = spark.read.options(**{**usual, **self.options})
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
        raise ConfigError("[tables.NAME] is a table", hint=_EXAMPLE)
    taken = {name.lower() for name in sources}
    made = {}
    for name, given in raw.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a table's name: expected letters, digits and _", hint=_EXAMPLE)
        if name.lower() in taken:
            raise ConfigError(f"[tables.{name}] has the name of a source or of another table", hint="rename it")
        taken.add(name.lower())
        made[name] = _table(name, given)
    return made


def _table(name: str, given: Any) -> StaticTable:
    known = (*_KINDS, "schema", "options")
    kinds = [kind for kind in _KINDS if isinstance(given, Mapping) and kind in given]
    if not isinstance(given, Mapping) or len(kinds) != 1 or not isinstance(given[kinds[0]], str):
        unknown = [key for key in given if key not in known] if isinstance(given, Mapping) else []
        near = did_you_mean(unknown[0], known) if unknown else None
        raise ConfigError(f"[tables.{name}]: expected the path of one of: {', '.join(_KINDS)}", hint=near or _EXAMPLE)
    if unknown := [key for key in given if key not in known]:
        hint = did_you_mean(unknown[0], known) or f"known here: {', '.join(known)}"
        raise ConfigError(f"[tables.{name}] does not know {unknown[0]}", hint=hint)
    path = given[kinds[0]]
    if "://" not in path:
        if not located(path).exists():
            raise ConfigError(f"[tables.{name}]: there is no {located(path).absolute()}", hint="correct the path")
        path = located(path).absolute().as_uri()
    given_options = given.get("options", {}).items()
    options = {str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in given_options}
    return StaticTable(kinds[0], path, to_ddl(given.get("schema"), f"[tables.{name}]"), options)

"""The path of a Delta table, and the check of its schema: creates or evolves the table where that is allowed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.file_stats import PARTITION_TYPES
from headrace.connectors.shared.partition_columns import find_duplicate
from headrace.connectors.shared.schema_check import missing_columns, nullable_schema, refuse_types, schema_mismatch
from headrace.errors import ConfigError
from headrace.support.crashpoints import reach
from headrace.support.durable import make_directory
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

LOG = "_delta_log"
_TYPES = PARTITION_TYPES | {"float", "double", "decimal", "binary", "timestamp", "timestamp_ntz"}
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
# Features that a table may require of its writers and that a writer of finished files does not support.
_UNSUPPORTED_METADATA = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


@dataclass(frozen=True, slots=True)
class DeltaTablePath:
    """A local folder or a URI. `options` are for deltalake; Spark accesses the same path with its own settings."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[str, ...] = ()
    create: bool = True
    evolve: bool = False

    @property
    def local(self) -> Path | None:
        return None if "://" in self.uri else Path(self.uri)

    def in_spark(self, folder: str) -> str:
        return f"file://{self.local / folder}" if self.local else f"{self.uri}/{folder}"

    def filesystem(self) -> Any:
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(require("deltalake.fs", extra="delta").DeltaStorageHandler(self.uri, dict(self.options)))

    def load(self) -> Any:
        """The newest version of the table; None if it does not exist."""
        try:
            return require("deltalake", extra="delta").DeltaTable(self.uri, storage_options=dict(self.options))
        except require("deltalake.exceptions", extra="delta").TableNotFoundError:
            return None

    def ensure_table(self, rows: StructType) -> Any:
        """Load the table; create or evolve it for `rows`. ConfigError, with both schemas, if they do not fit."""
        table = self.load()
        if table is None:
            self._check_new(rows)
            table = self._create_table(rows)
        missing = self._missing_columns(table, rows)
        if not missing.fields:
            return table
        deltalake = require("deltalake", extra="delta")
        if "timestamp_ntz" in missing.simpleString():
            feature = deltalake.TableFeatures.TimestampWithoutTimezone
            table.alter.add_feature(feature, allow_protocol_versions_increase=True)
        table.alter.add_columns(deltalake.Schema.from_json(missing.json()).fields)
        reach("delta: columns added")
        return self.load()

    def check(self, rows: StructType) -> None:
        """ConfigError if `ensure_table` would raise it; changes nothing."""
        table = self.load()
        if table is None:
            self._check_new(rows)
        else:
            self._missing_columns(table, rows)

    def _missing_columns(self, table: Any, rows: StructType) -> StructType:
        """The columns to add to the table. ConfigError if the rows would not fit then."""
        self._check_rows(rows)
        existing = spark_schema(table)
        if duplicate := find_duplicate(sorted({*rows.names, *existing.names})):
            raise schema_mismatch(rows, existing, self.uri, f"two columns named {duplicate} (Delta ignores case)")
        missing = missing_columns(rows, existing, self.uri, self._unsupported_feature(table, existing))
        if absent := [name for name in partition_columns(table) if name not in rows.names]:
            raise schema_mismatch(rows, existing, self.uri, f"the table is partitioned by {', '.join(absent)}")
        if missing.fields and not self.evolve:
            lacking = ", ".join(missing.names)
            raise schema_mismatch(rows, existing, self.uri, f"the table lacks {lacking} (evolve=True adds columns)")
        _refuse_names(missing)
        return missing

    def _check_rows(self, rows: StructType) -> None:
        refuse_types(rows, _TYPES, "Delta")
        if duplicate := find_duplicate(rows.names):
            raise ConfigError(
                f"Delta({self.uri!r}): the rows have two columns named {duplicate} (Delta ignores case)",
                hint="rename one of them in the transform",
            )

    def _check_new(self, rows: StructType) -> None:
        """ConfigError if a table for `rows` cannot be created or must not be created."""
        self._check_rows(rows)
        if not self.create:
            raise ConfigError(f"there is no Delta table at {self.uri}, and create=False", hint="create=True makes it")
        _refuse_names(rows)
        for name in self.partition_by:
            kind = rows[name].dataType.simpleString() if name in rows.names else "no column of the rows"
            if kind not in PARTITION_TYPES:
                raise ConfigError(
                    f"partition_by={name!r}: expected one of {', '.join(sorted(PARTITION_TYPES))}, got {kind}",
                    hint=f'rows.withColumn("{name}", …) in the transform',
                )
        if set(rows.names) <= set(self.partition_by):
            raise ConfigError("expected a column outside partition_by, got none", hint="partition_by=None")

    def _create_table(self, rows: StructType) -> Any:
        deltalake = require("deltalake", extra="delta")
        if self.local:
            make_directory(self.local)
        # "ignore": if two runs create the table at once, the second uses the table of the first.
        deltalake.DeltaTable.create(
            self.uri,
            deltalake.Schema.from_json(nullable_schema(rows).json()),  # a Delta schema has the JSON format of Spark's
            mode="ignore",
            partition_by=list(self.partition_by),
            storage_options=dict(self.options),
        )
        reach("delta: created")
        return self.load()

    def _unsupported_feature(self, table: Any, schema: StructType) -> str:
        """The table feature that this writer does not support; empty if it supports all."""
        settings, by = table.metadata().configuration, partition_columns(table)
        if self.partition_by and self.partition_by != by:
            return f"it is partitioned by {', '.join(by) or 'nothing'} and not by {', '.join(self.partition_by)}"
        if unsupported := [name for name in by if schema[name].dataType.simpleString() not in PARTITION_TYPES]:
            return f"it is partitioned by {unsupported[0]}, a {schema[unsupported[0]].dataType.simpleString()}"
        if settings.get("delta.columnMapping.mode", "none") != "none":
            return "it maps the names of columns (delta.columnMapping.mode)"
        if any(name.startswith("delta.constraints.") for name in settings):
            return "it has CHECK constraints, which this writer does not check"
        if any(key in column.metadata for column in schema.fields for key in _UNSUPPORTED_METADATA):
            return "it has generated, identity or checked columns"
        return ""


def spark_schema(table: Any) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def partition_columns(table: Any) -> tuple[str, ...]:
    return tuple(table.metadata().partition_columns)


def _refuse_names(schema: StructType) -> None:
    for name in schema.names:
        if _FORBIDDEN.search(name):
            raise ConfigError(
                f"column {name!r}: Delta allows none of ' ,;{{}}()=', tabs and line ends in a column name",
                hint=f'rows.withColumnRenamed("{name}", …) in the transform',
            )

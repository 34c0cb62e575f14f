"""Decodes records as a pipeline does, and filters them by a SQL condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as sql

from headrace.core.error_markers import KAFKA_CONDITION, VALUE_STATES
from headrace.core.sink import METADATA
from headrace.engine.decoder import Decoder
from headrace.engine.range_reader import RangeReader
from headrace.errors import ConfigError
from headrace.formats.base import TIME_OPTIONS
from headrace.formats.raw import Bytes, Text
from headrace.spark.jvm_errors import kafka_config_error
from headrace.spark.sql import quoted
from headrace.support.tracebacks import short
from headrace.tools.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from headrace.core.format import Format
    from headrace.types import Range

_AS_JSON = {"ignoreNullFields": "false", **TIME_OPTIONS}
_METADATA_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "headers")


class DecodedRecordQuery:
    """Reads the records in ranges that match the format `fmt` and `where`, a SQL condition on the columns and `_kafka`.
    Their values are the decoded columns as JSON; text and bytes stay unchanged."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        options: Mapping[str, str],
        fmt: Format,
        topics: Sequence[str],
        where: str | None,
    ) -> None:
        self._reader = RangeReader(spark, bootstrap, options, "headrace-consume")
        self._decoder = Decoder(spark, fmt, topics=topics)
        self._plain = isinstance(fmt, Text | Bytes)
        self._where = where
        self.first_bad: str | None = None
        """The first record that does not match the format, and its error."""
        self._filtered(self._decoder.empty_argument())

    def records(self, ranges: Sequence[Range], limit: int | None) -> tuple[list[Record], int]:
        """At most `limit` records, and how many were left out because they do not match the format."""
        self._decoder.start_batch()
        while True:
            raw = self._reader.rows(ranges)
            decoded = self._decoder.decode(raw)
            filtered = self._filtered(decoded.rows)
            try:
                found = (filtered if limit is None else filtered.limit(limit)).collect()
            except Exception as error:
                if self._decoder.fetch_missing_schemas(error, raw):
                    continue
                raise kafka_config_error(error) or self._where_error(error) or error from None
            left_out = decoded.dropped()
            if left_out and self.first_bad is None and (bad := self._decoder.locate_bad_record(raw)) is not None:
                self.first_bad = bad.message
            return [_record(row) for row in found], left_out

    def _filtered(self, rows: DataFrame) -> DataFrame:
        try:
            columns = [sql.col(quoted(name)) for name in self._decoder.columns]
            as_json = sql.when(~sql.col(f"{METADATA}.tombstone"), sql.to_json(sql.struct(*columns), _AS_JSON))
            value = sql.col(quoted("value")) if self._plain else as_json
            filtered = rows if self._where is None else rows.where(sql.expr(self._where))
            # As a number: Python has no datetime after the year 9999.
            timestamp = sql.unix_millis(f"{METADATA}.timestamp").alias("at")
            metadata = (sql.col(f"{METADATA}.{name}").alias(name) for name in _METADATA_FIELDS if name != "timestamp")
            return filtered.select(*metadata, timestamp, value.cast("binary").alias("v"))
        except (AnalysisException, ParseException) as error:
            raise ConfigError(
                f"--where {self._where}: {short(error)}",
                hint=f"columns: {', '.join(self._decoder.columns)}, {METADATA}.{{{', '.join(_METADATA_FIELDS)}}}",
            ) from error

    def _where_error(self, error: Exception) -> ConfigError | None:
        """The error of a condition that fails on a value, such as a cast; None for any other error."""
        if self._where is None or not isinstance(error, PySparkException):
            return None
        condition, state = error.getCondition() or "", error.getSqlState() or ""
        if not state.startswith(VALUE_STATES) or condition.startswith(KAFKA_CONDITION):
            return None
        return ConfigError(
            f"--where {self._where} fails at a record: {short(error)}",
            hint="try_cast, try_divide and the like give NULL for a value that does not fit",
        )


def _record(row: Row) -> Record:
    return Record(
        row["topic"],
        row["partition"],
        row["offset"],
        row["at"],
        None,
        _bytes(row["key"]),
        _bytes(row["v"]),
        tuple((header["key"], _bytes(header["value"])) for header in row["headers"] or ()),
    )


def _bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)

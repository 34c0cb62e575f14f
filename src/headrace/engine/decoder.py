"""Decodes the raw records of a source into columns and `_kafka`, and treats bad records as `on_error` says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from headrace.core.dead_letters import MAX_BYTES, RecordId, too_many_bad_records
from headrace.core.error_markers import BAD_RECORD, unknown_schema
from headrace.core.format import HIDDEN, SchemaLookupDecoding
from headrace.core.sink import METADATA
from headrace.engine.dead_letter_records import TIMESTAMP_MICROS, as_bytes, limit_bytes, to_dead_letter
from headrace.engine.field_decoder import RAW_SCHEMA, FieldDecoder, open_decoder
from headrace.errors import BadRecord, ConfigError
from headrace.spark.observation import observed_metric
from headrace.spark.sql import quoted, verbatim
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.core.dead_letters import DeadLetter
    from headrace.core.format import Format, Part

# Computed before a record is decoded, so that its value need not be kept.
_TOMBSTONE = f"value IS NULL AS {HIDDEN}tombstone"
_ORIGIN = f"struct(topic, partition, offset, timestamp, key, headers, {HIDDEN}tombstone AS tombstone) AS {METADATA}"
_BAD = "if(error IS NULL, NULL, named_struct('error', error, 'value', value)) AS bad"
_MAX_SCHEMA_IDS = 1_000
_DROPPED = f"{HIDDEN}dropped"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """A frame, and the number of records that were left out, which is known once the frame has been read."""

    rows: DataFrame
    _dropped: Observation | None = None

    def dropped(self) -> int:
        return (observed_metric(self._dropped, "bad") or 0) if self._dropped else 0


@dataclass(frozen=True, slots=True)
class ValidatedRows:
    """A frame with good and bad records. It is read once for each of them, so the engine caches it."""

    frame: DataFrame
    fields: list[str]
    detailed_error: str
    """SQL: the error, with the field that does not match its type if that is known."""

    @property
    def good(self) -> DataFrame:
        with verbatim(self.frame.sparkSession):
            return self.frame.where("error IS NULL").selectExpr(*self.fields, METADATA)

    def collect_dead_letters(self, limit: int, max_bytes: int = MAX_BYTES) -> list[DeadLetter]:
        """The bad records. BadRecord, before any of them is sent to the driver, if there are more than `limit`.

        Records beyond `max_bytes` in total come without their bytes.
        """
        ((count,),) = self.frame.selectExpr("count_if(error IS NOT NULL)").collect()
        if not count:
            return []
        columns = (f"{METADATA}.{name}" for name in ("topic", "partition", "offset", "key", "headers"))
        when = TIMESTAMP_MICROS.format(f"{METADATA}.timestamp")
        bad = self.frame.where("error IS NOT NULL").selectExpr(*columns, when, "value", "error")
        with verbatim(self.frame.sparkSession):
            detailed = bad.selectExpr(
                *(name for name in bad.columns if name != "error"), f"{self.detailed_error} AS error"
            )
        if count > limit:
            (first,) = detailed.limit(1).select("topic", "partition", "offset", "error").collect()
            raise too_many_bad_records(limit, f"{RecordId(*first[:3])}: {first['error']}")
        return [to_dead_letter(row, row["error"], "decoding") for row in limit_bytes(detailed, max_bytes).collect()]


class Decoder:
    """Decodes the records of one source. Created once per run, because it calls schema registries.

    ConfigError for a schema that cannot work, RetriableError if a registry does not answer.
    """

    def __init__(
        self,
        spark: SparkSession,
        value: Format,
        key: Format | None = None,
        topics: Sequence[str] = (),
        cluster_topic_name: Callable[[str], str] = str,
    ) -> None:
        self._cluster_topic_name = cluster_topic_name
        self._spark = spark
        self._on_error = value.on_error
        if key is not None and key.on_error not in ("fail", value.on_error):
            raise ConfigError(
                f"expected the same on_error in format= and key_format=, got {value.on_error!r} and {key.on_error!r}",
                hint="leave out on_error in key_format=: that of format= is used for both",
            )
        self._parts = [open_decoder(spark, value, "value", topics)]
        self.columns = list(self._parts[0].names)
        if key is not None:
            self._parts.append(open_decoder(spark, key, "key", topics))
            if clash := [name for name in self.columns if name.lower() == "key"]:
                raise ConfigError(
                    f"the value has a column {clash[0]}, which is the name of the decoded key",
                    hint="rename the field, or leave out key_format= and use _kafka.key",
                )
            self.columns.append("key")

    def empty_argument(self) -> DataFrame:
        """The frame of a batch without records; its plan contains no decoding."""
        return self._spark.createDataFrame([], self.decode(self._spark.createDataFrame([], RAW_SCHEMA)).rows.schema)

    def decode(self, raw: DataFrame) -> DecodedRows:
        """The rows of `raw`, with bad records treated as `on_error` says.

        A bad record is detected even if the transform does not use its columns: Spark removes neither filters nor
        observed metrics.
        """
        with verbatim(self._spark):
            return self._decode(raw)

    def _decode(self, raw: DataFrame) -> DecodedRows:
        fields = self._fields()
        match self._on_error:
            case "fail":
                rows = raw
                for part in self._parts:
                    rows = _fail_before_decoding(rows, part)
                rows = self._with_decoded(rows, strict=True)
                for part in self._parts:
                    rows = _fail_after_decoding(rows, part)
                return DecodedRows(rows.selectExpr(*_aliased(fields), _ORIGIN))
            case "keep":
                nullable = {name: f"if(error IS NULL, {field}, NULL)" for name, field in fields.items()}
                return DecodedRows(self._with_error(raw).selectExpr(*_aliased(nullable), _BAD, _ORIGIN))
            case "drop":
                dropped = Observation()
                rows = self._with_error(raw).selectExpr(*_aliased(fields), _ORIGIN, f"error AS {_DROPPED}")
                counted = rows.observe(dropped, sql.count_if(sql.col(_DROPPED).isNotNull()).alias("bad"))
                return DecodedRows(counted.where(f"{_DROPPED} IS NULL").drop(_DROPPED), dropped)

    def validated(self, raw: DataFrame) -> ValidatedRows:
        """The rows of `raw`, good and bad ones, with the bytes of the bad ones."""
        value, *key = self._parts
        keys = [column for part in key for column in _aliased(part.column_exprs())]
        with verbatim(self._spark):
            rows = self._with_error(raw).selectExpr(
                value.decoded_column, *keys, _ORIGIN, "if(error IS NULL, NULL, value) AS value", "error"
            )
        return ValidatedRows(
            rows, [*_aliased(value.column_exprs()), *("key" for _ in key)], self._detailed_error_expr()
        )

    @property
    def looks_up_schemas(self) -> bool:
        """Whether records carry a schema id, which may be unknown."""
        return any(isinstance(part.decoding, SchemaLookupDecoding) for part in self._parts)

    def start_batch(self) -> None:
        """Called when a new batch begins."""
        for part in self._parts:
            if isinstance(part.decoding, SchemaLookupDecoding):
                part.decoding.start_batch()

    def fetch_missing_schemas(self, error: Exception, raw: DataFrame) -> str | None:
        """Request the unknown schemas of `raw`, if `error` says that there is one. Return a summary.

        Decode the batch again then. None for any other error; RetriableError if the registry does not answer.
        """
        found = unknown_schema(error)
        if found is None:
            return None
        for part in self._parts:
            if isinstance(part.decoding, SchemaLookupDecoding) and part.decoding.decoder_id == found["token"]:
                topics = self._unknown_ids(raw, part.part, part.decoding)
                topics.setdefault(int(found["id"]), set()).add(self._cluster_topic_name(found["topic"]))
                return part.decoding.fetch_schemas(topics)
        return None

    def _unknown_ids(self, raw: DataFrame, part: Part, decoding: SchemaLookupDecoding) -> dict[int, set[str]]:
        """All unknown schema ids of the batch, with their topics: one repeat of the batch is enough for all."""
        condition, schema_id = decoding.unknown_schema_filter(part)
        topics: dict[int, set[str]] = {}
        # An error here occurs again when the batch is repeated.
        with suppress(Exception):
            counts = raw.where(condition).selectExpr(f"{schema_id} AS id", "topic").groupBy("id", "topic").count()
            # Most frequent first: an id that occurs once may be corrupt bytes.
            for row in counts.orderBy(sql.desc("count"), "id", "topic").limit(_MAX_SCHEMA_IDS).collect():
                topics.setdefault(int(row["id"]), set()).add(self._cluster_topic_name(row["topic"]))
        return topics

    def locate_bad_record(self, raw: DataFrame) -> BadRecord | None:
        """The error for a bad record of `raw`, if there is one."""
        shown = ("topic", "partition", "offset", f"{self._detailed_error_expr()} AS error", "key", "value")
        with verbatim(self._spark):
            bad = self._with_error(raw).where("error IS NOT NULL").limit(1).selectExpr(*shown)
        for row in bad.collect():
            part = "key" if row["error"].startswith("key: ") else "value"
            return _bad_record(row["topic"], row["partition"], row["offset"], row["error"], as_bytes(row[part]) or b"")
        return None

    def _detailed_error_expr(self) -> str:
        """SQL over `error` and the raw `key` and `value`: the error, with the field that does not match its type."""
        whens = []
        for part in self._parts:
            prefix = "" if part.part == "value" else "key: "
            is_key_error = "startswith(error, 'key: ')"
            detail = part.decoding.misfit_expr(part.part, f"substring(error, {len(prefix) + 1})")
            if detail is not None:
                condition = is_key_error if prefix else f"NOT {is_key_error}"
                whens.append(f"WHEN {condition} THEN coalesce(concat('{prefix}', {detail}), error)")
        return f"CASE {' '.join(whens)} ELSE error END" if whens else "error"

    def _fields(self) -> dict[str, str]:
        return {name: field for part in self._parts for name, field in part.column_exprs().items()}

    def _with_decoded(self, raw: DataFrame, *, strict: bool = False) -> DataFrame:
        return raw.selectExpr("*", _TOMBSTONE, *(part.decode_column(strict=strict) for part in self._parts))

    def _with_error(self, raw: DataFrame) -> DataFrame:
        """Decoded records with the column `error`: the reason why a record is bad, or NULL."""
        errors = [
            error
            for part in reversed(self._parts)
            for error in (part.prevalidate_expr(), part.error_expr())
            if error is not None
        ]
        error = f"coalesce({', '.join(errors)})" if errors else "CAST(NULL AS STRING)"
        return self._with_decoded(raw).selectExpr("*", f"{error} AS error")


def origin_type(spark: SparkSession) -> StructType:
    """The type of the column `_kafka`."""
    raw = spark.createDataFrame([], RAW_SCHEMA).selectExpr("*", _TOMBSTONE).selectExpr(_ORIGIN)
    struct = raw.schema[METADATA].dataType
    assert isinstance(struct, StructType)
    return struct


def _fail_before_decoding(raw: DataFrame, part: FieldDecoder) -> DataFrame:
    """Fail at a record that is bad by its bytes alone.

    This is a filter of its own: in one expression with the decoding, Java compiles it to slower code.
    """
    error = part.prevalidate_expr()
    return raw if error is None else raw.where(_valid_or_raise(f"({error}) IS NULL"))


def _fail_after_decoding(decoded: DataFrame, part: FieldDecoder) -> DataFrame:
    """Fail at a bad record.

    A filter, because Spark never removes one, even if the transform uses no decoded column. It is not deterministic, so
    no filter of the transform is moved before it.
    """
    is_valid = part.decoding.is_valid_expr(part.part, part.decoded_column)
    error = part.error_expr()
    if is_valid is None and error is None:
        return decoded
    return decoded.where(
        _valid_or_raise(f"({error}) IS NULL" if is_valid is None else f"{part.is_absent_expr} OR {is_valid}")
    )


def _valid_or_raise(is_valid: str) -> str:
    """A condition that fails the batch if it does not hold, and that no optimiser moves."""
    return f"if(spark_partition_id() < 0, false, {is_valid}) OR raise_error('{BAD_RECORD}') IS NULL"


def _bad_record(topic: str, partition: int, offset: int, error: str, value: bytes) -> BadRecord:
    shown = repr(value[:200]) + (f" and {counted(len(value) - 200, 'byte')} more" if len(value) > 200 else "")
    return BadRecord(
        f"{topic}[{partition}] offset {offset}: {error}: {shown}",
        hint='dead_letters= diverts such records; on_error="drop" leaves them out, on_error="keep" passes them on',
    )


def _aliased(fields: dict[str, str]) -> list[str]:
    return [f"{field} AS {quoted(name)}" for name, field in fields.items()]

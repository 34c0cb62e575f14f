"""Raw records to the frame a transform gets: decoded columns and `_kafka`, with bad records kept apart."""

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
from headrace.spark.observation import observe_batch
from headrace.spark.sql import quoted, verbatim
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.core.dead_letters import DeadLetter
    from headrace.core.format import Format, Part

# Known before a record is decoded, lest its value is carried along for it.
_TOMBSTONE = f"value IS NULL AS {HIDDEN}tombstone"
_ORIGIN = f"struct(topic, partition, offset, timestamp, key, headers, {HIDDEN}tombstone AS tombstone) AS {METADATA}"
_BAD = "if(error IS NULL, NULL, named_struct('error', error, 'value', value)) AS bad"
_NAMED = 1_000
_DROPPED = f"{HIDDEN}dropped"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """A frame, and how many of its records were left out: known once the frame has been read."""

    rows: DataFrame
    _dropped: Observation | None = None

    def dropped(self) -> int:
        return (observe_batch(self._dropped, "bad") or 0) if self._dropped is not None else 0


@dataclass(frozen=True, slots=True)
class ValidatedRows:
    """A frame whose bad records can be asked for apart from the good ones, so it is held while both are read."""

    frame: DataFrame
    fields: list[str]
    explained: str
    """SQL: the error, with the field that does not fit where that can be told."""

    @property
    def good(self) -> DataFrame:
        with verbatim(self.frame.sparkSession):
            return self.frame.where("error IS NULL").selectExpr(*self.fields, METADATA)

    def letters(self, most: int, max_bytes: int = MAX_BYTES) -> list[DeadLetter]:
        """The bad records; BadRecord, before they come to the driver, if they are more than allowed.

        Those that have more than `max_bytes` come without their bytes.
        """
        ((count,),) = self.frame.selectExpr("count_if(error IS NOT NULL)").collect()
        if not count:
            return []
        columns = (f"{METADATA}.{name}" for name in ("topic", "partition", "offset", "key", "headers"))
        when = TIMESTAMP_MICROS.format(f"{METADATA}.timestamp")
        bad = self.frame.where("error IS NOT NULL").selectExpr(*columns, when, "value", "error")
        with verbatim(self.frame.sparkSession):
            told = bad.selectExpr(*(name for name in bad.columns if name != "error"), f"{self.explained} AS error")
        if count > most:
            (first,) = told.limit(1).select("topic", "partition", "offset", "error").collect()
            raise too_many_bad_records(most, f"{RecordId(*first[:3])}: {first['error']}")
        return [to_dead_letter(row, row["error"], "decoding") for row in limit_bytes(told, max_bytes).collect()]


class Decoder:
    """Decodes the records of one source. Made once per run, for it asks registries.

    Raises ConfigError for schemas that cannot work, RetriableError if a registry does not answer.
    """

    def __init__(
        self,
        spark: SparkSession,
        value: Format,
        key: Format | None = None,
        topics: Sequence[str] = (),
        cluster_topic_name: Callable[[str], str] = str,
    ) -> None:
        self._real_name = cluster_topic_name
        self._spark = spark
        self._on_error = value.on_error
        if key is not None and key.on_error not in ("fail", value.on_error):
            raise ConfigError(
                f"key_format has on_error={key.on_error!r} and format has {value.on_error!r}",
                hint="on_error of format= counts for both: leave it out in key_format=",
            )
        self._sides = [open_decoder(spark, value, "value", topics)]
        self.columns = list(self._sides[0].names)
        if key is not None:
            self._sides.append(open_decoder(spark, key, "key", topics))
            if clash := [name for name in self.columns if name.lower() == "key"]:
                raise ConfigError(
                    f"the value has a column {clash[0]}, and the decoded key is called so",
                    hint="rename the field, or leave out key_format= and take _kafka.key",
                )
            self.columns.append("key")

    def empty(self) -> DataFrame:
        """What a transform gets of no records; its plan has nothing of the decoding."""
        return self._spark.createDataFrame([], self.decode(self._spark.createDataFrame([], RAW_SCHEMA)).rows.schema)

    def decode(self, raw: DataFrame) -> DecodedRows:
        """The rows of `raw`, with bad records treated as `on_error` says.

        Whatever the transform leaves out, a bad record is seen: nothing removes a filter, nor what a metric counts.
        """
        with verbatim(self._spark):
            return self._decoded(raw)

    def _decoded(self, raw: DataFrame) -> DecodedRows:
        fields = self._fields()
        match self._on_error:
            case "fail":
                shaped = raw
                for side in self._sides:
                    shaped = _shaped(shaped, side)
                good = self._parsed(shaped, strict=True)
                for side in self._sides:
                    good = _failing(good, side)
                return DecodedRows(good.selectExpr(*_named(fields), _ORIGIN))
            case "keep":
                judged = self._judged(raw)
                kept = {name: f"if(error IS NULL, {field}, NULL)" for name, field in fields.items()}
                return DecodedRows(judged.selectExpr(*_named(kept), _BAD, _ORIGIN))
            case "drop":
                seen = Observation()
                rows = self._judged(raw).selectExpr(*_named(fields), _ORIGIN, f"error AS {_DROPPED}")
                counted = rows.observe(seen, sql.count_if(sql.col(_DROPPED).isNotNull()).alias("bad"))
                return DecodedRows(counted.where(f"{_DROPPED} IS NULL").drop(_DROPPED), seen)

    def judged(self, raw: DataFrame) -> ValidatedRows:
        """The rows of `raw`, with the bytes of bad records kept beside them."""
        value, *key = self._sides
        keys = [name for side in key for name in _named(side.column_exprs())]
        with verbatim(self._spark):
            kept = self._judged(raw).selectExpr(
                value.decoded_column, *keys, _ORIGIN, "if(error IS NULL, NULL, value) AS value", "error"
            )
        return ValidatedRows(kept, [*_named(value.column_exprs()), *("key" for _ in key)], self._explained())

    @property
    def learns(self) -> bool:
        """Whether records may name a schema that is not known yet."""
        return any(isinstance(side.decoding, SchemaLookupDecoding) for side in self._sides)

    def renew(self) -> None:
        """A new batch begins."""
        for side in self._sides:
            if isinstance(side.decoding, SchemaLookupDecoding):
                side.decoding.start_batch()

    def learn(self, error: Exception, raw: DataFrame) -> str | None:
        """If `error` says that a record of `raw` names a schema that was not known, ask for it and tell what was found.

        The batch can then be decoded anew. None for any other error; RetriableError if the registry does not answer.
        """
        found = unknown_schema(error)
        if found is None:
            return None
        for side in self._sides:
            if isinstance(side.decoding, SchemaLookupDecoding) and side.decoding.decoder_id == found["token"]:
                named = self._unknown(raw, side.part, side.decoding)
                named.setdefault(int(found["id"]), set()).add(self._real_name(found["topic"]))
                return side.decoding.fetch_schemas(named)
        return None

    def _unknown(self, raw: DataFrame, part: Part, decoding: SchemaLookupDecoding) -> dict[int, set[str]]:
        """All schemas that the records of the batch name and nobody knows, by the topics: each would cost a repeat."""
        condition, number = decoding.unknown_schema_filter(part)
        named: dict[int, set[str]] = {}
        # Whatever stands in the way of looking meets the next repeat, too.
        with suppress(Exception):
            found = raw.where(condition).selectExpr(f"{number} AS number", "topic").groupBy("number", "topic").count()
            # What is named once may be made up; and so many that they do not fit into memory certainly are.
            for row in found.orderBy(sql.desc("count"), "number", "topic").limit(_NAMED).collect():
                named.setdefault(int(row["number"]), set()).add(self._real_name(row["topic"]))
        return named

    def first_bad(self, raw: DataFrame) -> BadRecord | None:
        """A bad record of `raw`, if there is one."""
        shown = ("topic", "partition", "offset", f"{self._explained()} AS error", "key", "value")
        with verbatim(self._spark):
            bad = self._judged(raw).where("error IS NOT NULL").limit(1).selectExpr(*shown)
        for row in bad.collect():
            part = "key" if row["error"].startswith("key: ") else "value"
            return _blame(row["topic"], row["partition"], row["offset"], row["error"], as_bytes(row[part]) or b"")
        return None

    def _explained(self) -> str:
        """SQL over `error`, and `key` and `value` as they came: the same, with the field that does not fit."""
        whens = []
        for side in self._sides:
            prefix = "" if side.part == "value" else "key: "
            of_key = "startswith(error, 'key: ')"
            more = side.decoding.misfit_expr(side.part, f"substring(error, {len(prefix) + 1})")
            if more is not None:
                mine = of_key if prefix else f"NOT {of_key}"
                whens.append(f"WHEN {mine} THEN coalesce(concat('{prefix}', {more}), error)")
        return f"CASE {' '.join(whens)} ELSE error END" if whens else "error"

    def _fields(self) -> dict[str, str]:
        return {name: field for side in self._sides for name, field in side.column_exprs().items()}

    def _parsed(self, raw: DataFrame, *, strict: bool = False) -> DataFrame:
        return raw.selectExpr("*", _TOMBSTONE, *(side.decode_column(strict=strict) for side in self._sides))

    def _judged(self, raw: DataFrame) -> DataFrame:
        """With `error`: why a record is bad."""
        found = [
            error
            for side in reversed(self._sides)
            for error in (side.prevalidate_expr(), side.error_expr())
            if error is not None
        ]
        error = f"coalesce({', '.join(found)})" if found else "CAST(NULL AS STRING)"
        return self._parsed(raw).selectExpr("*", f"{error} AS error")


def origin_type(spark: SparkSession) -> StructType:
    """The type of METADATA."""
    raw = spark.createDataFrame([], RAW_SCHEMA).selectExpr("*", _TOMBSTONE).selectExpr(_ORIGIN)
    found = raw.schema[METADATA].dataType
    assert isinstance(found, StructType)
    return found


def _shaped(raw: DataFrame, side: FieldDecoder) -> DataFrame:
    """Fails at a record whose bytes alone say that it is bad, before it is decoded.

    By a filter of its own: in one expression with the decoding Java compiles it to slower code.
    """
    shape = side.prevalidate_expr()
    return raw if shape is None else raw.where(_always(f"({shape}) IS NULL"))


def _failing(parsed: DataFrame, side: FieldDecoder) -> DataFrame:
    """Fails at a record that is bad, by a filter that is not deterministic: none of a transform comes before it.

    Nor is a filter ever left out, though the transform may use nothing of what is decoded.
    """
    quick = side.decoding.is_valid_expr(side.part, side.decoded_column)
    error = side.error_expr()
    if quick is None and error is None:
        return parsed
    good = f"({error}) IS NULL" if quick is None else f"{side.is_absent_expr} OR {quick}"
    return parsed.where(_always(good))


def _always(good: str) -> str:
    """A condition that fails the batch where it does not hold, and that no optimiser moves."""
    return f"if(spark_partition_id() < 0, false, {good}) OR raise_error('{BAD_RECORD}') IS NULL"


def _blame(topic: str, partition: int, offset: int, error: str, value: bytes) -> BadRecord:
    shown = repr(value[:200]) + (f" and {counted(len(value) - 200, 'byte')} more" if len(value) > 200 else "")
    return BadRecord(
        f"{topic}[{partition}] offset {offset}: {error}: {shown}",
        hint='dead_letters= diverts such records; on_error="drop" leaves them out, on_error="keep" passes them on',
    )


def _named(fields: dict[str, str]) -> list[str]:
    return [f"{field} AS {quoted(name)}" for name, field in fields.items()]

"""Raw records to the frame a transform gets: decoded columns and `_kafka`, with bad records kept apart."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from headrace.errors import BadRecord, ConfigError
from headrace.formats.base import HIDDEN, UNKNOWN, Learning, literal
from headrace.letters import Letter, Origin
from headrace.sinks.base import METADATA
from headrace.spark.observing import observed
from headrace.spark.quoting import quoted
from headrace.tracebacks import short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from headrace.formats.base import Decoding, Format, Part
    from headrace.letters import Refusal

RAW_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
# Known before a record is decoded, lest its value is carried along for it.
_TOMBSTONE = f"value IS NULL AS {HIDDEN}tombstone"
_ORIGIN = f"struct(topic, partition, offset, timestamp, key, headers, {HIDDEN}tombstone AS tombstone) AS {METADATA}"
_UNNAMED = "headrace.BadRecord somewhere in the batch"
_SPARKS_OWN = "MALFORMED_RECORD_IN_PARSING"
_BAD = "if(error IS NULL, NULL, named_struct('error', error, 'value', value)) AS bad"
_DROPPED = f"{HIDDEN}dropped"
_MOMENT = "unix_micros({}) AS at"
"""As a number: Python has no time for what lies beyond the year 9999."""
_DDL = 'a Spark DDL string is meant: "user STRING, amount DECIMAL(10,2), at TIMESTAMP"'


@dataclass(frozen=True, slots=True)
class Decoded:
    """A frame, and how many of its records were left out: known once the frame has been read."""

    rows: DataFrame
    _dropped: Observation | None = None

    def dropped(self) -> int:
        return (observed(self._dropped, "bad") or 0) if self._dropped is not None else 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A frame whose bad records can be asked for apart from the good ones, so it is held while both are read."""

    frame: DataFrame
    fields: list[str]

    @property
    def good(self) -> DataFrame:
        return self.frame.where("error IS NULL").selectExpr(*self.fields, METADATA)

    def letters(self, most: int) -> list[Letter]:
        """The bad records, or, if they are more than `most`, one more than that."""
        bad = self.frame.where("error IS NOT NULL")
        ((count,),) = self.frame.selectExpr("count_if(error IS NOT NULL)").collect()
        if not count:
            return []
        columns = (f"{METADATA}.{name}" for name in ("topic", "partition", "offset", "key", "headers"))
        when = _MOMENT.format(f"{METADATA}.timestamp")
        found = bad.selectExpr(*columns, when, "value", "error").limit(min(count, most + 1)).collect()
        return [letter(row, row["error"], "decoding") for row in found]


@dataclass(frozen=True, slots=True)
class _Side:
    """The keys or the values of a run: how they are decoded, and the names of the columns."""

    part: Part
    decoding: Decoding
    names: list[str]

    @property
    def held(self) -> str:
        """Where the decoded struct is until the columns are selected."""
        return f"decoded_{self.part}"

    def parsed(self, *, failing: bool) -> str:
        """SQL that decodes. `failing`: it may fail at a bad record."""
        decoded = (self.decoding.failing(self.part) if failing else None) or self.decoding.decoded(self.part)
        # What is not deterministic is a wall to the optimiser: no filter of the transform is pushed through it, which
        # would parse every record a second time.
        return f"if(spark_partition_id() < 0, NULL, {decoded}) AS {self.held}"

    def shape(self) -> str | None:
        return self._said(self.decoding.shape(self.part))

    def error(self) -> str | None:
        return self._said(self.decoding.error(self.part, self.held))

    def _said(self, error: str | None) -> str | None:
        return error if error is None or self.part == "value" else f"concat('key: ', {error})"

    @property
    def absent(self) -> str:
        """SQL: whether there is nothing to decode."""
        return f"{HIDDEN}tombstone" if self.part == "value" else "key IS NULL"

    def fields(self) -> dict[str, str]:
        """SQL of each column: those of a value, or the one of a key."""
        row = self.decoding.row(self.held)
        fields = {name: f"{row}.{quoted(name)}" for name in self.names}
        if self.part == "value":
            return fields
        if self.decoding.single:
            return {"key": fields["value"]}
        named = ", ".join(f"{literal(name)}, {field}" for name, field in fields.items())
        return {"key": f"if(key IS NULL, NULL, named_struct({named}))"}


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
        real_name: Callable[[str], str] = str,
    ) -> None:
        self._real_name = real_name
        self._spark = spark
        self._on_error = value.on_error
        if key is not None and key.on_error not in ("fail", value.on_error):
            raise ConfigError(
                f"key_format has on_error={key.on_error!r} and format has {value.on_error!r}",
                hint="on_error of format= counts for both: leave it out in key_format=",
            )
        self._sides = [_opened(spark, value, "value", topics)]
        self.columns = list(self._sides[0].names)
        if key is not None:
            self._sides.append(_opened(spark, key, "key", topics))
            if clash := [name for name in self.columns if name.lower() == "key"]:
                raise ConfigError(
                    f"the value has a column {clash[0]}, and the decoded key is called so",
                    hint="rename the field, or leave out key_format= and take _kafka.key",
                )
            self.columns.append("key")

    def empty(self) -> DataFrame:
        """What a transform gets of no records."""
        return self.decode(self._spark.createDataFrame([], RAW_SCHEMA)).rows

    def decode(self, raw: DataFrame) -> Decoded:
        """The rows of `raw`, with bad records treated as `on_error` says.

        Whatever the transform leaves out, a bad record is seen: nothing removes a filter, nor what a metric counts.
        """
        fields = self._fields()
        match self._on_error:
            case "fail":
                shaped = raw
                for side in self._sides:
                    shaped = _shaped(shaped, side)
                good = self._parsed(shaped, failing=True)
                for side in self._sides:
                    good = _failing(good, side)
                return Decoded(good.selectExpr(*_named(fields), _ORIGIN))
            case "keep":
                judged = self._judged(raw)
                kept = {name: f"if(error IS NULL, {field}, NULL)" for name, field in fields.items()}
                return Decoded(judged.selectExpr(*_named(kept), _BAD, _ORIGIN))
            case "drop":
                seen = Observation()
                rows = self._judged(raw).selectExpr(*_named(fields), _ORIGIN, f"error AS {_DROPPED}")
                counted = rows.observe(seen, sql.count_if(sql.col(_DROPPED).isNotNull()).alias("bad"))
                return Decoded(counted.where(f"{_DROPPED} IS NULL").drop(_DROPPED), seen)

    def judged(self, raw: DataFrame) -> Judged:
        """The rows of `raw`, with the bytes of bad records kept beside them."""
        value, *key = self._sides
        keys = [name for side in key for name in _named(side.fields())]
        kept = self._judged(raw).selectExpr(
            value.held, *keys, _ORIGIN, "if(error IS NULL, NULL, value) AS value", "error"
        )
        return Judged(kept, [*_named(value.fields()), *("key" for _ in key)])

    @property
    def learns(self) -> bool:
        """Whether records may name a schema that is not known yet."""
        return any(isinstance(side.decoding, Learning) for side in self._sides)

    def learn(self, error: Exception, raw: DataFrame) -> str | None:
        """If `error` says that a record of `raw` names a schema that was not known, ask for it and tell what was found.

        The batch can then be decoded anew. None for any other error; RetriableError if the registry does not answer.
        """
        if not unlearnt(error):
            return None
        found, _ = json.JSONDecoder().raw_decode(str(error).partition(UNKNOWN)[2])
        for side in self._sides:
            if isinstance(side.decoding, Learning) and side.decoding.token == found["token"]:
                named = self._unknown(raw, side.part, side.decoding)
                named.setdefault(int(found["id"]), set()).add(self._real_name(found["topic"]))
                return side.decoding.learn(named)
        return None

    def _unknown(self, raw: DataFrame, part: Part, decoding: Learning) -> dict[int, set[str]]:
        """All schemas that the records of the batch name and nobody knows, by the topics: each would cost a repeat."""
        condition, number = decoding.named(part)
        named: dict[int, set[str]] = {}
        # Whatever stands in the way of looking meets the next repeat, too.
        with suppress(Exception):
            for row in raw.where(condition).selectExpr(f"{number} AS number", "topic").distinct().collect():
                named.setdefault(int(row["number"]), set()).add(self._real_name(row["topic"]))
        return named

    def first_bad(self, raw: DataFrame) -> BadRecord | None:
        """A bad record of `raw`, if there is one."""
        bad = self._judged(raw).where("error IS NOT NULL")
        for row in bad.selectExpr("topic", "partition", "offset", "error", "key", "value").limit(1).collect():
            part = "key" if row["error"].startswith("key: ") else "value"
            return _blame(row["topic"], row["partition"], row["offset"], row["error"], _bytes(row[part]) or b"")
        return None

    def _fields(self) -> dict[str, str]:
        return {name: field for side in self._sides for name, field in side.fields().items()}

    def _parsed(self, raw: DataFrame, *, failing: bool = False) -> DataFrame:
        return raw.selectExpr("*", _TOMBSTONE, *(side.parsed(failing=failing) for side in self._sides))

    def _judged(self, raw: DataFrame) -> DataFrame:
        """With `error`: why a record is bad."""
        found = [error for side in reversed(self._sides) for error in (side.shape(), side.error()) if error is not None]
        error = f"coalesce({', '.join(found)})" if found else "CAST(NULL AS STRING)"
        return self._parsed(raw).selectExpr("*", f"{error} AS error")


def unnamed(error: BaseException) -> bool:
    """Whether `error` says that a record is bad, and not which."""
    text = str(error)
    return _UNNAMED in text or _SPARKS_OWN in text


def unlearnt(error: BaseException) -> bool:
    """Whether `error` says that a record names a schema which was not known."""
    return UNKNOWN in str(error)


def _shaped(raw: DataFrame, side: _Side) -> DataFrame:
    """Fails at a record whose bytes alone say that it is bad, before it is decoded.

    By a filter of its own: in one expression with the decoding Java compiles it to slower code.
    """
    shape = side.shape()
    return raw if shape is None else raw.where(_always(f"({shape}) IS NULL"))


def _failing(parsed: DataFrame, side: _Side) -> DataFrame:
    """Fails at a record that is bad, by a filter that is not deterministic: none of a transform comes before it.

    Nor is a filter ever left out, though the transform may use nothing of what is decoded.
    """
    quick = side.decoding.good(side.part, side.held)
    error = side.error()
    if quick is None and error is None:
        return parsed
    good = f"({error}) IS NULL" if quick is None else f"{side.absent} OR {quick}"
    return parsed.where(_always(good))


def _always(good: str) -> str:
    """A condition that fails the batch where it does not hold, and that no optimiser moves."""
    return f"if(spark_partition_id() < 0, false, {good}) OR raise_error('{_UNNAMED}') IS NULL"


def _opened(spark: SparkSession, fmt: Format, part: Part, topics: Sequence[str]) -> _Side:
    if (ddl := fmt.ddl()) is not None:
        _check_ddl(fmt, ddl)
    decoding = fmt.decoding(spark, part, topics)
    try:
        empty = spark.createDataFrame([], RAW_SCHEMA).selectExpr(f"{decoding.decoded(part)} AS decoded")
        row = empty.selectExpr(f"{decoding.row('decoded')} AS row").schema["row"].dataType
    except (AnalysisException, Py4JJavaError) as error:
        said = f"{ddl!r}: " if ddl is not None else ""
        raise ConfigError(
            f"{type(fmt).__name__}: the schema cannot be used: {said}{_cause(error)}",
            hint=_DDL if ddl is not None else "change the schema, or read hr.Bytes() and decode in the transform",
        ) from error
    assert isinstance(row, StructType)
    names = [name for name in row.fieldNames() if not name.startswith(HIDDEN)]
    if part == "value":
        _check_names(names, fmt)
    return _Side(part, decoding, names)


def _check_ddl(fmt: Format, ddl: str) -> None:
    try:
        parsed = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"{type(fmt).__name__}: the schema does not parse: {ddl!r}: {_first_line(error)}", hint=_DDL
        ) from error
    if not isinstance(parsed, StructType):
        raise ConfigError(
            f"{type(fmt).__name__}: {ddl!r} is a type; columns are meant",
            hint='"user STRING, amount DECIMAL(10,2), at TIMESTAMP"',
        )
    _check_names(parsed.fieldNames(), fmt)


def _check_names(names: list[str], fmt: Format) -> None:
    reserved = {METADATA, "bad"} if fmt.on_error == "keep" else {METADATA}
    lowered = [name.lower() for name in names]
    if clash := sorted(name for name in names if name.lower() in reserved or name.lower().startswith(HIDDEN)):
        raise ConfigError(f"the column name {clash[0]} is taken by Headrace", hint="rename the field")
    if twice := sorted(name for name in names if lowered.count(name.lower()) > 1):
        raise ConfigError(f"the schema names the column {twice[0]} twice")


def originals(raw: DataFrame, refused: Sequence[Refusal]) -> list[Letter]:
    """The records in `raw` that rows were made of which a sink refused."""
    by_origin = {refusal.origin: refusal for refusal in refused}
    places: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in by_origin:
        places.setdefault((topic, partition), []).append(offset)
    wanted = sql.lit(False)
    for (topic, partition), offsets in places.items():
        here = (sql.col("topic") == topic) & (sql.col("partition") == partition)
        wanted = wanted | (here & sql.col("offset").isin(offsets))
    letters = []
    columns = ("topic", "partition", "offset", "key", "headers", "value")
    for row in raw.where(wanted).selectExpr(*columns, _MOMENT.format("timestamp")).collect():
        refusal = by_origin[Origin(row["topic"], row["partition"], row["offset"])]
        letters.append(letter(row, refusal.error, refusal.place))
    return letters


def letter(row: Row, error: str, place: str) -> Letter:
    return Letter(
        Origin(row["topic"], row["partition"], row["offset"]),
        _moment(row["at"]),
        _bytes(row["key"]),
        _bytes(row["value"]),
        tuple((header["key"], _bytes(header["value"])) for header in row["headers"] or ()),
        error,
        place,
    )


def _moment(micros: int | None) -> datetime | None:
    """None also for one that Python does not have: the dead letter matters more than its time."""
    try:
        return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return None


def _bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def _blame(topic: str, partition: int, offset: int, error: str, value: bytes) -> BadRecord:
    shown = repr(value[:200]) + (f" and {len(value) - 200} bytes more" if len(value) > 200 else "")
    return BadRecord(
        f"{topic}[{partition}] offset {offset}: {error}: {shown}",
        hint='dead_letters= puts such records aside; on_error="drop" leaves them out, on_error="keep" passes them on',
    )


def _named(fields: dict[str, str]) -> list[str]:
    return [f"{field} AS {quoted(name)}" for name, field in fields.items()]


def _cause(error: AnalysisException | Py4JJavaError) -> str:
    if isinstance(error, AnalysisException):
        return short(error)
    return " ".join(str(error.java_exception.getMessage()).split())[:300]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

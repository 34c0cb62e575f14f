"""Raw records to the frame a transform gets: decoded columns and `_kafka`, with bad records kept apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from headrace.errors import BadRecord, ConfigError
from headrace.letters import Letter, Origin
from headrace.sinks.base import METADATA
from headrace.spark.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from headrace.formats.base import Format
    from headrace.letters import Refusal

RAW_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_ORIGIN = f"struct(topic, partition, offset, timestamp, key, headers, value IS NULL AS tombstone) AS {METADATA}"
_MARK = "headrace.BadRecord:"
_RAISE = (
    f"raise_error(concat('{_MARK}', to_json(named_struct('topic', topic, 'partition', partition,"
    " 'offset', offset, 'error', error, 'value', base64(value)))))"
)
_BAD = "if(error IS NULL, NULL, named_struct('error', error, 'value', value)) AS bad"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A frame, and how many of its records were left out: known once the frame has been read."""

    rows: DataFrame
    _dropped: Observation | None = None

    def dropped(self) -> int:
        if self._dropped is None:
            return 0
        # A frame that nothing has read has no count, and asking for one would wait for ever.
        observed: Any = self._dropped._jo
        if observed is None or not observed.future().isCompleted():
            return 0
        return int(self._dropped.get["bad"])


def columns(spark: SparkSession, fmt: Format) -> list[str]:
    """The names of the decoded columns; ConfigError when the schema does not parse."""
    try:
        parsed = StructType.fromDDL(fmt.schema())
    except PySparkException as error:
        raise ConfigError(
            f"{type(fmt).__name__}: the schema does not parse: {fmt.schema()!r}: {_first_line(error)}",
            hint='a Spark DDL string is meant: "user STRING, amount DECIMAL(10,2), at TIMESTAMP"',
        ) from error
    if not isinstance(parsed, StructType):
        raise ConfigError(
            f"{type(fmt).__name__}: {fmt.schema()!r} is a type; columns are meant",
            hint='"user STRING, amount DECIMAL(10,2), at TIMESTAMP"',
        )
    names: list[str] = parsed.fieldNames()
    reserved = {METADATA, "bad"} if fmt.on_error == "keep" else {METADATA}
    lowered = [name.lower() for name in names]
    if clash := sorted(name for name in names if name.lower() in reserved):
        raise ConfigError(f"the column name {clash[0]} is taken by Headrace", hint="rename the field")
    if twice := sorted(name for name in names if lowered.count(name.lower()) > 1):
        raise ConfigError(f"the schema names the column {twice[0]} twice")
    return names


def decode(raw: DataFrame, fmt: Format, names: list[str]) -> Decoded:
    """Decode `raw` by `fmt`.

    The observed metric is also a wall: Spark pushes no filter of the transform through it, which would parse
    every record a second time, and prunes nothing behind it, which would let a bad record pass unseen.
    """
    error = fmt.error()
    if error is None:
        whole = [f"({fmt.decoded()}).{quoted(name)} AS {quoted(name)}" for name in names]
        return Decoded(raw.selectExpr(*whole, _ORIGIN))
    fields = [f"decoded.{quoted(name)}" for name in names]
    parsed = raw.selectExpr("*", f"{fmt.decoded()} AS decoded")
    judged = parsed.selectExpr("*", f"{error} AS error")
    count_bad = sql.count_if(sql.col("error").isNotNull()).alias("bad")
    match fmt.on_error:
        case "fail":
            checked = judged.withColumn("decoded", sql.expr(f"if(error IS NULL, decoded, {_RAISE})"))
            walled = checked.observe("headrace", sql.count("decoded").alias("good"))
            return Decoded(walled.selectExpr(*fields, _ORIGIN))
        case "keep":
            walled = judged.observe("headrace", count_bad)
            return Decoded(walled.selectExpr(*_null_if_bad(fields), _BAD, _ORIGIN))
        case "drop":
            seen = Observation()
            walled = judged.observe(seen, count_bad).where("error IS NULL")
            return Decoded(walled.selectExpr(*fields, _ORIGIN), seen)


@dataclass(frozen=True, slots=True)
class Judged:
    """A frame whose bad records can be asked for apart from the good ones, so it is held while both are read."""

    frame: DataFrame
    names: list[str]

    @property
    def good(self) -> DataFrame:
        return self.frame.where("error IS NULL").selectExpr(*[f"decoded.{quoted(n)}" for n in self.names], METADATA)

    def letters(self, most: int) -> list[Letter]:
        """The bad records, or, if they are more than `most`, one more than that."""
        bad = self.frame.where("error IS NOT NULL")
        ((count,),) = self.frame.selectExpr("count_if(error IS NOT NULL)").collect()
        if not count:
            return []
        columns = (f"{METADATA}.{name}" for name in ("topic", "partition", "offset", "timestamp", "key", "headers"))
        found = bad.selectExpr(*columns, "value", "error").limit(min(count, most + 1)).collect()
        return [letter(row, row["error"], "decoding") for row in found]


def judged(raw: DataFrame, fmt: Format, names: list[str]) -> Judged:
    """Decode `raw` by `fmt`, with the bytes of bad records kept."""
    parsed = raw.selectExpr("*", f"{fmt.decoded()} AS decoded")
    checked = parsed.selectExpr("*", f"{fmt.error() or 'CAST(NULL AS STRING)'} AS error")
    return Judged(checked.selectExpr("decoded", _ORIGIN, "if(error IS NULL, NULL, value) AS value", "error"), names)


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
    for row in raw.where(wanted).collect():
        refusal = by_origin[Origin(row["topic"], row["partition"], row["offset"])]
        letters.append(letter(row, refusal.error, refusal.place))
    return letters


def letter(row: Row, error: str, place: str) -> Letter:
    return Letter(
        Origin(row["topic"], row["partition"], row["offset"]),
        # Spark gives the local time of this process, without saying so.
        row["timestamp"].astimezone(UTC) if row["timestamp"] else None,
        _bytes(row["key"]),
        _bytes(row["value"]),
        tuple((header["key"], _bytes(header["value"])) for header in row["headers"] or ()),
        error,
        place,
    )


def _bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def bad_record(error: BaseException) -> BadRecord | None:
    """The BadRecord inside a Spark error, if that is what it was."""
    text = str(error)
    start = text.find(_MARK)
    if start < 0:
        return None
    record, _ = json.JSONDecoder().raw_decode(text[start + len(_MARK) :])
    import base64

    value = base64.b64decode(record["value"])
    shown = repr(value[:200]) + (f" and {len(value) - 200} bytes more" if len(value) > 200 else "")
    return BadRecord(
        f"{record['topic']}[{record['partition']}] offset {record['offset']}: {record['error']}: {shown}",
        hint='dead_letters= puts such records aside; on_error="drop" leaves them out, on_error="keep" passes them on',
    )


def _null_if_bad(fields: list[str]) -> list[str]:
    return [f"if(error IS NULL, {field}, NULL) AS {field.partition('.')[2]}" for field in fields]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

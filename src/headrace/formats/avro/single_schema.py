"""Decodes Avro of one schema, with a number appended to each record that marks its end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.core.format import HIDDEN, Decoding
from headrace.formats.nested_conditions import any_nested
from headrace.formats.zigzag import encode_zigzag
from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

# Spark reads malformed Avro as a struct of NULLs and ignores bytes after a record. So this number is appended to the
# bytes, and read as the last field of the record. If it is not read back, the bytes were too few, too many, or not Avro
# of this schema. (A field of the record itself: reading a nested record would be far slower.)
_END, _END_FIELD = 0x68656164, f"{HIDDEN}end"


class PlainAvro(Decoding):
    """Decodes records that were all written with one schema."""

    def __init__(self, spark: Any, schema: str) -> None:
        from headrace.formats.avro import compatibility

        self._spark = spark
        self._reader = compatibility.parse_schema(spark, schema)
        self._kind = compatibility.spark_type(spark, self._reader)
        self.single = _fields(self._reader) is None

    def decode_expr(self, source: str) -> str:
        return self._read(source, self._reader, head=0)

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        wrong = self._has_invalid_text(decoded)
        return f"{decoded}.{_END_FIELD} = {_END}" + (f" AND ({wrong}) IS NOT TRUE" if wrong else "")

    def error_expr(self, source: str, decoded: str) -> str | None:
        return f"CASE {self._valid_branches(source, decoded)} ELSE 'not Avro of this schema' END"

    def _read(self, source: str, writer: str, head: int) -> str:
        """Avro skips `head` bytes before the value: cutting them off in SQL would copy the rest."""
        options = f"map('mode', 'PERMISSIVE', 'avroSchema', {literal(_frame(self._reader))})"
        return (
            f"from_avro(concat({source}, X'{encode_zigzag(_END).hex()}'), {literal(_frame(writer, head))}, {options})"
        )

    def _has_invalid_text(self, decoded: str) -> str | None:
        """SQL: whether a text is not UTF-8; None if the schema has no text."""
        return " OR ".join(wrong for _, wrong in self._text_checks(decoded)) or None

    def _text_checks(self, decoded: str) -> Iterator[tuple[str, str]]:
        """The fields that contain text, each with SQL: whether a text in it is not UTF-8."""
        kinds = {"value": self._kind} if self.single else {f["name"]: f["type"] for f in self._kind["fields"]}
        for name, kind in kinds.items():
            if (wrong := any_nested(f"{decoded}.{quoted(name)}", kind, _not_text)) is not None:
                yield name, wrong

    def _valid_branches(self, source: str, decoded: str) -> str:
        """The first branches of a CASE, which apply to nearly all records."""
        whens = [
            f"WHEN {wrong} THEN {literal(f'field {name}: expected text, got bytes that are not UTF-8')}"
            for name, wrong in self._text_checks(decoded)
        ]
        inside = f"CASE {' '.join(whens)} END" if whens else "NULL"
        return f"WHEN {source} IS NULL THEN NULL WHEN {decoded}.{_END_FIELD} = {_END} THEN {inside}"


def _frame(schema: str, head: int = 0) -> str:
    """A record schema: `head` bytes, then the fields of `schema` or its single value, then _END."""
    given = json.loads(schema)
    fields = _fields(schema)
    record = {"type": "record", "name": f"{HIDDEN}record"} if fields is None else given
    framed = [{"name": "value", "type": given}] if fields is None else fields
    if head:
        before = {"type": "fixed", "name": f"{HIDDEN}bytes", "size": head}
        framed = [{"name": f"{HIDDEN}head", "type": before}, *framed]
    return json.dumps({**record, "fields": [*framed, {"name": _END_FIELD, "type": "int"}]}, separators=(",", ":"))


def _fields(schema: str) -> list[Any] | None:
    """The fields of a record schema; None for any other schema."""
    given = json.loads(schema)
    return given["fields"] if isinstance(given, dict) and given.get("type") == "record" else None


def _not_text(path: str, kind: Any, *, many: bool) -> str | None:
    """SQL: whether a text is not UTF-8, which Avro does not check."""
    # No character continues after a blank, so the joined texts are valid if each of them is.
    text = f"array_join({path}, ' ')" if many else path
    return f"NOT is_valid_utf8({text})" if kind == "string" else None

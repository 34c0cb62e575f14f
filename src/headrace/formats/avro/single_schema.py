"""Avro to columns by one schema, with a number behind each record by which its end is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.core.format import HIDDEN, Decoding
from headrace.formats.nested_conditions import any_nested
from headrace.spark.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

# Spark reads malformed Avro as a struct of NULLs, and what follows a record is not looked at. So this number is put
# behind the bytes, and read as the last field of the record: where it is not found again, the bytes were too few, too
# many, or no Avro of this schema. (A field of the record itself: a record within one would be far slower to read.)
_END, _END_FIELD = 0x68656164, f"{HIDDEN}end"


class PlainAvro(Decoding):
    """Records that are all written by one schema."""

    def __init__(self, spark: Any, schema: str) -> None:
        from headrace.formats.avro import compatibility

        self._spark = spark
        self._reader = compatibility.parsed(spark, schema)
        self._kind = compatibility.columns(spark, self._reader)
        self.single = _fields(self._reader) is None

    def decode_expr(self, source: str) -> str:
        return self._read(source, self._reader, head=0)

    def is_valid_expr(self, source: str, decoded: str) -> str | None:
        wrong = self._wrong(decoded)
        return f"{decoded}.{_END_FIELD} = {_END}" + (f" AND ({wrong}) IS NOT TRUE" if wrong else "")

    def error_expr(self, source: str, decoded: str) -> str | None:
        return f"CASE {self._good(source, decoded)} ELSE 'not Avro of this schema' END"

    def _read(self, source: str, writer: str, head: int) -> str:
        """`head` bytes before the value are passed over: by Avro, for to cut them off is to copy the rest."""
        options = f"map('mode', 'PERMISSIVE', 'avroSchema', {literal(_framed(self._reader))})"
        return f"from_avro(concat({source}, X'{_end().hex()}'), {literal(_framed(writer, head))}, {options})"

    def _wrong(self, decoded: str) -> str | None:
        """SQL: whether a text in it is not UTF-8; None if there is none."""
        return " OR ".join(wrong for _, wrong in self._each(decoded)) or None

    def _each(self, decoded: str) -> Iterator[tuple[str, str]]:
        """The fields of a record that have a text somewhere, each with SQL: whether one in it is not UTF-8."""
        kinds = {"value": self._kind} if self.single else {one["name"]: one["type"] for one in self._kind["fields"]}
        for name, kind in kinds.items():
            if (wrong := any_nested(f"{decoded}.{quoted(name)}", kind, _not_text)) is not None:
                yield name, wrong

    def _good(self, source: str, decoded: str) -> str:
        """The first branches of a CASE, where nearly every record goes."""
        whens = [
            f"WHEN {wrong} THEN {literal(f'field {name}: expected text, got bytes that are not UTF-8')}"
            for name, wrong in self._each(decoded)
        ]
        inside = f"CASE {' '.join(whens)} END" if whens else "NULL"
        return f"WHEN {source} IS NULL THEN NULL WHEN {decoded}.{_END_FIELD} = {_END} THEN {inside}"


def _framed(schema: str, head: int = 0) -> str:
    """A record with `head` bytes before the fields of `schema`, or the one value of it, and _END behind."""
    given = json.loads(schema)
    fields = _fields(schema)
    record = {"type": "record", "name": f"{HIDDEN}record"} if fields is None else given
    framed = [{"name": "value", "type": given}] if fields is None else fields
    if head:
        before = {"type": "fixed", "name": f"{HIDDEN}bytes", "size": head}
        framed = [{"name": f"{HIDDEN}head", "type": before}, *framed]
    return json.dumps({**record, "fields": [*framed, {"name": _END_FIELD, "type": "int"}]}, separators=(",", ":"))


def _fields(schema: str) -> list[Any] | None:
    """Of a record; None if it is the schema of something else."""
    given = json.loads(schema)
    return given["fields"] if isinstance(given, dict) and given.get("type") == "record" else None


def _end() -> bytes:
    """The number as Avro writes it."""
    left, made = _END << 1, bytearray()
    while left >= 0x80:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


def _not_text(path: str, kind: Any, *, many: bool) -> str | None:
    """SQL: whether a text is not UTF-8, which Avro does not look at."""
    # Behind a blank no character goes on, so texts are valid together if each is.
    text = f"array_join({path}, ' ')" if many else path
    return f"NOT is_valid_utf8({text})" if kind == "string" else None

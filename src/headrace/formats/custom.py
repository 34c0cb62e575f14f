"""Custom formats: a function from bytes to columns, and one back to bytes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from headrace.core.format import Decoding, Format, Part
from headrace.errors import ConfigError
from headrace.formats.columns import to_ddl
from headrace.spark.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_EXAMPLE = 'hr.Custom(function, "id INT, name STRING")'


@dataclass(frozen=True, kw_only=True)
class Custom(Format):
    """A function that Spark calls on the executors: with the values of an Arrow batch, or one by one (`Custom.each`).

    `function` takes a `pyarrow.BinaryArray` and returns a StructArray, a Table or a dict of arrays with the fields of
    `columns`, a Spark DDL string or a StructType. An additional text field `error` has the reasons why records are bad.
    `encode` is the inverse for sinks: from a StructArray of the rows to a BinaryArray. In it, a row whose fields are
    all NULL is NULL.
    """

    function: Callable[[Any], Any] | None = field(default=None, kw_only=False)
    columns: str | Any | None = field(default=None, kw_only=False)
    encode: Callable[[Any], Any] | None = None
    _one_by_one: bool = field(default=False, repr=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(6), init=False, repr=False, compare=False)

    @classmethod
    def each(
        cls,
        function: Callable[[bytes], Any] | None = None,
        columns: str | Any | None = None,
        *,
        encode: Callable[[dict[str, Any]], bytes | None] | None = None,
        **more: Any,
    ) -> Self:
        """The same with functions of one record: from bytes to a dict or a tuple, and from a dict to bytes.

        A record for which `function` raises ValueError is bad, with that message. Records without a value are not
        passed to it.
        """
        return cls(function, columns, encode=encode, _one_by_one=True, **more)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function is None and self.encode is None:
            raise ConfigError("Custom() has no function", hint=_EXAMPLE)
        for given in (self.function, self.encode):
            if given is not None and not callable(given):
                raise ConfigError(f"Custom({given!r}) is not a function", hint=_EXAMPLE)
        object.__setattr__(self, "columns", to_ddl(self.columns, "Custom"))
        if self.function is not None and (not isinstance(self.columns, str) or not self.columns.strip()):
            raise ConfigError(f"Custom(columns={self.columns!r}) has no columns", hint=_EXAMPLE)

    def check_reads(self) -> None:
        if self.function is None:
            raise ConfigError("Custom(encode=…) has no function to read with", hint=_EXAMPLE)

    def ddl(self) -> str | None:
        return self.columns

    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        from headrace.formats import arrow_udf
        from headrace.spark import ddl

        assert self.function is not None
        assert self.columns is not None
        row = ddl.row_type(self.columns)
        zone = arrow_udf.zone(spark)
        batch = (arrow_udf.by_record if self._one_by_one else arrow_udf.by_batch)(self.function, row, zone)
        return arrow_udf.ArrowDecoding(spark, f"headrace_decode_{self._token}", batch, row)

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        from headrace.formats import arrow_udf

        if self.encode is None:
            raise ConfigError("this Custom() only reads", hint="Custom(…, encode=function), from rows to bytes")
        name = f"headrace_encode_{self._token}"
        arrow_udf.register_encoder(name, _by_record(self.encode) if self._one_by_one else self.encode)
        names = [quoted(column) for column in columns]
        if not names:
            raise ConfigError("there are no columns to write", hint="select some in the transform")
        # Spark calls the function for every row, also for one that becomes a record without a value.
        nothing = " AND ".join(f"{column} IS NULL" for column in names)
        return f"{name}(if({nothing}, NULL, struct({', '.join(names)})))"


def _by_record(encode: Callable[[dict[str, Any]], bytes | None]) -> Callable[[Any], Any]:
    def call(rows: Any) -> Any:
        import pyarrow as pa

        return pa.array([row and encode(row) for row in rows.to_pylist()], pa.binary())

    return call

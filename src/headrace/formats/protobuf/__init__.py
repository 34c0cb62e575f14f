"""The Protobuf format: plain messages, or Confluent's wire format (a zero byte, a schema id, an index, a message)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.error_markers import UNENCODABLE
from headrace.core.format import Decoding, Format, Part
from headrace.errors import ConfigError
from headrace.spark.sql import quoted
from headrace.support.pipeline_folder import resolve_path
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_EXAMPLE = (
    'hr.Protobuf("shop.Order", descriptor="shop.desc"), created by:'
    " protoc --include_imports --descriptor_set_out=shop.desc shop.proto"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Protobuf(Format):
    """Messages of the type `message`, a full name. `descriptor` is a descriptor file of protoc, or its bytes.

    With `registry`, the URL of a schema registry, records are in its wire format; a sink writes the id of the newest
    schema of `subject` there, by default `<topic>-value`. The columns are those of the descriptor; unknown fields are
    left out.
    """

    message: str = field(kw_only=False)
    descriptor: str | Path | bytes
    registry: str | None = None
    subject: str | None = None
    _ids: dict[str, int] = field(default_factory=dict, init=False, compare=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(6), init=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.message, str) or not self.message:
            raise ConfigError(f"expected the full name of a message, got {self.message!r}", hint=_EXAMPLE)
        if not isinstance(self.descriptor, bytes):
            try:
                object.__setattr__(self, "descriptor", resolve_path(self.descriptor).read_bytes())
            except (OSError, TypeError) as error:
                raise ConfigError(f"cannot read the descriptor {str(self.descriptor)!r}", hint=_EXAMPLE) from error
        if self.registry is not None:
            from headrace.formats.schema_registry import check_url  # here, because it loads Python's HTTP and TLS

            check_url(self.registry)
        elif self.subject is not None:
            raise ConfigError("Protobuf(subject=…) needs registry=", hint='registry="http://localhost:8081"')

    def __repr__(self) -> str:
        where = f", registry={masked(self.registry)!r}" if self.registry else ""
        return f"Protobuf({self.message!r}{where})"

    def check(self, part: Part, topics: Sequence[str]) -> None:
        from headrace.formats.protobuf.types import Messages

        Messages(self.message, self._descriptor_bytes).row()

    def decoding(self, spark: Any, part: Part, topics: Sequence[str]) -> Decoding:
        from headrace.formats import arrow_udf
        from headrace.formats.protobuf import codec
        from headrace.formats.protobuf.types import Messages

        messages = Messages(self.message, self._descriptor_bytes)
        decode = codec.decoder(messages, framed=self.registry is not None)
        return arrow_udf.ArrowDecoding(spark, f"headrace_decode_{self._token}", decode, messages.row())

    def encode_expr(self, columns: Mapping[str, Any], topic: str | None) -> str:
        from headrace.formats import arrow_udf
        from headrace.formats.protobuf import codec
        from headrace.formats.protobuf.types import Messages

        messages = Messages(self.message, self._descriptor_bytes)
        messages.check_columns(columns)
        name = f"headrace_encode_{self._token}"
        arrow_udf.register_encoder(name, codec.encoder(messages), "value BINARY, error STRING")
        encoded = f"{name}(struct({', '.join(quoted(column) for column in columns)}))"
        # Spark calls the function for every row, also for a tombstone: so the error is raised only if the bytes are
        # used.
        failure = f"CAST(raise_error(concat('{UNENCODABLE}', {encoded}.error)) AS BINARY)"
        body = f"if({encoded}.error IS NULL, {encoded}.value, {failure})"
        if self.registry is None:
            return body
        return f"concat(X'00{self._schema_id(topic):08X}{messages.message_index().hex()}', {body})"

    @property
    def _descriptor_bytes(self) -> bytes:
        assert isinstance(self.descriptor, bytes)
        return self.descriptor

    def _schema_id(self, topic: str | None) -> int:
        """The id of the newest schema for a topic; requested once."""
        from headrace.formats.schema_registry import SchemaRegistry

        if self.subject is None and topic is None:
            raise ConfigError(
                "Protobuf() with a topic_column needs the subject of the schema that all the topics share",
                hint='hr.Protobuf(…, subject="events-value")',
            )
        subject = self.subject or f"{topic}-value"
        if subject not in self._ids:
            assert self.registry is not None
            registry = SchemaRegistry(self.registry)
            versions = registry.get_versions(subject)
            newest = registry.get_version(subject, versions[-1]) if versions else None
            if newest is None or newest.type != "PROTOBUF":
                raise ConfigError(
                    f"{registry} has no Protobuf schema for {subject}",
                    hint="register the .proto file there, or give its subject=",
                )
            self._ids[subject] = newest.id
        return self._ids[subject]

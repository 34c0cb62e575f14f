"""Cassandra hosts, identifiers, sessions and errors; reads offsets from the rows of a table."""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.resource import Resource
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_PORT = 9042
_CONNECT_SECONDS, _ANSWER_SECONDS, _RECONNECT_SECONDS = 5.0, 15.0, 1.0
_NAME = re.compile(r'[A-Za-z]\w*|"(?:[^"]|"")+"')
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"


def parse_hosts(hosts: str | Sequence[str]) -> list[tuple[str, int]]:
    """Host and port of each address in `"host:port,host"` or in a list of such texts. Raises ConfigError."""
    parts = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    parsed = []
    for part in (part.strip() for part in parts):
        host, _, port = part.rpartition(":") if part.count(":") == 1 or "]:" in part else (part, "", DEFAULT_PORT)
        if not host or not str(port).isdecimal():
            raise ConfigError(
                f"expected a Cassandra host as host or host:port, got {part!r}", hint='hosts="10.0.0.1:9042,10.0.0.2"'
            )
        parsed.append((host.strip("[]"), int(port)))
    if not parsed:
        raise ConfigError("expected at least one Cassandra host, got none", hint='hosts="10.0.0.1:9042,10.0.0.2"')
    return parsed


def quote_identifier(identifier: str) -> str:
    """The identifier in double quotes, in lower case unless it was quoted already. Raises ConfigError."""
    if not isinstance(identifier, str) or not _NAME.fullmatch(identifier):
        raise ConfigError(
            f"expected a Cassandra identifier, got {identifier!r}", hint='"events", or \'"Events"\' with quotes'
        )
    return identifier if identifier.startswith('"') else f'"{identifier.lower()}"'


def unquote_identifier(quoted: str) -> str:
    """The identifier as Cassandra's system tables contain it."""
    return quoted[1:-1].replace('""', '"')


def split_table(table: object) -> tuple[str, str]:
    """Keyspace and name of "keyspace.table", unquoted or quoted as the user typed them. Raises ConfigError."""
    keyspace, _, name = table.rpartition(".") if isinstance(table, str) else ("", "", "")
    if not keyspace:
        raise ConfigError(f"expected table= as keyspace.table, got {table!r}", hint=f'table="app.{table}"')
    return keyspace, name


@dataclass(frozen=True, slots=True)
class OffsetsFromTable:
    """A table whose primary key is the partition and offset of each row's record.

    All names are quoted by `quote_identifier`.
    """

    topic: str
    keyspace: str
    table: str
    partition: str
    offset: str

    def read_offsets(self, session: Any) -> dict[TopicPartition, int]:
        """The offset after the last row of each partition. Raises ConfigError if the table has another key."""
        self._check_key(session)
        table = f"{self.keyspace}.{self.table}"
        partitions = session.prepare(f"SELECT DISTINCT {self.partition} FROM {table}")
        # One query per partition reads one row each; max() with GROUP BY reads all rows.
        last = session.prepare(
            f"SELECT {self.offset} FROM {table} WHERE {self.partition} = ? ORDER BY {self.offset} DESC LIMIT 1"
        )
        quorum = require("cassandra", extra="cassandra").ConsistencyLevel.QUORUM
        partitions.consistency_level = last.consistency_level = quorum
        offsets = {}
        for (partition,) in list(session.execute(partitions)):
            for (offset,) in session.execute(last, [partition]):
                offsets[TopicPartition(self.topic, partition)] = offset + 1
        return offsets

    def _check_key(self, session: Any) -> None:
        query = "SELECT column_name, kind, position FROM system_schema.columns WHERE keyspace_name=%s AND table_name=%s"
        keyspace, table, *key = map(unquote_identifier, (self.keyspace, self.table, self.partition, self.offset))
        columns = list(session.execute(query, [keyspace, table]))
        parts = [c.column_name for c in columns if c.kind == "partition_key"]
        first = [c.column_name for c in columns if c.kind == "clustering" and c.position == 0]
        if (parts, first) != (key[:1], key[1:]):
            actual = f"its key begins with {', '.join(sorted(parts) + first)}" if columns else "it does not exist"
            raise ConfigError(
                f"cannot read offsets from the table {keyspace}.{table}: {actual}",
                hint=f"PRIMARY KEY ({', '.join(key)})",
            )


class SessionOwner(Resource):
    """Holds the cluster and the session of a sink or a store from `open` to `close`."""

    _cluster: Any = None
    _session: Any = None

    def close(self) -> None:
        super().close()
        if self._cluster is not None:
            self._cluster.shutdown()
            self._cluster = self._session = None

    @contextmanager
    def _use_session(self) -> Iterator[Any]:
        """The session, with the driver's errors translated."""
        session = self.require_open(self._session)
        with translate_errors(self):
            yield session


def keyspace_exists(session: Any, keyspace: str) -> bool:
    """`keyspace` is quoted."""
    return bool(list(session.execute(_KEYSPACE, [unquote_identifier(keyspace)])))


def prepare_statements(session: Any, statements: Sequence[str], *, create: str | None) -> list[Any]:
    """Prepare the statements; if their table does not exist, run `create` first.

    `create` needs the right to create tables, so it runs only then. The system tables do not show whether the table
    exists: they list a table that another run is still creating.
    """
    try:
        return [session.prepare(statement) for statement in statements]
    except require("cassandra", extra="cassandra").InvalidRequest:
        if create is None:
            raise
        session.execute(create)
        return [session.prepare(statement) for statement in statements]


def connect(
    hosts: Sequence[tuple[str, int]], username: str | None, password: str | None, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return a cluster, which the caller shuts down, and a session. `options` override the defaults for the cluster."""
    module = require("cassandra.cluster", extra="cassandra")
    policies = require("cassandra.policies", extra="cassandra")
    profile = module.ExecutionProfile(
        load_balancing_policy=policies.DCAwareRoundRobinPolicy(),
        # Otherwise the driver repeats a compare-and-set whose reply was lost, on another host.
        retry_policy=policies.FallthroughRetryPolicy(),
        request_timeout=_ANSWER_SECONDS,
    )
    settings: dict[str, Any] = {
        "protocol_version": 4,  # every current server supports it; without it the driver tries three in turn
        "contact_points": list(hosts),
        "port": hosts[0][1],
        # Otherwise a request of more than 4 KB waits 40 ms for the acknowledgement of its first packet.
        "sockopts": [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        "connect_timeout": _CONNECT_SECONDS,
        "control_connection_timeout": _CONNECT_SECONDS,
        "reconnection_policy": policies.ConstantReconnectionPolicy(_RECONNECT_SECONDS, None),
        "execution_profiles": {module.EXEC_PROFILE_DEFAULT: profile},
        "schema_metadata_enabled": False,
        "token_metadata_enabled": False,
    }
    if username is not None:
        auth = require("cassandra.auth", extra="cassandra")
        settings["auth_provider"] = auth.PlainTextAuthProvider(username, password)
    cluster = module.Cluster(**{**settings, **options})
    try:
        return cluster, cluster.connect()
    except BaseException:
        cluster.shutdown()
        raise


@contextmanager
def translate_errors(resource: object) -> Iterator[None]:
    """Raise the driver's errors as HeadraceErrors whose messages begin with `resource`."""
    cassandra = require("cassandra", extra="cassandra")
    cluster = require("cassandra.cluster", extra="cassandra")
    protocol = require("cassandra.protocol", extra="cassandra")
    connection = require("cassandra.connection", extra="cassandra")
    try:
        yield
    except (
        cassandra.DriverException,
        cluster.NoHostAvailable,
        connection.ConnectionException,
        protocol.ErrorMessage,
        OSError,
    ) as error:
        raise _to_headrace_error(resource, error) from error


def _to_headrace_error(resource: object, error: Exception) -> HeadraceError:
    cassandra = require("cassandra", extra="cassandra")
    protocol = require("cassandra.protocol", extra="cassandra")
    causes = list((getattr(error, "errors", None) or {}).values()) or [error]
    cause = next((cause for cause in causes if isinstance(cause, cassandra.AuthenticationFailed)), causes[0])
    message = f"{resource!r}: {' '.join(str(cause).split()) or type(cause).__name__}"
    if isinstance(cause, cassandra.AuthenticationFailed) and "Unable to perform" not in message:
        return ConfigError(message, hint="check username= and password=")
    if isinstance(cause, cassandra.Unauthorized):
        return ConfigError(message, hint="grant the user SELECT and MODIFY on the table, and CREATE to create it")
    if isinstance(cause, cassandra.RequestValidationException | protocol.SyntaxException):
        return ConfigError(message, hint="if another program created or changed the table, name another one: table=")
    if isinstance(cause, cassandra.UnresolvableContactPoints):
        message = f"{resource!r}: no address found in DNS for any of its hosts"
    return RetriableError(message, hint="check that Cassandra is running and that hosts= is right")

"""What all that speaks to Cassandra needs: hosts, names, sessions, errors in our own terms, rows that tell offsets."""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_PORT = 9042
_CONNECT_SECONDS, _ANSWER_SECONDS, _RECONNECT_SECONDS = 5.0, 15.0, 1.0
_NAME = re.compile(r'[A-Za-z]\w*|"(?:[^"]|"")+"')


def endpoints(hosts: str | Sequence[str]) -> list[tuple[str, int]]:
    """Where to find `"host:port,host"` or a list of such. Raises ConfigError."""
    parts = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    found = []
    for part in (part.strip() for part in parts):
        host, _, port = part.rpartition(":") if part.count(":") == 1 or "]:" in part else (part, "", DEFAULT_PORT)
        if not host or not str(port).isdecimal():
            raise ConfigError(f"{part!r} is not a host of Cassandra", hint='hosts="10.0.0.1:9042,10.0.0.2"')
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ConfigError("no hosts of Cassandra are named", hint='hosts="10.0.0.1:9042,10.0.0.2"')
    return found


def name(identifier: str) -> str:
    """A name as CQL takes it: lower case unless in double quotes, safe to put in a statement. Raises ConfigError."""
    if not isinstance(identifier, str) or not _NAME.fullmatch(identifier):
        raise ConfigError(f"{identifier!r} is not a name in Cassandra", hint='"events", or \'"Events"\' with quotes')
    return identifier if identifier.startswith('"') else f'"{identifier.lower()}"'


def plain(quoted: str) -> str:
    """The name as the system tables have it."""
    return quoted[1:-1].replace('""', '"')


@dataclass(frozen=True, slots=True)
class OffsetsFromTable:
    """A table whose key is the partition and offset a row came from, so that the rows tell how far they reach.

    All names are as `name` gives them.
    """

    keyspace: str
    table: str
    topic: str
    partition: str
    offset: str

    def reached(self, session: Any) -> dict[TopicPartition, int]:
        """The offset after the last row of each partition. Raises ConfigError if the table has another key."""
        self._check_key(session)
        table = f"{self.keyspace}.{self.table}"
        partitions = session.prepare(f"SELECT DISTINCT {self.partition} FROM {table}")
        # Asking each for its last row is cheap, however many rows it has; max() with GROUP BY reads them all.
        last = session.prepare(
            f"SELECT {self.offset} FROM {table} WHERE {self.partition} = ? ORDER BY {self.offset} DESC LIMIT 1"
        )
        quorum = require("cassandra", extra="cassandra").ConsistencyLevel.QUORUM
        partitions.consistency_level = last.consistency_level = quorum
        found = {}
        for (number,) in list(session.execute(partitions)):
            for (offset,) in session.execute(last, [number]):
                found[TopicPartition(self.topic, number)] = offset + 1
        return found

    def _check_key(self, session: Any) -> None:
        asked = "SELECT column_name, kind, position FROM system_schema.columns WHERE keyspace_name=%s AND table_name=%s"
        columns = list(session.execute(asked, [plain(self.keyspace), plain(self.table)]))
        parts = [c.column_name for c in columns if c.kind == "partition_key"]
        first = [c.column_name for c in columns if c.kind == "clustering" and c.position == 0]
        if (parts, first) != ([plain(self.partition)], [plain(self.offset)]):
            now = f"its key begins with {', '.join(sorted(parts) + first)}" if columns else "it is not there"
            raise ConfigError(
                f"offsets cannot be read off {plain(self.keyspace)}.{plain(self.table)}: {now}",
                hint=f"PRIMARY KEY ({plain(self.partition)}, {plain(self.offset)})",
            )


def connect(
    hosts: Sequence[tuple[str, int]], username: str | None, password: str | None, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """A cluster, which the caller shuts down, and a session. `options` are those of the driver's Cluster, and win."""
    module = require("cassandra.cluster", extra="cassandra")
    policies = require("cassandra.policies", extra="cassandra")
    profile = module.ExecutionProfile(
        load_balancing_policy=policies.DCAwareRoundRobinPolicy(),
        # The driver would send a compare-and-set whose answer was lost once more, to another host.
        retry_policy=policies.FallthroughRetryPolicy(),
        request_timeout=_ANSWER_SECONDS,
    )
    settings: dict[str, Any] = {
        "protocol_version": 4,  # every server of today speaks it; left out, three are tried in turn
        "contact_points": list(hosts),
        "port": hosts[0][1],
        # Without it a request of more than 4 KB waits 40 ms for the acknowledgement of its first part.
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
def translate_error(who: object) -> Iterator[None]:
    """Raise the driver's errors as ours; messages begin with `who`."""
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
        raise _ours(who, error) from error


def _ours(who: object, error: Exception) -> HeadraceError:
    cassandra = require("cassandra", extra="cassandra")
    protocol = require("cassandra.protocol", extra="cassandra")
    reasons = list((getattr(error, "errors", None) or {}).values()) or [error]
    reason = next((one for one in reasons if isinstance(one, cassandra.AuthenticationFailed)), reasons[0])
    message = f"{who!r}: {' '.join(str(reason).split()) or type(reason).__name__}"
    if isinstance(reason, cassandra.AuthenticationFailed) and "Unable to perform" not in message:
        return ConfigError(message, hint="check username= and password=")
    if isinstance(reason, cassandra.Unauthorized):
        return ConfigError(message, hint="grant the user SELECT and MODIFY on the table, and CREATE to make it")
    if isinstance(reason, cassandra.RequestValidationException | protocol.SyntaxException):
        return ConfigError(message, hint="was the table changed, or made by something else? Name another: table=")
    if isinstance(reason, cassandra.UnresolvableContactPoints):
        message = f"{who!r}: none of its hosts can be found in the name service"
    return RetriableError(message, hint="is Cassandra up, and its address right?")

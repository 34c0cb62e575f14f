"""Connects to HBase's Thrift gateway and translates errors to Headrace's."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULT_PORT = 9090
_ANSWER_MILLISECONDS = 10_000
_REJECTIONS = ("TableNotFoundException", "NoSuchColumnFamilyException", "AccessDeniedException", "NamespaceNotFound")
# Errors that HBase itself does not retry, except for a connection that the gateway closed. A timestamp out of range
# raises a subclass of its own.
_PERMANENT = re.compile(r"FailedSanityCheckException|DoNotRetryIOException(?!.*\bclosed\b)")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The address of a Thrift gateway."""

    host: str
    port: int

    @classmethod
    def of(cls, thrift: str) -> Gateway:
        """Parse "host:port". Raises ConfigError."""
        host, _, port = thrift.rpartition(":") if ":" in thrift else (thrift, "", str(_DEFAULT_PORT))
        if not host or not port.isdecimal():
            raise ConfigError(
                f"expected the address of a Thrift gateway of HBase, got {thrift!r}", hint='HBase("localhost:9090")'
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self) -> Any:
        """A connection, which the caller closes."""
        happybase = require("happybase", extra="hbase")  # also makes the module Hbase_thrift
        return happybase.Connection(self.host, self.port, timeout=_ANSWER_MILLISECONDS)


class ReconnectingConnection:
    """A connection that is opened on first use, and reopened after an error."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connection: Any = None

    def close(self) -> None:
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    @contextmanager
    def connect(self, owner: object, rights: str) -> Iterator[Any]:
        """The connection, with errors translated."""
        try:
            with translate_error(owner, rights):
                if self._connection is None:
                    self._connection = self._gateway.connect()
                yield self._connection
        except HeadraceError:
            self.close()  # after a timeout the next response would be that of this request
            raise


def close(connection: Any) -> None:
    with suppress(Exception):  # a lost connection may raise anything
        connection.close()


@contextmanager
def translate_error(owner: object, rights: str) -> Iterator[None]:
    """Raise the driver's errors as HeadraceErrors about `owner`. `rights` is the hint if HBase refuses."""
    require("happybase", extra="hbase")
    thrift = require("thriftpy2.thrift", extra="hbase")
    try:
        yield
    except (thrift.TException, OSError, EOFError) as error:
        raise _to_headrace_error(owner, error, rights) from error


def status_message(error: Exception) -> str:
    """HBase's message without the Java stack trace."""
    text = _text(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _text(error: Exception) -> str:
    raw = getattr(error, "message", None) or str(error)
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _to_headrace_error(owner: object, error: Exception, rights: str) -> HeadraceError:
    message = f"{owner!r}: {status_message(error)}"
    if any(rejection in _text(error) for rejection in _REJECTIONS):
        return ConfigError(message, hint=rights)
    if _PERMANENT.search(_text(error)):
        return ConfigError(
            message, hint="HBase refuses this permanently: check the settings of the table and the server"
        )
    return RetriableError(message, hint="are HBase and its Thrift gateway up, and the address right?")

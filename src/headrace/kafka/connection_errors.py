"""Translates librdkafka's errors to ConfigError or RetriableError, with the reason why a broker does not answer."""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka import client_security

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from confluent_kafka import KafkaError

_PERMANENT: dict[str, str | None] = {
    "TOPIC_AUTHORIZATION_FAILED": "grant this user READ on the topics it reads, WRITE on those it writes",
    "GROUP_AUTHORIZATION_FAILED": "grant this user READ on the group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "grant this user WRITE on the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "grant this user IDEMPOTENT_WRITE on the cluster",
    "SASL_AUTHENTICATION_FAILED": "correct the sasl.* options",
    "UNSUPPORTED_SASL_MECHANISM": "correct the option sasl.mechanism",
    "_AUTHENTICATION": "correct the sasl.* options",
    "_SSL": "correct the ssl.* options",
    "INVALID_GROUP_ID": "choose another group",
    "INCONSISTENT_GROUP_PROTOCOL": "--option partition.assignment.strategy=cooperative-sticky, or as its members do",
    "OFFSET_METADATA_TOO_LARGE": "raise the broker's offset.metadata.max.bytes; 4096 is its default",
    "_INVALID_ARG": "correct options=…, which are settings of librdkafka",
    "_CONFLICT": "correct options=…, which are settings of librdkafka",
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms, or raise the broker's transaction.max.timeout.ms",
    "MSG_SIZE_TOO_LARGE": 'options={"batch.size": …} keeps what is sent at once below the topic\'s max.message.bytes',
    "UNSUPPORTED_VERSION": "the broker must be Kafka 2.5 or later",
    "_UNSUPPORTED_FEATURE": "the broker must be Kafka 2.5 or later",
    "INVALID_CONFIG": None,
    "INVALID_PARTITIONS": None,
    "INVALID_REPLICATION_FACTOR": None,
    "INVALID_REQUEST": None,
    "POLICY_VIOLATION": None,
    "TOPIC_EXCEPTION": None,
}
"""Permanent errors with their hints. Only the caller knows the hint for an invalid request."""
_TIMEOUTS = {"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT_QUEUE"}
"""The errors of a request that no broker answers, for any reason."""
_CONNECTION_LOST = re.compile(r"transport failure|Disconnected|\(n/a\)", re.IGNORECASE)
_WAIT_SECONDS = 0.2
_PROBE_SECONDS = 1.0
_CERTIFICATE_REJECTED = re.compile(r"alert (bad certificate|certificate required|certificate unknown|unknown ca)")


class ConnectionErrorListener:
    """The `error_cb` of a cluster's clients.

    If a login is refused or a listener expects TLS, a request ends only with its timeout. librdkafka reports the reason
    to `error_cb`: this object keeps it, and `wait` raises it.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self._options = dict(options)
        self._last: KafkaError | None = None
        self._tls_probed = False

    def __call__(self, error: KafkaError) -> None:
        # librdkafka reports a connection that is lost during a login as a refused login.
        if error.name() == "_AUTHENTICATION" and _CONNECTION_LOST.search(error.str()):
            return
        # The error of one broker is more specific than "All brokers are down".
        if self._last is None or error.name() != "_ALL_BROKERS_DOWN":
            self._last = error

    def wait(self, client: Any, future: Future[Any]) -> Any:
        """Return the future's result. Raises ConfigError as soon as a permanent connection error is reported."""
        while True:
            try:
                result = future.result(_WAIT_SECONDS)
            except TimeoutError:
                client.poll(0)  # calls error_cb
                if (permanent := self._permanent_error()) is not None:
                    raise permanent from None
            else:
                client.poll(0)
                self._last = None  # a response shows that earlier errors are over
                return result

    def to_headrace_error(self, error: KafkaError, what: str = "", hint: str | None = None) -> HeadraceError:
        """The Headrace error for a failed request for `what`. The last connection error explains a timeout.

        `hint` is for an invalid request.
        """
        if error.name() in _TIMEOUTS and self._last is not None:
            if (permanent := self._permanent_error()) is not None:
                return permanent
            error = self._last
        if error.name() in _PERMANENT:
            return ConfigError(
                f"Kafka at {self._bootstrap} refuses {what or 'this user'}: {error.str()}",
                hint=_PERMANENT[error.name()] or hint,
            )
        request = f" for {what}" if what else ""
        return RetriableError(
            f"Kafka at {self._bootstrap} does not answer{request}: {error.str()}",
            hint=f"headrace doctor --bootstrap {self._bootstrap}",
        )

    def _permanent_error(self) -> ConfigError | None:
        """The last connection error, if it is permanent."""
        if self._last is None:
            return None
        name, message = self._last.name(), self._last.str()
        if name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            return self._login_error(message)
        if "certificate verify failed" in message:
            return self._certificate_error(message)
        if _CERTIFICATE_REJECTED.search(message):
            return ConfigError(
                f"Kafka at {self._bootstrap} rejects this client's certificate, or it sent none: {message}",
                hint="ssl.keystore.location=FILE, with a certificate that the broker trusts",
            )
        return self._tls_error()

    def _login_error(self, message: str) -> ConfigError:
        username = client_security.sasl_username(self._options)
        login = f"the user {username}" if username else "this login"
        mechanism = "mechanism" in message and "handshake" in message
        return ConfigError(
            f"Kafka at {self._bootstrap} refuses {login}: {message}",
            hint="correct the option sasl.mechanism" if mechanism else "correct sasl.username and sasl.password",
        )

    def _certificate_error(self, message: str) -> ConfigError:
        authorities = client_security.to_librdkafka_config(self._options).get("ssl.ca.location")
        return ConfigError(
            f"the certificate of Kafka at {self._bootstrap} cannot be verified with"
            f" {authorities or 'the CA certificates of this machine'}: {message}",
            hint="ssl.ca.location=FILE, the PEM of the CA that signed it; the certificate must also name the host",
        )

    def _tls_error(self) -> ConfigError | None:
        """The error if the listener expects TLS and the options do not use it: it disconnects such clients."""
        protocol = self._options.get("security.protocol", "PLAINTEXT").upper()
        if "SSL" in protocol or self._tls_probed:
            return None
        self._tls_probed = True
        if not _speaks_tls(self._bootstrap.split(",")[0]):
            return None
        expected = "SASL_SSL" if "SASL" in protocol or "sasl.mechanism" in self._options else "SSL"
        return ConfigError(
            f"Kafka at {self._bootstrap} expects TLS, got security.protocol={protocol}",
            hint=f'options={{"security.protocol": "{expected}"}}, or the port of another listener',
        )


def _speaks_tls(address: str) -> bool:
    """Whether the server completes a TLS handshake, with any certificate."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return True
    except (OSError, ValueError):
        return False

"""Why a Kafka cluster does not answer: heard beside the calls, which are silent until their time is up."""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.kafka import client_security
from headrace.kafka.librdkafka import librdkafka_options, quiet_logger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from confluent_kafka import KafkaError

REFUSED = {
    "TOPIC_AUTHORIZATION_FAILED": "grant this user READ on the topics it reads, WRITE on those it writes",
    "GROUP_AUTHORIZATION_FAILED": "grant this user READ on the group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "grant this user WRITE on the transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "grant this user IDEMPOTENT_WRITE on the cluster",
    "SASL_AUTHENTICATION_FAILED": "correct the sasl.* options",
    "UNSUPPORTED_SASL_MECHANISM": "correct the option sasl.mechanism",
    "_AUTHENTICATION": "correct the sasl.* options",
    "_SSL": "correct the ssl.* options",
    "INVALID_GROUP_ID": "choose another group",
    "OFFSET_METADATA_TOO_LARGE": "raise the broker's offset.metadata.max.bytes; 4096 is its default",
    "_INVALID_ARG": "correct options=…, which are settings of librdkafka",
    "_CONFLICT": "correct options=…, which are settings of librdkafka",
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms, or raise the broker's transaction.max.timeout.ms",
    "MSG_SIZE_TOO_LARGE": 'options={"batch.size": …} keeps what is sent at once below the topic\'s max.message.bytes',
    "UNSUPPORTED_VERSION": "the broker must be Kafka 2.5 or later",
    "_UNSUPPORTED_FEATURE": "the broker must be Kafka 2.5 or later",
}
"""Errors that waiting does not cure, and what does."""
_CUT = re.compile(r"transport failure|Disconnected|\(n/a\)", re.IGNORECASE)
SILENCE = {"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT_QUEUE"}
_QUICK_SECONDS = 0.2  # an answer that takes longer may be none
_PROBE_SECONDS = 1.0
_OUR_CERTIFICATE = re.compile(r"alert (bad certificate|certificate required|certificate unknown|unknown ca)")


class ConnectionErrorListener:
    """What a client's `error_cb` hears. `answer` waits with it, so that a refused login is told at once."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self._options = dict(options)
        self._heard: KafkaError | None = None
        self._probed = False

    def __call__(self, error: KafkaError) -> None:
        # A connection that is cut in the middle of a login is told as one that was refused.
        if error.name() == "_AUTHENTICATION" and _CUT.search(error.str()):
            return
        # That all brokers are down says less than why one of them is.
        if self._heard is None or error.name() != "_ALL_BROKERS_DOWN":
            self._heard = error

    def answer(self, client: Any, future: Future[Any]) -> Any:
        """The future's result; ConfigError as soon as it is clear that there will be none."""
        while True:
            try:
                result = future.result(_QUICK_SECONDS)
            except TimeoutError:
                client.poll(0)
                if (refusal := self.refusal()) is not None:
                    raise refusal from None
            else:
                client.poll(0)  # what was to be heard until now is over
                self._heard = None
                return result

    def refusal(self) -> ConfigError | None:
        """What was heard, if waiting does not cure it."""
        if self._heard is None:
            return None
        name, said = self._heard.name(), self._heard.str()
        if name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            return self._login(said)
        if "certificate verify failed" in said:
            return self._stranger(said)
        if _OUR_CERTIFICATE.search(said):
            return ConfigError(
                f"Kafka at {self._bootstrap} does not take this client's certificate, or misses one: {said}",
                hint="ssl.keystore.location=FILE, with a certificate that the broker trusts",
            )
        return self._locked()

    def unreachable(self, error: Exception) -> HeadraceError:
        """A driver's error in our terms, with the reason for a silence where one was heard."""
        reason = error.args[0]
        if reason.name() in SILENCE and self._heard is not None:
            return self.refusal() or to_headrace_error(self._heard, self._bootstrap)
        return to_headrace_error(reason, self._bootstrap)

    def _login(self, said: str) -> ConfigError:
        who = client_security.sasl_username(self._options)
        name = f"the user {who}" if who else "this login"
        if "mechanism" in said and "handshake" in said:
            return ConfigError(
                f"Kafka at {self._bootstrap} refuses {name}: {said}", hint="correct the option sasl.mechanism"
            )
        return ConfigError(
            f"Kafka at {self._bootstrap} refuses {name}: {said}", hint="correct sasl.username and sasl.password"
        )

    def _stranger(self, said: str) -> ConfigError:
        known = client_security.to_librdkafka_config(self._options).get("ssl.ca.location")
        trusted = f"by {known}" if known else "by the authorities of this machine"
        return ConfigError(
            f"the certificate of Kafka at {self._bootstrap} is not vouched for {trusted}: {said}",
            hint="ssl.ca.location=FILE, the PEM of the authority that signed it; it must name the host, too",
        )

    def _locked(self) -> ConfigError | None:
        """A listener that wants TLS hangs up on who does not begin with it."""
        protocol = self._options.get("security.protocol", "PLAINTEXT").upper()
        if "SSL" in protocol or self._probed:
            return None
        self._probed = True
        if not speaks_tls(self._bootstrap.split(",")[0]):
            return None
        wanted = "SASL_SSL" if "SASL" in protocol or "sasl.mechanism" in self._options else "SSL"
        return ConfigError(
            f"Kafka at {self._bootstrap} wants TLS, and the options say security.protocol={protocol}",
            hint=f'options={{"security.protocol": "{wanted}"}}, or the port of another listener',
        )


def probe_cluster(bootstrap: str, options: Mapping[str, str], seconds: float) -> Any:
    """What a cluster says of itself, to somebody who wants to know whether and how it can be reached."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    ear = ConnectionErrorListener(bootstrap, options)
    settings: dict[str, Any] = {**librdkafka_options(bootstrap, options), "logger": quiet_logger(), "error_cb": ear}
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        raise ConfigError(f"Kafka's client refuses these options: {error.args[0].str()}") from error
    try:
        return ear.answer(admin, admin.describe_cluster(request_timeout=seconds))
    except KafkaException as error:
        raise ear.unreachable(error) from error


def to_headrace_error(reason: KafkaError, bootstrap: str, what: str = "") -> HeadraceError:
    """What a broker, or its silence, means for `what` was asked of it."""
    if reason.name() in REFUSED:
        asked = what or "this user"
        return ConfigError(f"Kafka at {bootstrap} refuses {asked}: {reason.str()}", hint=REFUSED[reason.name()])
    asked = f" for {what}" if what else ""
    return RetriableError(
        f"Kafka at {bootstrap} does not answer{asked}: {reason.str()}",
        hint=f"headrace doctor --bootstrap {bootstrap}",
    )


def speaks_tls(address: str) -> bool:
    """Whether a server begins a TLS handshake; who it is does not matter here."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as link,
            anybody.wrap_socket(link, server_hostname=host),
        ):
            return True
    except (OSError, ValueError):
        return False

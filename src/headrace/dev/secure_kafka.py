"""Runs a real Kafka on this machine with TLS, passwords, client certificates and ACLs."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from headrace.dev import ports as loopback
from headrace.dev.certificates import Certificate
from headrace.dev.kafka import Kafka
from headrace.dev.node import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from headrace.dev.kafka import Broker

MECHANISM = "SCRAM-SHA-512"
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LISTENERS = ("SASL_SSL", "SSL")


class SecureKafka(Kafka):
    """`with dev.SecureKafka(tmp_path) as kafka: hr.Kafka(kafka.secure, topics=…, options=kafka.client("app"))`.

    It has three listeners: `bootstrap` in plaintext, `secure` for TLS with the password of one of `users` (name to
    password), and `tls` for TLS with a client certificate. The first user, and clients with the certificate or on the
    plaintext listener, may do everything. The other users may do what ACLs grant them.
    """

    name = "secure-kafka"

    def __init__(
        self,
        directory: Path,
        *,
        users: Mapping[str, str] | None = None,
        listener_ports: Sequence[Sequence[int]] = (),
        **rest: Any,
    ) -> None:
        super().__init__(directory, **rest)
        self.users = dict(users or {"app": secrets.token_urlsafe(18)})
        self.certificate = Certificate(self.directory / "tls", next(iter(self.users.values())))
        free_ports = iter(loopback.free(len(_LISTENERS) * len(self.brokers)))
        for number, broker in enumerate(self.brokers):
            ports = listener_ports[number] if listener_ports else [next(free_ports) for _ in _LISTENERS]
            broker.ports.update(zip(_LISTENERS, ports, strict=True))

    @property
    def secure(self) -> str:
        return self._listener("SASL_SSL")

    @property
    def tls(self) -> str:
        return self._listener("SSL")

    def client(self, user: str) -> dict[str, str]:
        """Options of a client on the listener `secure`."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.users[user],
            "ssl.ca.location": str(self.certificate.authority),
        }

    def certificate_options(self) -> dict[str, str]:
        """Options of a client on the listener `tls`."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.certificate.authority),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.certificate.keystore),
            "ssl.keystore.password": self.certificate.password,
        }

    def settings(self) -> dict[str, Any]:
        listener_ports = [[broker.ports[listener] for listener in _LISTENERS] for broker in self.brokers]
        return {**super().settings(), "users": self.users, "listener_ports": listener_ports}

    def start(self, launched: Callable[[Self], None] | None = None, seconds: float = DEADLINE) -> None:
        self.certificate.make()
        super().start(launched, seconds)

    def formatting(self) -> list[str]:
        users = (f"{MECHANISM}=[name={name},password={password}]" for name, password in self.users.items())
        return [word for user in users for word in ("--add-scram", user)]

    def properties(self, broker: Broker) -> dict[str, str | int]:
        defaults = super().properties(broker)
        listeners = ",".join(f"{listener}://{loopback.HOST}:{broker.ports[listener]}" for listener in _LISTENERS)
        super_users = ["ANONYMOUS", next(iter(self.users)), self.certificate.subject]
        secured: dict[str, str | int] = {
            "listeners": f"{defaults['listeners']},{listeners}",
            "advertised.listeners": f"{defaults['advertised.listeners']},{listeners}",
            "listener.security.protocol.map": ",".join(
                [
                    str(defaults["listener.security.protocol.map"]),
                    *(f"{listener}:{listener}" for listener in _LISTENERS),
                ]
            ),
            "sasl.enabled.mechanisms": MECHANISM,
            # The broker itself uses the plaintext listener; the users of this listener are in the metadata.
            f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": f"{_MODULE} required;",
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.certificate.keystore),
            "ssl.keystore.password": self.certificate.password,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificate.authority),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in super_users),
        }
        return defaults | secured | self.options

    def _listener(self, listener: str) -> str:
        return ",".join(f"{loopback.HOST}:{broker.ports[listener]}" for broker in self.brokers)

"""What the tools' clients of a cluster have in common: their settings, and what their errors mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError
from headrace.kafka.config_keys import JAVA, JAVA_PRODUCER
from headrace.kafka.connection_errors import ConnectionErrorListener, to_headrace_error
from headrace.kafka.librdkafka import CONNECTING, librdkafka_options, quiet_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError

TIMEOUT = 10.0
_STRATEGY = "partition.assignment.strategy"
_COOPERATIVE = "cooperative-sticky"
_ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": _COOPERATIVE,
}
_UNKNOWN = re.compile(r'No such configuration property: "([^"]+)"')
_CANNOT_BE = {
    "INVALID_CONFIG",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_REQUEST",
    "POLICY_VIOLATION",
    "TOPIC_EXCEPTION",
    "_INVALID_ARG",
}


class Client:
    """The border to the driver for one cluster: every error that leaves is one of ours.

    `tuning` are the user's options that do not concern the connection; a producer or a consumer is given them too. They
    may come from a file that is shared with programs in Java: what means nothing here is passed over.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.options = options
        self._ear = ConnectionErrorListener(bootstrap, options)
        self.connecting: dict[str, Any] = {
            "socket.timeout.ms": int(TIMEOUT * 1000),
            "reconnect.backoff.max.ms": 1000,
            **librdkafka_options(bootstrap, options),
            "logger": quiet_logger(),
            "error_cb": self._ear,
        }
        self.tuning = _tuning(options)

    def make(self, kind: Callable[[dict[str, Any]], Any], owned: Mapping[str, Any], usual: Mapping[str, Any]) -> Any:
        """A client of this kind. What it `owned` must be so; the user's options come before what is `usual`."""
        from confluent_kafka import KafkaException

        tuning = dict(self.tuning)
        while True:
            try:
                return kind({**usual, **tuning, **owned, **self.connecting})
            except KafkaException as error:
                unknown = _UNKNOWN.search(error.args[0].str())
                if unknown is None or unknown[1] not in JAVA | JAVA_PRODUCER or tuning.pop(unknown[1], None) is None:
                    raise _refused(error) from error

    def admin(self, timeout: float = TIMEOUT) -> Any:
        """An admin client, after the cluster has answered it; why it does not is told as soon as it is clear."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            admin = AdminClient(self.connecting)
        except KafkaException as error:
            raise _refused(error) from error
        try:
            self._ear.answer(admin, admin.describe_cluster(request_timeout=timeout))
        except KafkaException as error:
            raise self._ear.unreachable(error) from error
        return admin

    def ask(self, question: Callable[[], Any], what: str, passed: tuple[str, ...] = ()) -> Any:
        """The answer; None if it is an error that is `passed`."""
        from confluent_kafka import KafkaException

        try:
            return question()
        except KafkaException as error:
            if error.args[0].name() in passed:
                return None
            raise self.ours(error.args[0], what) from error

    def ours(self, reason: KafkaError, what: str) -> HeadraceError:
        if reason.name() == "INCONSISTENT_GROUP_PROTOCOL":
            return ConfigError(
                f"{what}: the members of this group share its partitions in another way: {reason.str()}",
                hint="--option partition.assignment.strategy=cooperative-sticky, or as its other members have it",
            )
        if reason.name() in _CANNOT_BE:
            return ConfigError(f"{what}: {reason.str()}")
        return to_headrace_error(reason, self.bootstrap, what)


def _tuning(options: Mapping[str, str]) -> dict[str, str]:
    """Without a transaction's id, which a producer that makes none cannot have."""
    tuning = {name: value for name, value in options.items() if not name.startswith(("bootstrap.", *CONNECTING))}
    tuning.pop("transactional.id", None)
    if "." in tuning.get(_STRATEGY, ""):
        known = [_ASSIGNORS[name] for one in tuning.pop(_STRATEGY).split(",") if (name := one.strip()) in _ASSIGNORS]
        # The first counts: librdkafka does not take some that keep what they read and some that do not together.
        if alike := [one for one in known if (one == _COOPERATIVE) == (known[0] == _COOPERATIVE)]:
            tuning[_STRATEGY] = ",".join(alike)
    return tuning


def _refused(error: Exception) -> ConfigError:
    return ConfigError(
        f"Kafka's client refuses these options: {error.args[0].str()}",
        hint="--option takes settings of librdkafka, and the names that Java's client has for connections",
    )

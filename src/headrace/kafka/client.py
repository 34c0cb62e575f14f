"""Clients of librdkafka for one cluster: built from the user's options, with errors that Headrace can act on."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import ConfigError
from headrace.kafka import client_security
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.kafka.config_keys import JAVA, JAVA_PRODUCER
from headrace.kafka.connection_errors import ConnectionErrorListener
from headrace.support.retry import RetryPolicy
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka import KafkaError

    from headrace.errors import HeadraceError

Item = TypeVar("Item")
TIMEOUT = 10.0
"""Timeout of one request in seconds."""
_CONNECTION = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "enable.ssl.", "https.ca.")
"""Prefixes of options that all clients accept; the other options are for consumers or producers only."""
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")
_STRATEGY = "partition.assignment.strategy"
_COOPERATIVE = "cooperative-sticky"
_ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": _COOPERATIVE,
}
_PARTITIONS_PER_REQUEST = 2000  # about 500 KB of offsets with metadata; brokers accept 1 MB
_COORDINATOR_MOVED = {"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"}
_UNKNOWN = re.compile(r'No such configuration property: "([^"]+)"')


class Client:
    """Builds the admin clients, consumers and producers of one cluster, and translates their errors.

    All clients have the connection settings of `options`, a `client.id`, a silent log and a listener for connection
    errors, plus `settings`. A Spark task contains a pickled `Client` and builds its own producers.

    `tuning` are the options that do not concern the connection. They may come from a file that Java programs use, too,
    so `build_tuned` drops those that only Java's clients know.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, str],
        client_id: str = "headrace",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.options = options
        self.tuning = _tuning_options(options)
        self._errors = ConnectionErrorListener(bootstrap, options)
        self.settings: dict[str, Any] = {
            **connection_settings(bootstrap, options, client_id),
            **(settings or {}),
            "log_level": 0,  # queue only fatal errors: the logger may never be polled
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_errors": ConnectionErrorListener(self.bootstrap, self.options)}

    def admin_client(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return self._build(AdminClient, {})

    def consumer(self, group: str, settings: Mapping[str, Any] | None = None) -> Any:
        """A consumer without auto commit."""
        from confluent_kafka import Consumer

        return self._build(Consumer, {"group.id": group, "enable.auto.commit": False, **(settings or {})})

    def producer(self, settings: Mapping[str, Any]) -> Any:
        from confluent_kafka import Producer

        return self._build(Producer, settings)

    def _build(self, client_class: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return client_class({**settings, **self.settings, "logger": _silent_logger(), "error_cb": self._errors})
        except KafkaException as error:
            raise ConfigError(
                f"Kafka's client refuses these options: {error.args[0].str()}",
                hint="use settings of librdkafka, or the names that Java's client has for connections",
            ) from error

    def build_tuned(
        self, client_class: Callable[[dict[str, Any]], Any], required: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> Any:
        """Build a consumer or producer with the user's options, which override `defaults`; `required` overrides
        both."""
        tuning = dict(self.tuning)
        while True:
            try:
                return self._build(client_class, {**defaults, **tuning, **required})
            except ConfigError as error:
                unknown = _UNKNOWN.search(error.message)
                if unknown is None or unknown[1] not in JAVA | JAVA_PRODUCER or tuning.pop(unknown[1], None) is None:
                    raise

    def call(
        self,
        request: Callable[[], Any],
        what: str = "",
        ignored: Collection[str] = (),
        default: Any = None,
        hint: str | None = None,
    ) -> Any:
        """Return the result of a request for `what`; `default` if it fails with an error named in `ignored`."""
        from confluent_kafka import KafkaException

        try:
            return request()
        except KafkaException as error:
            if error.args[0].name() in ignored:
                return default
            raise self.to_headrace_error(error.args[0], what, hint) from error

    def wait(self, client: Any, future: Future[Any], *arguments: Any, **options: Any) -> Any:
        """As `call`, for a request that was sent. A refused login is raised at once, not after the timeout."""
        return self.call(lambda: self._errors.wait(client, future), *arguments, **options)

    def committed(
        self,
        consumer: Any,
        partitions: Iterable[TopicPartition],
        seconds: float,
        what: str,
        ignored: Collection[str] = (),
    ) -> dict[TopicPartition, CommittedOffset] | None:
        """The committed offsets of the consumer's group; None for an error in `ignored`. Waits for open transactions.

        Never use an admin client for this: it crashes the process if the coordinator moves during the request
        (librdkafka #5040, #5397), and it omits partitions whose first commit is still in a transaction.
        """
        from confluent_kafka import TopicPartition as Position

        found: dict[TopicPartition, CommittedOffset] = {}
        for chunk in chunked([Position(at.topic, at.partition) for at in partitions]):
            request = partial(consumer.committed, chunk, timeout=seconds)
            policy = RetryPolicy(first=0.1, factor=1.0, within=seconds)
            positions = self.call(partial(policy.call, request, _coordinator_moved), what, ignored)
            if positions is None:
                return None
            for position in positions:
                if position.error is not None:
                    raise self.to_headrace_error(position.error, what)
                if position.offset >= 0:
                    at = TopicPartition(position.topic, position.partition)
                    found[at] = CommittedOffset(position.offset, position.metadata or "")
        return found

    def to_headrace_error(self, error: KafkaError, what: str = "", hint: str | None = None) -> HeadraceError:
        """ConfigError for a permanent error, else RetriableError. `hint` is for an invalid request."""
        return self._errors.to_headrace_error(error, what, hint)


def connection_settings(bootstrap: str, options: Mapping[str, str], client_id: str) -> dict[str, str]:
    """The connection settings of a librdkafka client. ConfigError for a file that does not exist."""
    translated = client_security.to_librdkafka_config(options)
    for name in _FILES:
        if (file := translated.get(name, "probe")) != "probe" and not Path(file).exists():
            raise ConfigError(f"{name}={file} does not exist; looked in {Path.cwd()}", hint="give an absolute path")
    return {
        "client.id": client_id,
        "socket.timeout.ms": str(int(TIMEOUT * 1000)),
        "reconnect.backoff.max.ms": "1000",  # 10 s by default: find a restarted broker sooner
        # Requests to the controller find a new one only with the next metadata refresh: every 5 minutes by default.
        "topic.metadata.refresh.interval.ms": "5000",
        **{name: value for name, value in translated.items() if name.startswith(_CONNECTION)},
        "bootstrap.servers": bootstrap,
    }


def _silent_logger() -> logging.Logger:
    """Without a logger librdkafka writes each failed connection to stderr."""
    logger = logging.getLogger("headrace.librdkafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _tuning_options(options: Mapping[str, str]) -> dict[str, str]:
    """The tuning options, without `transactional.id`: a producer with that option must use transactions."""
    tuning = {name: value for name, value in options.items() if not name.startswith(("bootstrap.", *_CONNECTION))}
    tuning.pop("transactional.id", None)
    if "." in tuning.get(_STRATEGY, ""):
        classes = [name.strip() for name in tuning.pop(_STRATEGY).split(",")]
        known = [_ASSIGNORS[name] for name in classes if name in _ASSIGNORS]
        # librdkafka cannot mix cooperative and eager assignors: follow the first one.
        if compatible := [name for name in known if (name == _COOPERATIVE) == (known[0] == _COOPERATIVE)]:
            tuning[_STRATEGY] = ",".join(compatible)
    return tuning


def _coordinator_moved(error: Exception) -> bool:
    from confluent_kafka import KafkaException

    return isinstance(error, KafkaException) and error.args[0].name() in _COORDINATOR_MOVED


def chunked(items: Sequence[Item], size: int | None = None) -> Iterator[Sequence[Item]]:
    size = size or _PARTITIONS_PER_REQUEST
    for start in range(0, len(items), size):
        yield items[start : start + size]

"""Lists and aborts open transactions through Kafka's Java client: no Python client can list them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, RetriableError
from headrace.jars import cache, java, pyspark_install
from headrace.kafka.client_security import to_java_config
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TIMEOUT_MS = 15_000
_OPEN = ("ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "PREPARE_EPOCH_FENCE")
_PERMANENT = ("Authentication", "Authorization", "ConfigException", "UnsupportedVersion", "SslHandshake")


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction. It blocks read_committed consumers in each of its partitions."""

    id: str
    state: str
    producer: int
    since: datetime | None
    timeout_seconds: float
    partitions: tuple[TopicPartition, ...]


class Transactions:
    """Transactions of one cluster; `options` are settings of its clients."""

    def __init__(self, gateway: Any, bootstrap: str, options: Mapping[str, str]) -> None:
        self._jvm = gateway.jvm
        self._bootstrap = bootstrap
        settings = self._jvm.java.util.Properties()
        for name, value in {
            "default.api.timeout.ms": str(_TIMEOUT_MS),
            "request.timeout.ms": str(_TIMEOUT_MS // 3),
            **to_java_config(options),
            "bootstrap.servers": bootstrap,
        }.items():
            settings.setProperty(name, value)
        with self._translating_errors():
            self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)

    def open(self, prefix: str = "") -> list[Transaction]:
        """The open transactions whose transactional id begins with `prefix`, oldest first."""
        admin = self._jvm.org.apache.kafka.clients.admin
        states = self._jvm.java.util.HashSet()
        for state in _OPEN:
            states.add(getattr(admin.TransactionState, state))
        with self._translating_errors():
            listed = self._admin.listTransactions(admin.ListTransactionsOptions().filterStates(states)).all().get()
            ids = self._jvm.java.util.ArrayList()
            for listing in listed:
                if listing.transactionalId().startswith(prefix):
                    ids.add(listing.transactionalId())
            described = self._admin.describeTransactions(ids).all().get()
        found = [_transaction(str(name), described[name]) for name in described]
        return sorted(
            found, key=lambda transaction: (transaction.since or datetime.max.replace(tzinfo=UTC), transaction.id)
        )

    def abort(self, ids: Sequence[str]) -> None:
        """Abort transactions and fence their producers. A live run continues with a new producer."""
        java_ids = self._jvm.java.util.ArrayList()
        for name in ids:
            java_ids.add(name)
        with self._translating_errors():
            self._admin.fenceProducers(java_ids).all().get()

    def close(self) -> None:
        self._admin.close()

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            message = f"Kafka at {self._bootstrap}: {cause.getMessage() or cause.getClass().getSimpleName()}"
            if any(word in cause.getClass().getName() for word in _PERMANENT):
                raise ConfigError(message, hint="correct --option, or --options-file") from error
            raise RetriableError(message, hint=f"headrace doctor --bootstrap {self._bootstrap}") from error


@contextmanager
def open_transactions(
    bootstrap: str, options: Mapping[str, str], progress: cache.Progress = cache.silent
) -> Iterator[Transactions]:
    """Start a small JVM, which ends with the block."""
    from py4j.java_gateway import (  # type: ignore[import-untyped]
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    shipped = pyspark_install.folder() / "jars"
    needed = [*cache.connector(progress), *shipped.glob("slf4j-api*.jar"), *shipped.glob("lz4*.jar")]
    (py4j,) = shipped.glob("py4j-*.jar")
    port, token = launch_gateway(
        jarpath=str(py4j),
        classpath=":".join(map(str, needed)),
        javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m"],
        java_path=str(java.path()),
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        transactions = Transactions(gateway, bootstrap, options)
        try:
            yield transactions
        finally:
            transactions.close()
    finally:
        gateway.shutdown()


def _transaction(name: str, described: Any) -> Transaction:
    since = described.transactionStartTimeMs()
    return Transaction(
        name,
        str(described.state().toString()),
        int(described.producerId()),
        datetime.fromtimestamp(since.getAsLong() / 1000, UTC) if since.isPresent() else None,
        int(described.transactionTimeoutMs()) / 1000,
        tuple(sorted(TopicPartition(str(at.topic()), int(at.partition())) for at in described.topicPartitions())),
    )

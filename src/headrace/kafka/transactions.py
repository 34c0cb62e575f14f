"""Steps of a Kafka transaction, each with a timeout."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from headrace.kafka.client import TIMEOUT, chunked

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 2.5 * TIMEOUT
"""Timeout in seconds for a transaction of several requests."""
FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}
"""Errors of a fenced producer: another producer initialised its transactional id."""


def init_transactions(producer: Any) -> Any:
    """Fence other producers with this transactional id and end their transactions; return the producer."""
    for _ in range(2):
        # After two requests the producer knows the brokers' ids; otherwise the next call often waits 500 ms.
        producer.list_topics("__consumer_offsets", timeout=TIMEOUT)
    producer.init_transactions(TIMEOUT)
    return producer


def call_with_timeout(step: Callable[[], Any], seconds: float) -> Any:
    """Run a step of a transaction in a thread, with a timeout: librdkafka may never return if a broker dies.

    After a TimeoutError the thread keeps running but is harmless: the next producer with that transactional id fences
    its producer and ends its transaction.
    """
    outcome: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put((step(), None))
        except Exception as error:
            outcome.put((None, error))

    threading.Thread(target=run, name="headrace-transaction", daemon=True).start()
    try:
        result, error = outcome.get(timeout=seconds)
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result


def commit_offsets_in_new_transaction(producer: Any, positions: list[Any], membership: Any) -> None:
    producer.begin_transaction()
    commit(producer, positions, membership)


def commit(producer: Any, positions: list[Any], membership: Any) -> None:
    for chunk in chunked(positions):
        producer.send_offsets_to_transaction(chunk, membership, TIMEOUT)
    producer.commit_transaction(TIMEOUT)
